//! Every codec through every kernel: attention over a paged cache against the reference over the same decoded values.

use super::codec::{CODECS, KvCodec};
use super::{
    BLOCK_TOKENS, BlockTable, CachePlan, KvRounding, LayerPlan, LayerScales, PagedCache, StoredRows, WriteRows,
};
use crate::engine::kernels::tests::{Numbers, Rows, under_test};
use crate::engine::kernels::{AttentionJob, Kernel, KvRows, bf16_to_f32, resolve};

struct Case {
    head_dim: usize,
    first_position: usize,
    n_position: usize,
    group: usize,
    window: Option<usize>,
}

impl Case {
    fn n_key(&self) -> usize {
        self.first_position + self.n_position
    }

    fn attend(&self, kernel: &dyn Kernel, kv: &dyn KvRows) -> Vec<f32> {
        let q = Numbers::new(8).exact(self.n_position * self.group * self.head_dim);
        let mut out = vec![f32::NAN; q.len()];
        kernel.attend(&mut AttentionJob {
            kv,
            q: &q,
            out: &mut out,
            first_position: self.first_position,
            group: self.group,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window: self.window,
        });
        out
    }
}

/// Two layers of two heads; the second head of the second layer is the one to look at.
fn filled(codec: &'static dyn KvCodec, case: &Case) -> (PagedCache, BlockTable) {
    let layers = (0..2).map(|_| LayerPlan { codec, scales: LayerScales::unit() }).collect();
    let (rounding, noise) = (KvRounding::NearestEven, [0.0; 2]);
    let head_dim = case.head_dim;
    let plan = CachePlan { layers, n_kv_head: 2, head_dim, block_tokens: BLOCK_TOKENS, rounding, noise };
    let mut cache = PagedCache::new(&plan, 1 << 24);
    let mut table = BlockTable::default();
    cache.reserve(&mut table, 0, case.n_key()).unwrap();
    let stride = 2 * case.head_dim;
    let mut numbers = Numbers::new(6);
    for layer in 0..2 {
        let (k, v) = (numbers.f32s(case.n_key() * stride), numbers.f32s(case.n_key() * stride));
        cache.write(&table, layer, 0, &WriteRows { k: &k, v: &v, stride, n_row: case.n_key() });
    }
    (cache, table)
}

/// What a kernel of 16-bit operands reads, in f32.
fn rounded(kv: &StoredRows<'_>, case: &Case) -> Rows {
    let n_value = case.n_key() * case.head_dim;
    let (mut k, mut v) = (vec![0; n_value], vec![0; n_value]);
    kv.decode_bf16(0, case.n_key(), &mut k, &mut v);
    let [k, v] = [k, v].map(|values| values.into_iter().map(bf16_to_f32).collect());
    Rows { k, v, head_dim: case.head_dim }
}

#[test]
fn every_codec_goes_through_every_kernel() {
    let reference = resolve(Some("reference")).unwrap();
    for (head_dim, first_position, n_position, group, window) in [
        (64, 0, 70, 3, None),
        (64, 130, 1, 3, None),
        (80, 61, 5, 1, Some(33)),
        (128, 15, 2, 7, None),
        (2, 63, 2, 2, Some(1)),
    ] {
        let case = Case { head_dim, first_position, n_position, group, window };
        for codec in CODECS {
            let (cache, table) = filled(*codec, &case);
            let stored = cache.rows(&table, 1, 1);
            let exact = case.attend(&*reference, &stored);
            let of_rounded = case.attend(&*reference, &rounded(&stored, &case));
            for kernel in under_test() {
                // A BF16 weight is off by up to 2⁻⁹ of itself, and values reach 4.
                let is_bf16 = kernel.name().contains("bf16");
                let (expected, tolerance) = if is_bf16 { (&of_rounded, 1.0 / 128.0) } else { (&exact, 2e-5) };
                for (got, expected) in case.attend(&*kernel, &stored).iter().zip(expected) {
                    assert!(
                        (got - expected).abs() <= tolerance,
                        "{} {} {head_dim} at {first_position}: {got} instead of {expected}",
                        kernel.name(),
                        codec.name()
                    );
                }
            }
        }
    }
}
