//! A kernel whose attention is computed in a given arithmetic, and one query's attention for experiments.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::attention::arithmetic::{Accumulator, Arithmetic};
use crate::engine::kernels::{self, AttentionJob, Kernel, PackedMatrix, emulated};

/// Matrix products of `inner`, attention in `arithmetic`.
struct Emulated {
    inner: Arc<dyn Kernel>,
    arithmetic: Arithmetic,
    /// Of layers that are kept in 16 bits.
    arithmetic_16_bit: Arithmetic,
}

impl Kernel for Emulated {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: Range<usize>, y: &mut [f32]) {
        self.inner.gemm(x, n_row, w, tiles, y);
    }

    fn attend(&self, job: &mut AttentionJob<'_>) {
        let arithmetic = if job.kv.is_16_bit() { &self.arithmetic_16_bit } else { &self.arithmetic };
        if arithmetic.attends_like(&own_arithmetic(&*self.inner)) {
            self.inner.attend(job);
        } else {
            attend(arithmetic, job);
        }
    }
}

/// The arithmetic of a kernel's own attention, which its name tells. The `reference` kernel is an f32 kernel with better sums.
pub(in crate::engine) fn own_arithmetic(kernel: &dyn Kernel) -> Arithmetic {
    if kernel.name().contains("-bf16-") { Arithmetic::BF16 } else { Arithmetic::F32 }
}

/// A kernel with the matrix products of `kernel` and attention in `arithmetic`, or in `arithmetic_16_bit` where a layer is kept
/// in 16 bits: itself where both are its own, so that nothing becomes slower.
pub(in crate::engine) fn kernel_in(
    kernel: &Arc<dyn Kernel>,
    arithmetic: Arithmetic,
    arithmetic_16_bit: Arithmetic,
) -> Arc<dyn Kernel> {
    let own = own_arithmetic(&**kernel);
    if arithmetic.attends_like(&own) && arithmetic_16_bit.attends_like(&own) {
        return kernel.clone();
    }
    Arc::new(Emulated { inner: kernel.clone(), arithmetic, arithmetic_16_bit })
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
    use crate::engine::attention::{KvScaling, QueryRounding, StoredKv, WeightRounding};
    use crate::engine::kernels::KvRows;
    use crate::engine::kernels::tests::{Numbers, available};

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

    /// Heads of one dimension: scores `k` under a query of 1, and `values`.
    fn attend_to(arithmetic: &Arithmetic, k: &[f32], values: &[f32]) -> f32 {
        let kv = StoredKv::new("float32", 1, k, values).unwrap();
        simulate(arithmetic, &[1.0], 1, &kv, k.len(), 1.0)[0]
    }

    fn near(found: f32, expected: f64) {
        assert!((f64::from(found) / expected - 1.0).abs() < 2e-6, "{found} instead of {expected}");
    }

    #[test]
    fn a_query_in_fp8_scores_with_its_nearest_code() {
        let in_fp8 = |scale| Arithmetic { query: QueryRounding::Fp8 { scale }, ..Arithmetic::F32 };
        let kv = StoredKv::new("float32", 1, &[2.0, 0.0], &[1.0, 0.0]).unwrap();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        for (arithmetic, q, rounded) in [
            (Arithmetic::F32, 1.05, 1.05),
            (in_fp8(1.0), 1.05, 1.0),
            (in_fp8(1.0), 1.07, 1.125),
            (in_fp8(1.0), 1.0625, 1.0),
            (in_fp8(0.5), 0.53, 0.5 * 1.0),
            (in_fp8(1.0), -1.2, -1.25),
        ] {
            near(simulate(&arithmetic, &[q], 1, &kv, 2, 1.0)[0], sigmoid(2.0 * rounded));
        }
        let saturated = simulate(&in_fp8(1.0), &[1e6], 1, &kv, 2, 1.0 / 448.0)[0];
        near(saturated, sigmoid(2.0));
    }

    #[test]
    fn weights_in_fp8_vanish_without_a_scale_and_survive_with_256() {
        let in_fp8 = |scale| Arithmetic { weights: WeightRounding::Fp8 { scale }, ..Arithmetic::F32 };
        let output = |arithmetic, log2_weight: f32| {
            attend_to(&arithmetic, &[0.0, log2_weight * std::f32::consts::LN_2], &[0.0, 1.0])
        };
        let small = 2_f64.powi(-11);
        assert_eq!(output(in_fp8(1.0), -11.0), 0.0);
        near(output(in_fp8(256.0), -11.0), small / (1.0 + small));
        assert_eq!(output(in_fp8(256.0), -19.0), 0.0);
        // 2⁻⁹·⁵ lies between the codes 2⁻⁹ and 0; the sum under the fraction is that of the unrounded weights.
        near(output(in_fp8(1.0), -9.5), 2_f64.powi(-9) / (1.0 + (-9.5_f64).exp2()));
        near(output(Arithmetic { weights: WeightRounding::Bf16, ..Arithmetic::F32 }, -11.0), small / (1.0 + small));
    }

    #[test]
    fn a_short_register_loses_small_sums_after_a_large_one() {
        let mut values = vec![1.0 / 64.0; 128];
        values[0] = 16_384.0;
        let output = |accumulator| attend_to(&Arithmetic { accumulator, ..Arithmetic::F32 }, &[0.0; 128], &values);
        // Steps of 32 keys add ½ where the unit is 2; in a register of its own the second block adds up to 1.
        assert_eq!(output(Accumulator::Short { two_level: false }), 128.0);
        assert_eq!(output(Accumulator::Short { two_level: true }), 128.0 + 1.0 / 128.0);
        near(output(Accumulator::F32), (16_384.0 + 127.0 / 64.0) / 128.0);
    }

    #[test]
    fn a_new_maximum_rescales_inside_the_short_register() {
        let (mut k, mut values) = (vec![0.0; 65], vec![0.0; 65]);
        k[64] = -(0.75_f32.ln());
        values[0] = 1.0 + 2_f32.powi(-13);
        let output = |accumulator| attend_to(&Arithmetic { accumulator, ..Arithmetic::F32 }, &k, &values);
        near(output(Accumulator::Short { two_level: false }), (0.75 + 2_f64.powi(-14)) / 49.0);
        near(output(Accumulator::Short { two_level: true }), 0.75 * (1.0 + 2_f64.powi(-13)) / 49.0);
    }

    /// Codes with a scale per key, or with one for all.
    struct Scaled {
        codes: Vec<f32>,
        scales: Vec<f32>,
    }

    impl KvRows for Scaled {
        fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]) {
            for (i, (k, v)) in k.iter_mut().zip(v).enumerate().take(n * 2) {
                let scale = self.scales[start + i / 2];
                (*k, *v) = (self.codes[start * 2 + i] * scale, self.codes[start * 2 + i] * scale * 3.0);
            }
        }

        fn decode_bf16(&self, _: usize, _: usize, _: &mut [u16], _: &mut [u16]) {
            panic!("emulated attention rounds by itself");
        }

        fn decode_codes_f32(
            &self,
            start: usize,
            n: usize,
            k: &mut [f32],
            v: &mut [f32],
            k_scales: &mut [f32],
            v_scales: &mut [f32],
        ) {
            k.copy_from_slice(&self.codes[start * 2..(start + n) * 2]);
            v.copy_from_slice(k);
            k_scales.copy_from_slice(&self.scales[start..start + n]);
            v_scales.iter_mut().zip(k_scales).for_each(|(v, k)| *v = *k * 3.0);
        }
    }

    #[test]
    fn scales_multiplied_in_outside_give_the_same_attention() {
        let codes: Vec<f32> = (0..300).map(|i| ((i * 37) % 19) as f32 - 9.0).collect();
        let per_key: Vec<f32> = (0..150).map(|i| 0.05 + (i % 7) as f32 * 0.03).collect();
        for (scaling, scales) in [(KvScaling::Outside, vec![0.11; 150]), (KvScaling::PerKey, per_key)] {
            let kv = Scaled { codes: codes.clone(), scales };
            let run = |arithmetic: Arithmetic| simulate(&arithmetic, &[0.3, -0.7, 1.1, 0.2], 2, &kv, 150, 0.7);
            let exact = run(Arithmetic::REFERENCE);
            for (found, exact) in run(Arithmetic { scaling, ..Arithmetic::F32 }).iter().zip(&exact) {
                assert!((found - exact).abs() < 2e-6, "{scaling:?}: {found} instead of {exact}");
            }
        }
    }

    #[test]
    fn a_kernels_own_arithmetic_is_left_to_it_and_any_other_is_near_the_oracle() {
        for kernel in available() {
            let own = own_arithmetic(&*kernel);
            assert!(Arc::ptr_eq(&kernel_in(&kernel, own, own), &kernel));
            let truncating = Arithmetic { truncating_codec: true, ..own };
            assert!(Arc::ptr_eq(&kernel_in(&kernel, truncating, own), &kernel), "the cache cuts, not attention");
            assert!(!Arc::ptr_eq(&kernel_in(&kernel, Arithmetic::FA3_FP8, own), &kernel));
            assert_eq!(kernel_in(&kernel, Arithmetic::FA3_FP8, own).name(), kernel.name());
        }
        let found = errors(1000, 1.0, &[Arithmetic::F32, Arithmetic::BF16, Arithmetic::FA3_FP8, Arithmetic::REFERENCE]);
        assert!(found[0] < 1e-6 && found[3] == 0.0, "{found:?}");
        assert!(found[0] < found[1] && found[1] < 3e-3 && found[1] < found[2] && found[2] < 0.03, "{found:?}");
    }
}
