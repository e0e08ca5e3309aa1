//! AArch64. Its baseline has 128-bit vectors (NEON) with a fused multiply-add, so no detection and no `unsafe` is needed.

mod neon;

pub(super) use self::neon::ENTRY as NEON;
