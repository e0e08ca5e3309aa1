//! What an engine is asked for, and what is then in effect.

use std::fmt;
use std::str::FromStr;

/// How to run a model.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// A codec's name or an alias: `auto`, `fp8`.
    pub kv_cache_dtype: String,
    /// Layers kept at the model's dtype: indices as text, or `sliding_window` for all layers that have one.
    pub kv_cache_dtype_skip_layers: Vec<String>,
    /// Where static scales come from.
    pub kv_scales: KvScaleSource,
    /// One scale per layer or one per layer and KV head.
    pub kv_scale_granularity: ScaleGranularity,
    /// Randomized Hadamard rotation of `int4_per_token_head`.
    pub int4_rotation: bool,
    /// Whose choice of backend and whose arithmetic; `None` is the engine's own, `NATIVE`.
    pub emulate: Option<Platform>,
    /// A backend's name; `None` leaves the choice to the platform's rules.
    pub attention_backend: Option<String>,
    /// Factor on the softmax weights before their cast to fp8 in `TRITON_ATTN`: 1 (vLLM up to 0.31) or 256.
    pub triton_p_scale: u32,
    /// Whether FA3 adds the partial sum of each key block into a true f32.
    pub fa3_two_level_accumulation: bool,
    /// Mechanisms switched on over the backend's arithmetic.
    pub mechanisms: Vec<Mechanism>,
    /// Planted faults, for tests of the instrument.
    pub faults: Vec<Fault>,
    /// A kernel's name; `None` takes the best one of this machine.
    pub kernel: Option<String>,
    /// Threads; 0 takes all cores.
    pub threads: usize,
    /// Tokens per forward pass of a prompt; a multiple of [`KEY_BLOCK`](crate::engine::kernels::KEY_BLOCK).
    pub prefill_chunk: usize,
    /// Bytes of the cache. `None` grows on demand up to half of the machine's memory.
    pub kv_cache_memory: Option<u64>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            kv_cache_dtype: "auto".into(),
            kv_cache_dtype_skip_layers: Vec::new(),
            kv_scales: KvScaleSource::None,
            kv_scale_granularity: ScaleGranularity::Tensor,
            int4_rotation: true,
            emulate: None,
            attention_backend: None,
            triton_p_scale: 256,
            fa3_two_level_accumulation: true,
            mechanisms: Vec::new(),
            faults: Vec::new(),
            kernel: None,
            threads: 0,
            prefill_chunk: 512,
            kv_cache_memory: None,
        }
    }
}

/// Where static scales come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum KvScaleSource {
    /// 1.0 everywhere, what a serving engine does without calibration.
    #[default]
    None,
    /// The checkpoint's `k_scale` and `v_scale`.
    Checkpoint,
    /// The largest magnitudes over random tokens.
    Random,
    /// The largest magnitudes over these prompts, as token ids.
    Calibrate(Vec<Vec<u32>>),
}

/// What one static scale covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleGranularity {
    /// K or V of a layer.
    #[default]
    Tensor,
    /// K or V of one KV head of a layer.
    Head,
}

/// Hardware whose backend choice and arithmetic are imitated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// A100.
    Sm80,
    /// L4, L40S, RTX 4090.
    Sm89,
    /// H100, H200.
    Sm90,
    /// B200.
    Sm100,
    /// vLLM on a CPU.
    Cpu,
}

/// One way in which a backend's attention differs from exact arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mechanism {
    /// Q is cast to e4m3.
    QueryFp8,
    /// Softmax weights are cast to e4m3 as they are: those under 2⁻¹⁰ vanish.
    ProbabilityFp8,
    /// Softmax weights are cast to e4m3 after multiplication by 256.
    ProbabilityFp8Scaled,
    /// P·V is summed in a register of 13 mantissa bits over the whole context.
    ShortAccumulator,
    /// The same, but each key block's sum is added into a true f32.
    TwoLevelAccumulator,
    /// The codec cuts toward zero instead of rounding to nearest.
    TruncatingCodec,
}

/// A planted fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// A constant vector added to the keys before RoPE, as large key biases do: every 8th dimension gets `magnitude`.
    KeyBias {
        /// One layer, or all.
        layer: Option<usize>,
        /// Added to K.
        magnitude: f32,
    },
    /// Gaussian noise on stored rows, deterministic in layer, head and position.
    Noise {
        /// On K.
        keys: bool,
        /// On V.
        values: bool,
        /// Signal-to-noise ratio of each row in decibels.
        snr_db: f32,
    },
}

/// A name or number that an option does not know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} `{found}`; known: {known}")]
pub struct OptionError {
    /// `platform`, `mechanism`, `fault`.
    pub what: &'static str,
    /// As given.
    pub found: String,
    /// What there is.
    pub known: String,
}

impl Platform {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 5] =
        [(Self::Sm80, "sm80"), (Self::Sm89, "sm89"), (Self::Sm90, "sm90"), (Self::Sm100, "sm100"), (Self::Cpu, "cpu")];
}

impl Mechanism {
    /// All, with their names.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::QueryFp8, "query_fp8"),
        (Self::ProbabilityFp8, "p_fp8"),
        (Self::ProbabilityFp8Scaled, "p_fp8_256"),
        (Self::ShortAccumulator, "short_accumulator"),
        (Self::TwoLevelAccumulator, "two_level_accumulator"),
        (Self::TruncatingCodec, "truncating_codec"),
    ];
}

fn by_name<T: Copy>(what: &'static str, all: &[(T, &'static str)], text: &str) -> Result<T, OptionError> {
    let found = all.iter().find(|(_, name)| *name == text).map(|(value, _)| *value);
    let known = || all.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| OptionError { what, found: text.into(), known: known() })
}

fn name_of<T: Copy + PartialEq>(all: &[(T, &'static str)], value: T) -> &'static str {
    all.iter().find(|(each, _)| *each == value).map(|(_, name)| *name).expect("every value is in its table")
}

impl FromStr for Platform {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        by_name("platform", &Self::ALL, text)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::ALL, *self))
    }
}

impl FromStr for Mechanism {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        by_name("mechanism", &Self::ALL, text)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(&Self::ALL, *self))
    }
}

/// `key_bias=40`, `key_bias@3=40` (layer 3), `k_noise=12`, `v_noise=12`, `kv_noise=12` (dB).
impl FromStr for Fault {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let known = "key_bias=MAGNITUDE, key_bias@LAYER=MAGNITUDE, k_noise=DB, v_noise=DB, kv_noise=DB";
        let unknown = || OptionError { what: "fault", found: text.into(), known: known.into() };
        let (kind, number) = text.split_once('=').ok_or_else(unknown)?;
        let number: f32 = number.parse().ok().filter(|number: &f32| number.is_finite()).ok_or_else(unknown)?;
        let noise = |keys, values| Self::Noise { keys, values, snr_db: number };
        Ok(match kind {
            "key_bias" => Self::KeyBias { layer: None, magnitude: number },
            "k_noise" => noise(true, false),
            "v_noise" => noise(false, true),
            "kv_noise" => noise(true, true),
            _ => {
                let layer = kind.strip_prefix("key_bias@").and_then(|layer| layer.parse().ok()).ok_or_else(unknown)?;
                Self::KeyBias { layer: Some(layer), magnitude: number }
            }
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::KeyBias { layer: None, magnitude } => write!(f, "key_bias={magnitude}"),
            Self::KeyBias { layer: Some(layer), magnitude } => write!(f, "key_bias@{layer}={magnitude}"),
            Self::Noise { keys, values, snr_db } => {
                let (k, v) = (if keys { "k" } else { "" }, if values { "v" } else { "" });
                write!(f, "{k}{v}_noise={snr_db}")
            }
        }
    }
}

/// What is in effect.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedEngine {
    /// The codec, aliases resolved.
    pub kv_cache_dtype: String,
    /// The attention backend: `NATIVE`, `FLASH_ATTN`, ...
    pub attention_backend: String,
    /// What that backend computes, in words, with the mechanisms switched on.
    pub arithmetic: String,
    /// Backends that the platform would rather have taken, each with the reasons against it.
    pub passed_over: Vec<PassedOver>,
    /// The kernel's name.
    pub kernel: String,
    /// How scales come about.
    pub scales: String,
    /// What each layer stores.
    pub layers: Vec<StoredLayer>,
    /// Bytes of cache per token, scales included.
    pub bytes_per_token: f64,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Blocks in the budget.
    pub n_block: usize,
    /// Tokens in the budget.
    pub n_token: usize,
}

/// A backend that was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Its name.
    pub backend: String,
    /// vLLM's reasons: `kv_cache_dtype not supported`.
    pub reasons: Vec<String>,
}

/// What one layer of the cache stores.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredLayer {
    /// The codec's name.
    pub kv_cache_dtype: String,
    /// Static scales of K: one, or one per KV head; empty where there is none.
    pub k_scales: Vec<f32>,
    /// Static scales of V.
    pub v_scales: Vec<f32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for (platform, name) in Platform::ALL {
            assert_eq!((name.parse(), platform.to_string().as_str()), (Ok(platform), name));
        }
        for (mechanism, name) in Mechanism::ALL {
            assert_eq!((name.parse(), mechanism.to_string().as_str()), (Ok(mechanism), name));
        }
        for fault in ["key_bias=40", "key_bias@3=-2.5", "k_noise=12", "v_noise=0", "kv_noise=-3"] {
            assert_eq!(fault.parse::<Fault>().unwrap().to_string(), fault);
        }
    }

    #[test]
    fn unknown_names_list_what_there_is() {
        let message = "sm70".parse::<Platform>().unwrap_err().to_string();
        assert!(message.contains("`sm70`") && message.contains("sm80, sm89, sm90, sm100, cpu"), "{message}");
        for fault in ["", "k_noise", "k_noise=loud", "key_bias@x=1", "noise=3", "k_noise=inf"] {
            assert!(fault.parse::<Fault>().is_err(), "{fault}");
        }
    }
}
