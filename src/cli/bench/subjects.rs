//! What is compared: each mechanism alone, each KV dtype alone, and whole attention backends.

use kvgauge::engine::attention::{
    Accumulator, Arithmetic, BACKENDS, KvScaling, Phase, QueryRounding, Question, StoredKv, Variants, WeightRounding,
    choose,
};
use kvgauge::engine::kv_cache::codec::UnknownDtype;
use kvgauge::engine::{CODECS, Mechanism, Platform};

use super::heads::{HEAD_DIM, Head};

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

/// Every backend that some platform takes for a dtype, in both phases and all variants. Those that compute the same from the
/// same cache are one subject.
fn backends() -> Vec<Subject> {
    let mut subjects: Vec<Subject> = Vec::new();
    for dtype in CODECS.iter().map(|codec| codec.name()) {
        for (backend, arithmetic) in taken(dtype) {
            let same = |it: &&mut Subject| it.dtype == dtype && it.arithmetic == arithmetic;
            match subjects.iter_mut().find(same) {
                Some(subject) if subject.name.split('/').any(|name| name == backend) => {}
                Some(subject) => subject.name = format!("{}/{backend}", subject.name),
                None => subjects.push(Subject { kind: BACKEND, name: backend.into(), dtype, arithmetic }),
            }
        }
    }
    for subject in &mut subjects {
        subject.name = format!("{} ({})", subject.name, in_short(&subject.arithmetic));
    }
    subjects
}

/// Backends that can be had for a cache of `dtype`, each with what it computes.
fn taken(dtype: &str) -> Vec<(&'static str, Arithmetic)> {
    let mut taken = Vec::new();
    for (platform, _) in Platform::ALL {
        for backend in BACKENDS {
            let question = Question {
                emulate: Some(platform),
                asked: Some(backend.name),
                kv_cache_dtype: dtype,
                head_dim: HEAD_DIM,
                block_tokens: None,
                per_head_scales: false,
            };
            let Ok(choice) = choose(&question) else { continue };
            let phases = [Phase::Prefill, Phase::Decode];
            let arithmetics =
                VARIANTS.iter().flat_map(|variants| phases.map(|phase| choice.arithmetic(variants, phase)));
            // f64 sums are the yardstick, not something to measure.
            let measured = arithmetics.filter(|arithmetic| arithmetic.accumulator != Accumulator::F64);
            taken.extend(measured.map(|arithmetic| (choice.backend.name, at_scale_one(arithmetic))));
        }
    }
    taken
}

/// Both settings of each variant.
const VARIANTS: [Variants; 2] = [
    Variants { triton_p_scale: 1, fa3_two_level_accumulation: false, own: Arithmetic::BF16 },
    Variants { triton_p_scale: 256, fa3_two_level_accumulation: true, own: Arithmetic::BF16 },
];

/// Heads here are stored at scale 1, and a factor of 1 is the same wherever it is multiplied in.
fn at_scale_one(mut arithmetic: Arithmetic) -> Arithmetic {
    if arithmetic.scaling == KvScaling::Outside {
        arithmetic.scaling = KvScaling::Decoded;
    }
    arithmetic
}

/// What differs from BF16 arithmetic.
fn in_short(arithmetic: &Arithmetic) -> String {
    let mut parts: Vec<String> = Vec::new();
    match arithmetic.query {
        QueryRounding::Fp8 { .. } => parts.push("Q fp8".into()),
        QueryRounding::F32 => parts.push("Q f32".into()),
        QueryRounding::Bf16 => {}
    }
    match arithmetic.weights {
        WeightRounding::Fp8 { scale } => parts.push(format!("P·{scale} fp8")),
        WeightRounding::F32 => parts.push("P f32".into()),
        WeightRounding::Bf16 => {}
    }
    if let Accumulator::Short { two_level } = arithmetic.accumulator {
        parts.push(if two_level { "two levels" } else { "one register" }.into());
    }
    if arithmetic.scaling == KvScaling::PerKey {
        parts.push("scales on P".into());
    }
    if arithmetic.truncating_codec {
        parts.push("cut".into());
    }
    if parts.is_empty() { "BF16".into() } else { parts.join(", ") }
}

impl Subject {
    /// The head's K and V as this subject stores them.
    pub(super) fn store(&self, head: &Head) -> Result<StoredKv, UnknownDtype> {
        if !self.arithmetic.truncating_codec {
            return StoredKv::new(self.dtype, head.head_dim, &head.k, &head.v);
        }
        // What is cut to a value of the codec already is stored as it is.
        let format = if self.dtype == "fp8_e5m2" { E5M2 } else { E4M3 };
        let cut = |values: &[f32]| values.iter().map(|value| format.cut(*value)).collect::<Vec<_>>();
        StoredKv::new(self.dtype, head.head_dim, &cut(&head.k), &cut(&head.v))
    }
}

/// An 8-bit floating-point format (OCP 8-bit floating point specification 1.0).
struct Float8 {
    /// Mantissa bits that f32 has and this has not.
    surplus_bits: u32,
    largest: f32,
    smallest_normal: f32,
    /// Also the distance of two values below the smallest normal one.
    smallest: f32,
}

const E4M3: Float8 = Float8 { surplus_bits: 20, largest: 448.0, smallest_normal: 1.0 / 64.0, smallest: 1.0 / 512.0 };
const E5M2: Float8 =
    Float8 { surplus_bits: 21, largest: 57_344.0, smallest_normal: 1.0 / 16_384.0, smallest: 1.0 / 65_536.0 };

impl Float8 {
    /// The nearest value toward zero.
    fn cut(&self, value: f32) -> f32 {
        if value.abs() < self.smallest_normal {
            return (value / self.smallest).trunc() * self.smallest;
        }
        let bits = value.to_bits() >> self.surplus_bits << self.surplus_bits;
        f32::from_bits(bits).clamp(-self.largest, self.largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cutting_goes_toward_zero_and_what_is_cut_passes_the_codec() {
        for (value, cut) in
            [(1.1249, 1.0), (-1.9, -1.875), (1000.0, 448.0), (0.0029, 0.001_953_125), (-0.001, 0.0), (0.3, 0.28125)]
        {
            assert_eq!(E4M3.cut(value), cut, "{value}");
        }
        for (value, cut) in [(1.249, 1.0), (-1.9, -1.75), (1e6, 57_344.0), (2e-5, 1.0 / 65_536.0), (0.3, 0.25)] {
            assert_eq!(E5M2.cut(value), cut, "{value}");
        }
        for (dtype, format) in [("fp8_e4m3", E4M3), ("fp8_e5m2", E5M2)] {
            let values: Vec<f32> = (0..64).map(|i| format.cut((i as f32 - 31.5) * 0.37)).collect();
            let head =
                Head { head_dim: 64, softmax_scale: 0.125, q: vec![0.0; 64], k: values.clone(), v: values.clone() };
            let subject = Subject { kind: CODEC, name: String::new(), dtype, arithmetic: Arithmetic::F32 };
            let stored = subject.store(&head).unwrap();
            let out = kvgauge::engine::attention::simulate(&subject.arithmetic, &head.q, 64, &stored, 1, 0.125);
            assert_eq!(out, values, "{dtype}");
        }
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
