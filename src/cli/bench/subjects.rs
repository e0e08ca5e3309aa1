//! What is compared: each mechanism alone, each KV dtype alone, and whole attention backends.

use kvgauge::engine::CODECS;
use kvgauge::engine::Mechanism;
use kvgauge::engine::attention::{Accumulator, Arithmetic, KvScaling, QueryRounding, StoredKv, WeightRounding};
use kvgauge::engine::kv_cache::codec::UnknownDtype;

use super::heads::Head;

/// One mechanism over BF16 arithmetic and a BF16 cache.
pub(super) const MECHANISM: &str = "mechanism";
/// One dtype of the cache under f32 arithmetic.
pub(super) const CODEC: &str = "codec";
/// A backend's arithmetic with a dtype that it takes.
pub(super) const BACKEND: &str = "backend";

/// A way of storing K and V and a way of attending to them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Subject {
    /// [`MECHANISM`], [`CODEC`] or [`BACKEND`].
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) dtype: &'static str,
    pub(super) arithmetic: Arithmetic,
}

/// All of them, kind by kind.
pub(super) fn subjects() -> Vec<Subject> {
    let mut subjects = mechanisms();
    subjects.extend(CODECS.iter().map(|codec| Subject {
        kind: CODEC,
        name: codec.name().into(),
        dtype: codec.name(),
        arithmetic: Arithmetic::F32,
    }));
    subjects.extend(backends());
    subjects
}

fn mechanisms() -> Vec<Subject> {
    let base = Subject { kind: MECHANISM, name: "none".into(), dtype: "bfloat16", arithmetic: Arithmetic::BF16 };
    let alone = Mechanism::ALL.iter().map(|(mechanism, name)| {
        let arithmetic = Arithmetic::BF16.with(&[*mechanism]).expect("one mechanism contradicts none");
        // Cutting needs something to cut: BF16 values pass a BF16 cache as they are.
        let dtype = if arithmetic.truncating_codec { "fp8_e4m3" } else { base.dtype };
        Subject { name: (*name).into(), dtype, arithmetic, ..base.clone() }
    });
    let alone: Vec<Subject> = alone.collect();
    [vec![base], alone].concat()
}

fn backends() -> Vec<Subject> {
    let backend = |name: &str, dtype, arithmetic| Subject { kind: BACKEND, name: name.into(), dtype, arithmetic };
    let one_register = Arithmetic { accumulator: Accumulator::Short { two_level: false }, ..Arithmetic::FA3_FP8 };
    let fp8_query =
        Arithmetic { query: QueryRounding::Fp8 { scale: 1.0 }, scaling: KvScaling::Outside, ..Arithmetic::BF16 };
    let triton = |scale| Arithmetic { weights: WeightRounding::Fp8 { scale }, ..fp8_query };
    let per_token = Arithmetic { scaling: KvScaling::PerKey, ..Arithmetic::BF16 };
    let cutting = Arithmetic { truncating_codec: true, ..Arithmetic::BF16 };
    let mut subjects = vec![backend("FLASH_ATTN", "bfloat16", Arithmetic::BF16)];
    for dtype in ["fp8_e4m3", "fp8_e5m2"] {
        subjects.push(backend("FLASHINFER sm90 decode", dtype, Arithmetic::BF16));
        subjects.push(backend("FLASHINFER sm100", dtype, fp8_query));
        subjects.push(backend("TRITON_ATTN P·1", dtype, triton(1.0)));
        subjects.push(backend("TRITON_ATTN P·256", dtype, triton(256.0)));
    }
    subjects.push(backend("FLASH_ATTN FA3", "fp8_e4m3", Arithmetic::FA3_FP8));
    subjects.push(backend("FLASH_ATTN FA3, one register", "fp8_e4m3", one_register));
    subjects.push(backend("TRITON_ATTN", "int8_per_token_head", per_token));
    subjects.push(backend("CPU_ATTN", "fp8_e4m3", cutting));
    subjects
}

impl Subject {
    /// The head's K and V as this subject stores them.
    pub(super) fn store(&self, head: &Head) -> Result<StoredKv, UnknownDtype> {
        if !self.arithmetic.truncating_codec {
            return StoredKv::new(self.dtype, head.head_dim, &head.k, &head.v);
        }
        // What is cut to a value of the codec already is stored as it is.
        let cut = |values: &[f32]| values.iter().map(|value| cut_to_e4m3(*value)).collect::<Vec<_>>();
        StoredKv::new(self.dtype, head.head_dim, &cut(&head.k), &cut(&head.v))
    }
}

/// The nearest e4m3 value toward zero (OCP 8-bit floating point, 3 mantissa bits, largest 448, smallest 2⁻⁹).
fn cut_to_e4m3(value: f32) -> f32 {
    const LARGEST: f32 = 448.0;
    const SMALLEST_NORMAL: f32 = 1.0 / 64.0;
    const SMALLEST: f32 = 1.0 / 512.0;
    /// Mantissa bits that f32 has and e4m3 has not.
    const SURPLUS_BITS: u32 = 20;
    if value.abs() < SMALLEST_NORMAL {
        return (value / SMALLEST).trunc() * SMALLEST;
    }
    f32::from_bits(value.to_bits() >> SURPLUS_BITS << SURPLUS_BITS).clamp(-LARGEST, LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_goes_toward_zero_and_what_is_cut_passes_the_codec() {
        let codec = kvgauge::engine::kv_cache::codec::codec("fp8_e4m3").unwrap();
        assert_eq!(codec.name(), "fp8_e4m3");
        for (value, cut) in
            [(1.1249, 1.0), (-1.9, -1.875), (1000.0, 448.0), (0.0029, 0.001_953_125), (-0.001, 0.0), (0.3, 0.28125)]
        {
            assert_eq!(cut_to_e4m3(value), cut, "{value}");
        }
        let values: Vec<f32> = (0..64).map(|i| cut_to_e4m3((i as f32 - 31.5) * 0.37)).collect();
        let head = Head { head_dim: 64, softmax_scale: 0.125, q: vec![0.0; 64], k: values.clone(), v: values.clone() };
        let plain = Subject { kind: CODEC, name: String::new(), dtype: "fp8_e4m3", arithmetic: Arithmetic::F32 };
        let out = kvgauge::engine::attention::simulate(
            &plain.arithmetic,
            &head.q,
            64,
            &plain.store(&head).unwrap(),
            1,
            0.125,
        );
        assert_eq!(out, values);
    }

    #[test]
    fn no_two_subjects_are_the_same_and_every_codec_and_mechanism_is_there() {
        let subjects = subjects();
        for (index, subject) in subjects.iter().enumerate() {
            let same = |other: &Subject| {
                (other.kind, &other.name, other.dtype) == (subject.kind, &subject.name, subject.dtype)
            };
            assert!(!subjects[..index].iter().any(same), "{subject:?}");
        }
        let count = |kind| subjects.iter().filter(|subject| subject.kind == kind).count();
        assert_eq!((count(MECHANISM), count(CODEC)), (Mechanism::ALL.len() + 1, CODECS.len()));
    }
}
