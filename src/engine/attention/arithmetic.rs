//! What one attention head is computed in: the rounding of its operands and the register that sums its values.

use std::fmt;

use crate::engine::options::Mechanism;

/// The arithmetic of one attention head. Scores are always sums in f32 of exact products (f64 in [`Self::REFERENCE`]), the
/// sum of a row's softmax weights is taken in f32 before they are rounded, and keys are walked in blocks of
/// [`KEY_BLOCK`](crate::engine::kernels::KEY_BLOCK) with a running maximum, as `FlashAttention` does (arXiv 2205.14135).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arithmetic {
    /// Q before QKᵀ. Unless it is f32, K and V are rounded to BF16 too, which codes of 8 bits pass unchanged.
    pub query: QueryRounding,
    /// The softmax weights P before P·V.
    pub weights: WeightRounding,
    /// The register that sums P·V.
    pub accumulator: Accumulator,
    /// Where the scales of a quantized cache are multiplied in.
    pub scaling: KvScaling,
    /// The cache cuts toward zero instead of rounding to nearest; acts where K and V are stored.
    pub truncating_codec: bool,
}

/// What Q is rounded to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueryRounding {
    /// Not at all.
    F32,
    /// To nearest even.
    Bf16,
    /// `cast(q / scale)` to e4m3, saturating at 448; the scores are multiplied by `scale`.
    Fp8 {
        /// The query scale; serving engines use 1.0 unless the checkpoint has one.
        scale: f32,
    },
}

/// What a softmax weight in (0, 1], relative to the running maximum, is rounded to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightRounding {
    /// Not at all.
    F32,
    /// To nearest even.
    Bf16,
    /// `cast(p · scale)` to e4m3; the output is divided by `scale`.
    Fp8 {
        /// 1: weights under 2⁻¹⁰ vanish; 256: those under 2⁻¹⁸ do.
        scale: f32,
    },
}

/// The register that sums P·V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accumulator {
    /// True f32.
    F32,
    /// f64, by naive loops: the oracle.
    F64,
    /// The register of Hopper's fp8 tensor cores, which keeps about 14 bits (DeepSeek-V3, arXiv 2412.19437, 3.3.2).
    ///
    /// Model: the products of a step of 32 keys are summed exactly enough (f32), added to the register, and the result is cut
    /// toward zero to 13 mantissa bits. The hardware cuts each product after alignment to the largest exponent of the step;
    /// cutting only the sum is the milder of the two, so the damage shown is a lower bound.
    Short {
        /// A fresh register per key block, whose sum is added into a true f32; else one register over the whole context, in
        /// which the rescaling of the online softmax happens as well.
        two_level: bool,
    },
}

/// Where the scales of a quantized cache are multiplied in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvScaling {
    /// Into K and V while decoding, before they are rounded.
    Decoded,
    /// K's into the scores, V's into the output: one scale for all keys of a head.
    Outside,
    /// K's into the scores, V's into the weights before their rounding: one scale per key.
    PerKey,
}

/// A prompt's pass or the step of one new token: some backends use different kernels for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Many queries per sequence.
    Prefill,
    /// One query per sequence.
    Decode,
}

/// Two mechanisms that exclude each other, or one that a backend cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MechanismError {
    /// Both set the same part of the arithmetic.
    #[error("mechanisms `{first}` and `{second}` contradict each other")]
    Contradiction {
        /// One.
        first: Mechanism,
        /// The other.
        second: Mechanism,
    },
    /// The oracle has no rounding that could be replaced.
    #[error("mechanism `{mechanism}` cannot be switched on over REFERENCE, whose sums are exact")]
    Exact {
        /// As asked for.
        mechanism: Mechanism,
    },
}

impl Arithmetic {
    /// Q, K, V and P in BF16, sums in f32: `FlashAttention` 2, and what bf16 kernels compute themselves.
    pub const BF16: Self = Self {
        query: QueryRounding::Bf16,
        weights: WeightRounding::Bf16,
        accumulator: Accumulator::F32,
        scaling: KvScaling::Decoded,
        truncating_codec: false,
    };

    /// All of it in f32, what f32 kernels compute themselves.
    pub const F32: Self = Self { query: QueryRounding::F32, weights: WeightRounding::F32, ..Self::BF16 };

    /// f32 operands, f64 sums.
    pub const REFERENCE: Self = Self { accumulator: Accumulator::F64, ..Self::F32 };

    /// Everything in fp8 as on Hopper: Q in e4m3, P · 256 in e4m3, a short accumulator.
    pub const FA3_FP8: Self = Self {
        query: QueryRounding::Fp8 { scale: 1.0 },
        weights: WeightRounding::Fp8 { scale: 256.0 },
        accumulator: Accumulator::Short { two_level: true },
        scaling: KvScaling::Outside,
        truncating_codec: false,
    };

    /// This arithmetic with mechanisms switched on, each replacing the part that it names.
    ///
    /// # Errors
    /// If two of them replace the same part, or if there is nothing to replace because sums are exact.
    pub fn with(mut self, mechanisms: &[Mechanism]) -> Result<Self, MechanismError> {
        const EXCLUSIVE: [(Mechanism, Mechanism); 2] = [
            (Mechanism::ProbabilityFp8, Mechanism::ProbabilityFp8Scaled),
            (Mechanism::ShortAccumulator, Mechanism::TwoLevelAccumulator),
        ];
        for (first, second) in EXCLUSIVE {
            if mechanisms.contains(&first) && mechanisms.contains(&second) {
                return Err(MechanismError::Contradiction { first, second });
            }
        }
        for mechanism in mechanisms {
            if self.accumulator == Accumulator::F64 && *mechanism != Mechanism::TruncatingCodec {
                return Err(MechanismError::Exact { mechanism: *mechanism });
            }
            match mechanism {
                Mechanism::QueryFp8 => self.query = QueryRounding::Fp8 { scale: 1.0 },
                Mechanism::ProbabilityFp8 => self.weights = WeightRounding::Fp8 { scale: 1.0 },
                Mechanism::ProbabilityFp8Scaled => self.weights = WeightRounding::Fp8 { scale: 256.0 },
                Mechanism::ShortAccumulator => self.accumulator = Accumulator::Short { two_level: false },
                Mechanism::TwoLevelAccumulator => self.accumulator = Accumulator::Short { two_level: true },
                Mechanism::TruncatingCodec => self.truncating_codec = true,
            }
        }
        Ok(self)
    }

    /// Whether attention computes the same from the same cache; how the cache was written does not matter.
    pub(in crate::engine) fn attends_like(&self, other: &Self) -> bool {
        Self { truncating_codec: other.truncating_codec, ..*self } == *other
    }
}

/// In words, for the record.
impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.query {
            QueryRounding::F32 => f.write_str("Q, K and V in f32")?,
            QueryRounding::Bf16 => f.write_str("Q, K and V in BF16")?,
            QueryRounding::Fp8 { scale: 1.0 } => f.write_str("Q in e4m3")?,
            QueryRounding::Fp8 { scale } => write!(f, "Q / {scale} in e4m3")?,
        }
        match self.weights {
            WeightRounding::F32 => f.write_str(", P in f32")?,
            WeightRounding::Bf16 => f.write_str(", P in BF16")?,
            WeightRounding::Fp8 { scale: 1.0 } => f.write_str(", P in e4m3 without a scale")?,
            WeightRounding::Fp8 { scale } => write!(f, ", P · {scale} in e4m3")?,
        }
        f.write_str(match self.accumulator {
            Accumulator::F32 => ", sums in f32",
            Accumulator::F64 => ", sums in f64",
            Accumulator::Short { two_level: true } => ", P·V in 13 mantissa bits per block of 64 keys, then f32",
            Accumulator::Short { two_level: false } => ", P·V in 13 mantissa bits over the whole context",
        })?;
        f.write_str(match self.scaling {
            KvScaling::Decoded => "",
            KvScaling::Outside => ", scales of K and V on scores and output",
            KvScaling::PerKey => ", scales of K and V on scores and P",
        })?;
        if self.truncating_codec { f.write_str(", cache cut toward zero") } else { Ok(()) }
    }
}
