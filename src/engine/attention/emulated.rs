//! A kernel whose attention is computed in a given arithmetic, and one query's attention for experiments.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::attention::arithmetic::{Accumulator, Arithmetic};
use crate::engine::kernels::{self, AttentionJob, Kernel, PackedMatrix, emulated};

/// Matrix products of `inner`, attention in `arithmetic`.
struct Emulated {
    inner: Arc<dyn Kernel>,
    arithmetic: Arithmetic,
}

impl Kernel for Emulated {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        self.inner.gemm(x, n_row, w, tiles, y);
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        attend(&self.arithmetic, job);
    }
}

/// The arithmetic of a kernel's own attention, which its name tells. The `reference` kernel is an f32 kernel with better sums.
pub(in crate::engine) fn own_arithmetic(kernel: &dyn Kernel) -> Arithmetic {
    if kernel.name().contains("-bf16-") { Arithmetic::BF16 } else { Arithmetic::F32 }
}

/// A kernel with the matrix products of `kernel` and attention in `arithmetic`: itself where that is its own, so that nothing
/// becomes slower.
pub(in crate::engine) fn kernel_in(kernel: &Arc<dyn Kernel>, arithmetic: Arithmetic) -> Arc<dyn Kernel> {
    if arithmetic.attends_like(&own_arithmetic(&**kernel)) {
        return kernel.clone();
    }
    Arc::new(Emulated { inner: kernel.clone(), arithmetic })
}

fn attend(arithmetic: &Arithmetic, job: &mut AttentionJob<'_>) {
    if arithmetic.accumulator == Accumulator::F64 {
        let reference = kernels::resolve(Some("reference")).expect("the reference kernel runs on every machine");
        reference.attend(job);
    } else {
        emulated::attend(job, arithmetic);
    }
}

/// Attention of the query heads q `[n_head, head_dim]` at the last of `n_key` stored positions: `[n_head, head_dim]`. The
/// shape of a decode step, for experiments; `softmax_scale` is usually `1/√head_dim`.
///
/// # Panics
/// If q is not of that shape, or `n_key` is 0.
pub fn simulate(
    arithmetic: &Arithmetic,
    q: &[f32],
    head_dim: usize,
    kv: &dyn kernels::KvRows,
    n_key: usize,
    softmax_scale: f32,
) -> Vec<f32> {
    assert!(n_key > 0, "a query sees at least one key");
    assert!(head_dim > 0 && q.len().is_multiple_of(head_dim), "q [n_head, {head_dim}]");
    let mut out = vec![0.0; q.len()];
    let group = q.len() / head_dim;
    let job = AttentionJob {
        kv,
        q,
        out: &mut out,
        first_position: n_key - 1,
        group,
        head_dim,
        scale: softmax_scale,
        window: None,
    };
    if group > 0 {
        attend(arithmetic, &mut { job });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::attention::StoredKv;
    use crate::engine::kernels::tests::Numbers;

    const HEAD_DIM: usize = 64;

    /// Relative distance to `exact` in the L2 norm.
    fn error(found: &[f32], exact: &[f32]) -> f64 {
        let square = |value: f32| f64::from(value) * f64::from(value);
        let distance: f64 = found.iter().zip(exact).map(|(found, exact)| square(found - exact)).sum();
        (distance / exact.iter().map(|exact| square(*exact)).sum::<f64>()).sqrt()
    }

    /// Four query heads over values with a mean, as those of real models; `sharpness` 0 weighs all keys alike.
    fn errors(n_key: usize, sharpness: f32, arithmetics: &[Arithmetic]) -> Vec<f64> {
        let mut numbers = Numbers::new(n_key as u64);
        let q: Vec<f32> = numbers.f32s(4 * HEAD_DIM).iter().map(|value| value * sharpness).collect();
        let k = numbers.f32s(n_key * HEAD_DIM);
        let v: Vec<f32> = numbers.f32s(n_key * HEAD_DIM).iter().map(|value| value + 0.5).collect();
        let kv = StoredKv::new("bfloat16", HEAD_DIM, &k, &v).unwrap();
        let run = |arithmetic: &Arithmetic| simulate(arithmetic, &q, HEAD_DIM, &kv, n_key, 0.125);
        let exact = run(&Arithmetic::REFERENCE);
        arithmetics.iter().map(|arithmetic| error(&run(arithmetic), &exact)).collect()
    }

    fn short(two_level: bool) -> Arithmetic {
        Arithmetic { accumulator: Accumulator::Short { two_level }, ..Arithmetic::BF16 }
    }

    #[test]
    fn one_short_register_over_the_whole_context_gets_worse_with_length_and_two_levels_do_not() {
        let hopper = |two_level| Arithmetic { accumulator: Accumulator::Short { two_level }, ..Arithmetic::FA3_FP8 };
        let measure = |n_key| errors(n_key, 0.1, &[short(false), short(true), hopper(false), hopper(true)]);
        let (few, many) = (measure(512), measure(16_384));
        assert!(many[0] > 10.0 * few[0] && many[0] > 50.0 * many[1], "{few:?} {many:?}");
        assert!(many[1] < few[1], "noise of independent blocks averages out: {few:?} {many:?}");
        assert!(few[2] < 1.1 * few[3], "at 512 keys the rounding of P hides it: {few:?}");
        assert!(many[2] > 8.0 * many[3], "{many:?}");
    }
}
