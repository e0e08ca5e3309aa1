//! The loops of emulated attention compiled for AVX-512 and AVX2. Nothing is fused, so the bits are those of the baseline.
#![expect(unsafe_code, reason = "calls of functions compiled for an instruction set that a token proves")]

use super::{Avx2, Avx512};
use crate::engine::attention::Arithmetic;
use crate::engine::kernels::{AttentionJob, emulated};

/// Attention by the widest instruction set of this machine; false if it has neither, and then nothing was done.
pub(in crate::engine::kernels) fn attend_emulated(job: &mut AttentionJob<'_>, arithmetic: &Arithmetic) -> bool {
    if Avx512::detect().is_some() {
        // SAFETY: `detect` saw avx512f, bw, vl and dq.
        unsafe { attend_avx512(job, arithmetic) };
    } else if Avx2::detect().is_some() {
        // SAFETY: `detect` saw avx2 and fma.
        unsafe { attend_avx2(job, arithmetic) };
    } else {
        return false;
    }
    true
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn attend_avx512(job: &mut AttentionJob<'_>, arithmetic: &Arithmetic) {
    emulated::attend_tiles(job, arithmetic);
}

#[target_feature(enable = "avx2,fma")]
fn attend_avx2(job: &mut AttentionJob<'_>, arithmetic: &Arithmetic) {
    emulated::attend_tiles(job, arithmetic);
}
