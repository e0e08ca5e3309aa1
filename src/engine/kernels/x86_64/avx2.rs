//! The portable loops compiled for AVX2 with fused multiply-add: twice the lanes, a third of the roundings.
#![expect(unsafe_code, reason = "calls of functions compiled for an instruction set that a token proves")]

use std::ops::Range;
use std::sync::Arc;

use super::Avx2;
use crate::engine::kernels::portable::{self, Fused};
use crate::engine::kernels::{AttentionJob, Kernel, KernelEntry, PackedMatrix};

/// Most x86-64 machines of the last ten years.
pub(in crate::engine::kernels) const ENTRY: KernelEntry = KernelEntry { name: NAME, probe };

const NAME: &str = "x86_64-f32-avx2";

fn probe() -> Result<Arc<dyn Kernel>, &'static str> {
    let token = Avx2::detect().ok_or("this CPU has no AVX2 with FMA")?;
    Ok(Arc::new(Avx2Kernel(token)))
}

struct Avx2Kernel(Avx2);

impl Kernel for Avx2Kernel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        let Avx2 { .. } = self.0;
        // SAFETY: `self` holds an `Avx2`, so `detect` saw avx2 and fma.
        unsafe { gemm(x, n_row, w, tiles, y) }
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        let Avx2 { .. } = self.0;
        // SAFETY: `self` holds an `Avx2`, so `detect` saw avx2 and fma.
        unsafe { attend(job) }
    }
}

#[target_feature(enable = "avx2,fma")]
fn gemm(x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
    portable::gemm::<Fused>(x, n_row, w, tiles, y);
}

#[target_feature(enable = "avx2,fma")]
fn attend(job: &mut AttentionJob<'_>) {
    portable::attend::<Fused>(job);
}
