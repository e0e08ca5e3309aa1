//! The portable loops with fused multiply-add, which the compiler turns into NEON code: a third of the roundings.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::kernels::portable::{self, Fused};
use crate::engine::kernels::{AttentionJob, Kernel, KernelEntry, PackedMatrix};

/// Every AArch64 machine.
pub(in crate::engine::kernels) const ENTRY: KernelEntry = KernelEntry { name: NAME, probe: || Ok(Arc::new(Neon)) };

const NAME: &str = "aarch64-f32-neon";

struct Neon;

impl Kernel for Neon {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        portable::gemm::<Fused>(x, n_row, w, tiles, y);
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        portable::attend::<Fused>(job);
    }
}
