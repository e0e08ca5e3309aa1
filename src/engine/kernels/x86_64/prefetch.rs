//! Prefetch instructions, part of every x86-64.
#![expect(unsafe_code, reason = "the instruction takes a pointer")]

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Bytes that one instruction loads.
const CACHE_LINE: usize = 64;

/// Starts to load all cache lines that `bytes` touches.
pub(in crate::engine::kernels) fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(CACHE_LINE) {
        // SAFETY: the pointer comes from a reference; a prefetch reads nothing that the program could see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
}
