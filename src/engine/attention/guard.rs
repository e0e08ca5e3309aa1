//! Which backend a platform takes for a cache and a model, and why not another: the rules and the words of vLLM 0.33.
//!
//! Deliberately not imitated: only dense causal attention of BF16 models exists here, so the reasons about multi-head latent
//! attention, sinks, sparsity or parallelism never arise; `FLASHINFER` counts as installed; a CPU counts as one with AVX-512;
//! and a CPU backend asked for on a GPU is refused for its compute capability.

use crate::engine::attention::arithmetic::{Arithmetic, MechanismError, Phase};
use crate::engine::attention::{
    BACKENDS, cpu_attn, flash_attn, flashinfer, flex_attention, native, reference, triton_attn, turboquant,
};
use crate::engine::kv_cache::codec::{self, UnknownDtype};
use crate::engine::options::{PassedOver, Platform};

/// A backend: which caches and models it takes, and what it computes.
pub struct Backend {
    /// vLLM's name, or `NATIVE` and `REFERENCE`.
    pub name: &'static str,
    /// One line for lists.
    pub about: &'static str,
    /// Positions per cache block that it prefers.
    pub block_tokens: usize,
    /// What the selection checks.
    pub(in crate::engine) support: fn(&Setting) -> Support,
    /// What it finds out itself after it was selected.
    pub(in crate::engine) refusal: fn(&Setting) -> Option<String>,
    /// The arithmetic of a setting that it supports.
    pub(in crate::engine) arithmetic: fn(&Setting, &Variants, Phase) -> Arithmetic,
}

/// What a backend is selected for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Emulated hardware.
    pub platform: Option<Platform>,
    /// The codec's name, aliases resolved.
    pub kv_cache_dtype: &'static str,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions per cache block, if asked for; else the backend decides.
    pub block_tokens: Option<usize>,
    /// Static scales per head instead of per tensor.
    pub per_head_scales: bool,
}

/// What a backend's arithmetic depends on beside the setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Variants {
    /// Factor on P before `TRITON_ATTN` casts it: 1 or 256.
    pub triton_p_scale: u32,
    /// Whether FA3 adds each key block's sum into a true f32.
    pub fa3_two_level_accumulation: bool,
    /// What the kernel of this machine computes by itself.
    pub own: Arithmetic,
}

/// What the selection checks, in the order of its reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    pub(in crate::engine) head_size: bool,
    pub(in crate::engine) kv_cache_dtype: bool,
    pub(in crate::engine) block_size: bool,
    pub(in crate::engine) per_head_scales: bool,
    pub(in crate::engine) compute_capability: bool,
    /// What is wrong with the setting as a whole.
    pub(in crate::engine) combination: Option<&'static str>,
}

impl Support {
    /// No objection.
    pub(in crate::engine) const ALL: Self = Self {
        head_size: true,
        kv_cache_dtype: true,
        block_size: true,
        per_head_scales: true,
        compute_capability: true,
        combination: None,
    };

    /// vLLM's reasons; empty if there is no objection.
    fn reasons(&self) -> Vec<String> {
        let checks = [
            (self.head_size, "head_size not supported"),
            (self.kv_cache_dtype, "kv_cache_dtype not supported"),
            (self.block_size, "block_size not supported"),
            (self.per_head_scales, "per-head quant scales not supported"),
            (self.compute_capability, "compute capability not supported"),
        ];
        let failed = checks.iter().filter(|(passed, _)| !passed).map(|(_, reason)| *reason);
        failed.chain(self.combination).map(str::to_owned).collect()
    }
}

impl Setting {
    /// Whether K and V are stored in 16 bits.
    pub(in crate::engine) fn is_16_bit(&self) -> bool {
        matches!(self.kv_cache_dtype, "bfloat16" | "float16")
    }

    /// Whether they are fp8 codes with static scales.
    pub(in crate::engine) fn is_static_fp8(&self) -> bool {
        matches!(self.kv_cache_dtype, "fp8_e4m3" | "fp8_e5m2")
    }

    /// Whether a block size was asked for that is no multiple of `unit`.
    pub(in crate::engine) fn block_is_multiple_of(&self, unit: usize) -> bool {
        self.block_tokens.is_none_or(|tokens| tokens > 0 && tokens.is_multiple_of(unit))
    }
}

/// What is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Whose rules; `None` is the engine's own.
    pub emulate: Option<Platform>,
    /// A backend's name.
    pub asked: Option<&'a str>,
    /// A codec's name or an alias.
    pub kv_cache_dtype: &'a str,
    /// Width of a head.
    pub head_dim: usize,
    /// Positions per cache block, if asked for.
    pub block_tokens: Option<usize>,
    /// Static scales per head; of no consequence for caches without static scales.
    pub per_head_scales: bool,
}

/// The backend in effect.
#[derive(Clone)]
pub struct Choice {
    /// The backend.
    pub backend: &'static Backend,
    /// Those that were preferred and could not be taken.
    pub passed_over: Vec<PassedOver>,
    /// What it was chosen for.
    pub setting: Setting,
}

/// Why no backend could be taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GuardError {
    /// No such backend.
    #[error("unknown attention backend `{name}`")]
    Unknown {
        /// As asked for.
        name: String,
    },
    /// A serving engine's backend without its hardware.
    #[error("attention backend {name} exists only on an emulated platform")]
    NotEmulated {
        /// As asked for.
        name: &'static str,
    },
    /// Asked for and disqualified.
    #[error(
        "Selected backend AttentionBackendEnum.{name} is not valid for this configuration. Reason: [{}]",
        quoted(.reasons)
    )]
    Invalid {
        /// As asked for.
        name: &'static str,
        /// Why not.
        reasons: Vec<String>,
        /// Backends that would do.
        valid: Vec<&'static str>,
    },
    /// Not asked for, and none of the platform's backends does.
    #[error("No valid attention backend found for cuda with {configuration}. Reasons: {{{}}}.", listed(.reasons))]
    NoneValid {
        /// In vLLM's words.
        configuration: String,
        /// Why none does.
        reasons: Vec<PassedOver>,
    },
    /// Selected, and then refused by the backend itself.
    #[error("{message}")]
    Refused {
        /// The backend.
        name: &'static str,
        /// In vLLM's words.
        message: String,
        /// Backends that would do.
        valid: Vec<&'static str>,
    },
    /// No such cache.
    #[error(transparent)]
    Dtype(#[from] UnknownDtype),
    /// Mechanisms that cannot be.
    #[error(transparent)]
    Mechanism(#[from] MechanismError),
    /// A factor that no release of vLLM has.
    #[error("scale {found} of P in TRITON_ATTN: must be 1 or 256")]
    WeightScale {
        /// As asked for.
        found: u32,
    },
}

fn quoted(reasons: &[String]) -> String {
    reasons.iter().map(|reason| format!("'{reason}'")).collect::<Vec<_>>().join(", ")
}

fn listed(reasons: &[PassedOver]) -> String {
    let each = reasons.iter().map(|over| format!("{}: [{}]", over.backend, over.reasons.join(", ")));
    each.collect::<Vec<_>>().join(", ")
}

impl GuardError {
    /// What to do about it, most useful first; one line each.
    pub fn hints(&self) -> Vec<String> {
        let names = |backends: &[&str]| backends.join(", ");
        let platforms: Vec<&str> = Platform::ALL.iter().map(|(_, name)| *name).collect();
        match self {
            Self::Unknown { .. } => {
                let known: Vec<&str> = BACKENDS.iter().map(|backend| backend.name).collect();
                vec![format!("known: {}", names(&known))]
            }
            Self::NotEmulated { .. } => vec![
                format!("give the platform to emulate: {}", names(&platforms)),
                format!("without one there are {} and {}", native::BACKEND.name, reference::BACKEND.name),
            ],
            Self::Invalid { valid, .. } | Self::Refused { valid, .. } if valid.is_empty() => {
                vec!["no backend of this platform takes this cache: `bfloat16` works everywhere".into()]
            }
            Self::Invalid { valid, .. } | Self::Refused { valid, .. } => {
                vec![format!("valid here: {}; without a name the platform's rules choose", names(valid))]
            }
            Self::NoneValid { .. } => vec![
                "a `bfloat16` cache works on every platform".into(),
                format!("{} and {} take every cache, if asked for", native::BACKEND.name, reference::BACKEND.name),
            ],
            Self::Mechanism(MechanismError::Contradiction { .. }) => vec!["switch on one of the two".into()],
            Self::Mechanism(MechanismError::Exact { .. }) => {
                vec![format!("switch it on over {}, or over a platform's backend", native::BACKEND.name)]
            }
            Self::WeightScale { .. } => vec!["vLLM up to 0.31 has 1, later ones have 256".into()],
            Self::Dtype(_) => Vec::new(),
        }
    }
}

/// Backends of GPUs, best first.
static GPU_ORDER: &[&Backend] = &[
    &flash_attn::BACKEND,
    &flashinfer::BACKEND,
    &triton_attn::BACKEND,
    &flex_attention::BACKEND,
    &turboquant::BACKEND,
];
/// The same on SM100.
static SM100_ORDER: &[&Backend] = &[
    &flashinfer::BACKEND,
    &flash_attn::BACKEND,
    &triton_attn::BACKEND,
    &flex_attention::BACKEND,
    &turboquant::BACKEND,
];
static CPU_ORDER: &[&Backend] = &[&cpu_attn::BACKEND];

/// Backends of a platform, best first.
fn order(platform: Platform) -> &'static [&'static Backend] {
    match platform {
        Platform::Sm80 | Platform::Sm89 | Platform::Sm90 => GPU_ORDER,
        Platform::Sm100 => SM100_ORDER,
        Platform::Cpu => CPU_ORDER,
    }
}

/// The backend for `question`.
///
/// # Errors
/// If a backend asked for by name is unknown or disqualified, or if the platform has none that does. Only a CPU replaces a
/// name by its own backend, as vLLM does there, and that is recorded as passed over.
pub fn choose(question: &Question<'_>) -> Result<Choice, GuardError> {
    let kv_cache_dtype = codec::codec(question.kv_cache_dtype)?.name();
    let mut setting = Setting {
        platform: question.emulate,
        kv_cache_dtype,
        head_dim: question.head_dim,
        block_tokens: question.block_tokens,
        per_head_scales: question.per_head_scales,
    };
    setting.per_head_scales &= setting.is_static_fp8();
    let asked = question.asked.map(named).transpose()?;
    let chosen = |backend, passed_over| Ok(Choice { backend, passed_over, setting });
    let is_own = |backend: &Backend| [native::BACKEND.name, reference::BACKEND.name].contains(&backend.name);
    match (question.emulate, asked) {
        (_, Some(backend)) if is_own(backend) => chosen(backend, Vec::new()),
        (None, None) => chosen(&native::BACKEND, Vec::new()),
        (None, Some(backend)) => Err(GuardError::NotEmulated { name: backend.name }),
        (Some(Platform::Cpu), asked) => {
            let replaced = asked.filter(|backend| backend.name != cpu_attn::BACKEND.name);
            let reason = |name| format!("Cannot use AttentionBackendEnum.{name} backend on CPU.");
            let passed_over = replaced
                .map(|backend| PassedOver { backend: backend.name.into(), reasons: vec![reason(backend.name)] });
            accept(&cpu_attn::BACKEND, &setting)?;
            chosen(&cpu_attn::BACKEND, passed_over.into_iter().collect())
        }
        (Some(_), Some(backend)) => {
            accept(backend, &setting)?;
            chosen(backend, Vec::new())
        }
        (Some(platform), None) => {
            let mut passed_over = Vec::new();
            for backend in order(platform).iter().copied() {
                let reasons = (backend.support)(&setting).reasons();
                if reasons.is_empty() {
                    accept(backend, &setting)?;
                    return chosen(backend, passed_over);
                }
                passed_over.push(PassedOver { backend: backend.name.into(), reasons });
            }
            let configuration = configuration(question, &setting);
            Err(GuardError::NoneValid { configuration, reasons: passed_over })
        }
    }
}

fn named(name: &str) -> Result<&'static Backend, GuardError> {
    let found = BACKENDS.iter().copied().find(|backend| backend.name == name);
    found.ok_or_else(|| GuardError::Unknown { name: name.into() })
}

/// An error if `backend` is disqualified for `setting`, or refuses it itself.
fn accept(backend: &'static Backend, setting: &Setting) -> Result<(), GuardError> {
    let valid = || {
        let others = setting.platform.map_or(&[][..], order).iter();
        let fits =
            |other: &&&Backend| (other.support)(setting).reasons().is_empty() && (other.refusal)(setting).is_none();
        others.filter(fits).map(|other| other.name).collect()
    };
    // The CPU platform selects nothing: its backend alone knows what it takes, in its own words.
    if setting.platform == Some(Platform::Cpu)
        && let Some(message) = (backend.refusal)(setting)
    {
        return Err(GuardError::Refused { name: backend.name, message, valid: valid() });
    }
    let reasons = (backend.support)(setting).reasons();
    if !reasons.is_empty() {
        return Err(GuardError::Invalid { name: backend.name, reasons, valid: valid() });
    }
    match (backend.refusal)(setting) {
        Some(message) => Err(GuardError::Refused { name: backend.name, message, valid: valid() }),
        None => Ok(()),
    }
}

/// What the selection was asked, as vLLM prints it.
fn configuration(question: &Question<'_>, setting: &Setting) -> String {
    let block_size = setting.block_tokens.map_or("None".into(), |tokens| tokens.to_string());
    let per_head = if setting.per_head_scales { "True" } else { "False" };
    format!(
        "AttentionSelectorConfig(head_size={}, dtype=torch.bfloat16, kv_cache_dtype={}, block_size={block_size}, \
         use_mla=False, has_sink=False, use_sparse=False, use_per_head_quant_scales={per_head})",
        setting.head_dim, question.kv_cache_dtype
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kv_cache::codec::known_dtypes;

    /// Heads of 128: what each platform takes by itself, and after the slash the initials of those that may be asked for by
    /// name: F `FLASH_ATTN`, I `FLASHINFER`, T `TRITON_ATTN`, X `FLEX_ATTENTION`. `-` is an error.
    const TABLE: &str = "
        dtype               sm80             sm89             sm90             sm100            cpu
        auto                FLASH_ATTN/FITX  FLASH_ATTN/FITX  FLASH_ATTN/FITX  FLASHINFER/FITX  CPU_ATTN
        bfloat16            FLASH_ATTN/FITX  FLASH_ATTN/FITX  FLASH_ATTN/FITX  FLASHINFER/FITX  CPU_ATTN
        float16             FLASH_ATTN/FITX  FLASH_ATTN/FITX  FLASH_ATTN/FITX  FLASHINFER/FITX  CPU_ATTN
        float32             -/               -/               -/               -/               -
        fp8                 FLASHINFER/I     FLASHINFER/IT    FLASH_ATTN/FIT   FLASHINFER/FIT   CPU_ATTN
        fp8_e4m3            FLASHINFER/I     FLASHINFER/IT    FLASH_ATTN/FIT   FLASHINFER/FIT   CPU_ATTN
        fp8_e5m2            FLASHINFER/I     FLASHINFER/IT    FLASHINFER/IT    FLASHINFER/IT    CPU_ATTN
        int8_per_token_head TRITON_ATTN/T    TRITON_ATTN/T    TRITON_ATTN/T    TRITON_ATTN/T    -
        fp8_per_token_head  -/               TRITON_ATTN/T    TRITON_ATTN/T    TRITON_ATTN/T    -
        int4_per_token_head TRITON_ATTN/T    TRITON_ATTN/T    TRITON_ATTN/T    TRITON_ATTN/T    -
    ";

    fn question(emulate: Platform, kv_cache_dtype: &str) -> Question<'_> {
        Question {
            emulate: Some(emulate),
            asked: None,
            kv_cache_dtype,
            head_dim: 128,
            block_tokens: None,
            per_head_scales: false,
        }
    }

    fn name(question: &Question<'_>) -> &'static str {
        choose(question).map_or("-", |choice| choice.backend.name)
    }

    #[test]
    fn every_platform_dtype_and_backend_resolves_as_written() {
        let mut rows =
            TABLE.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).filter(|row| !row.is_empty());
        let header = rows.next().unwrap();
        let rows: Vec<_> = rows.collect();
        for dtype in known_dtypes() {
            let row = rows.iter().find(|row| row[0] == dtype).unwrap_or_else(|| panic!("{dtype} is not in the table"));
            for (platform, cell) in header.iter().zip(row).skip(1) {
                let question = question(platform.parse().unwrap(), dtype);
                let (automatic, by_name) = cell.split_once('/').unwrap_or((cell, ""));
                assert_eq!(name(&question), automatic, "{dtype} on {platform}");
                for backend in BACKENDS {
                    let found = name(&Question { asked: Some(backend.name), ..question });
                    let initial = match backend.name {
                        "FLASH_ATTN" => "F",
                        "FLASHINFER" => "I",
                        "TRITON_ATTN" => "T",
                        "FLEX_ATTENTION" => "X",
                        _ => "?",
                    };
                    let expected = match backend.name {
                        "NATIVE" | "REFERENCE" => backend.name,
                        _ if *platform == "cpu" => automatic,
                        name if by_name.contains(initial) => name,
                        _ => "-",
                    };
                    assert_eq!(found, expected, "{dtype} on {platform}, asked for {}", backend.name);
                }
            }
        }
    }

    #[test]
    fn without_emulation_there_are_only_the_engines_own() {
        for backend in BACKENDS {
            let asked = Some(backend.name);
            let found = choose(&Question { emulate: None, asked, ..question(Platform::Cpu, "fp8") });
            match backend.name {
                "NATIVE" | "REFERENCE" => assert_eq!(found.map(|choice| choice.backend.name).ok(), asked),
                name => {
                    let error = found.err().unwrap();
                    assert_eq!(error, GuardError::NotEmulated { name });
                    assert!(error.hints()[0].contains("sm80, sm89, sm90, sm100, cpu"));
                }
            }
        }
        let unasked = Question { emulate: None, ..question(Platform::Cpu, "int8_per_token_head") };
        assert_eq!(name(&unasked), "NATIVE");
        let error = choose(&Question { asked: Some("flash_attn"), ..unasked }).err().unwrap();
        assert!(error.to_string().contains("`flash_attn`") && error.hints()[0].contains("FLASH_ATTN"));
    }

    #[test]
    fn errors_and_reasons_are_in_the_words_of_the_engine() {
        let fp8_reason = "FP8 KV cache requires FA3 on SM90, FA4 with head_size=512 on SM90, or FA4 on SM100";
        let fp8 = question(Platform::Sm89, "fp8");
        let error = choose(&Question { asked: Some("FLASH_ATTN"), ..fp8 }).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this configuration. \
                 Reason: ['kv_cache_dtype not supported', '{fp8_reason}']"
            )
        );
        assert!(error.hints()[0].contains("valid here: FLASHINFER, TRITON_ATTN"), "{:?}", error.hints());
        let passed_over = choose(&fp8).map(|choice| choice.passed_over).unwrap();
        let reasons = vec!["kv_cache_dtype not supported".to_string(), fp8_reason.to_string()];
        assert_eq!(passed_over, [PassedOver { backend: "FLASH_ATTN".into(), reasons }]);

        let error = choose(&question(Platform::Sm90, "float32")).err().unwrap().to_string();
        let unsupported = "[kv_cache_dtype not supported]";
        let all = ["FLASH_ATTN", "FLASHINFER", "TRITON_ATTN", "FLEX_ATTENTION", "TURBOQUANT"]
            .map(|name| format!("{name}: {unsupported}"));
        assert_eq!(
            error,
            format!(
                "No valid attention backend found for cuda with AttentionSelectorConfig(head_size=128, dtype=torch.bfloat16, \
                 kv_cache_dtype=float32, block_size=None, use_mla=False, has_sink=False, use_sparse=False, \
                 use_per_head_quant_scales=False). Reasons: {{{}}}.",
                all.join(", ")
            )
        );
    }

    #[test]
    fn a_cpu_replaces_the_name_and_says_so() {
        let bf16 = question(Platform::Cpu, "bfloat16");
        let choice = choose(&Question { asked: Some("FLASH_ATTN"), ..bf16 }).unwrap();
        assert_eq!((choice.backend.name, choice.backend.block_tokens), ("CPU_ATTN", 32));
        let reasons = vec!["Cannot use AttentionBackendEnum.FLASH_ATTN backend on CPU.".to_string()];
        assert_eq!(choice.passed_over, [PassedOver { backend: "FLASH_ATTN".into(), reasons }]);
        assert!(choose(&Question { asked: Some("CPU_ATTN"), ..bf16 }).unwrap().passed_over.is_empty());

        let error = choose(&question(Platform::Cpu, "int8_per_token_head")).err().unwrap();
        let words = "--kv-cache-dtype int8_per_token_head is not supported by the CPU attention backend on this host.";
        assert_eq!(error.to_string(), words);
        let error = choose(&Question { head_dim: 80, ..question(Platform::Cpu, "fp8") }).err().unwrap();
        assert_eq!(error.to_string(), "FP8 KV cache requires head_size divisible by 32 on CPU.");
        assert_eq!(name(&Question { head_dim: 80, ..bf16 }), "CPU_ATTN");
        assert_eq!(name(&Question { head_dim: 72, ..bf16 }), "-");
    }

    #[test]
    fn heads_blocks_and_scales_disqualify_too() {
        let fp8 = |platform| question(platform, "fp8");
        let sized = |head_dim, question| Question { head_dim, ..question };
        assert_eq!(name(&sized(80, fp8(Platform::Sm89))), "TRITON_ATTN", "FLASHINFER has no heads of 80");
        let refused = choose(&sized(80, fp8(Platform::Sm80))).err().unwrap().to_string();
        assert!(refused.contains("Triton attention backend on") && refused.contains("requires SM89+"), "{refused}");
        assert_eq!(name(&sized(16, question(Platform::Sm80, "bfloat16"))), "FLASH_ATTN");
        assert_eq!(name(&sized(20, question(Platform::Sm80, "bfloat16"))), "FLEX_ATTENTION");
        assert_eq!(name(&sized(512, question(Platform::Sm80, "bfloat16"))), "FLASHINFER");
        assert_eq!(name(&sized(512, fp8(Platform::Sm90))), "FLASH_ATTN");
        assert_eq!(name(&sized(320, fp8(Platform::Sm90))), "TRITON_ATTN");

        let per_head = |platform| Question { per_head_scales: true, ..fp8(platform) };
        assert_eq!(name(&per_head(Platform::Sm90)), "FLASH_ATTN");
        assert_eq!(name(&per_head(Platform::Sm100)), "FLASH_ATTN");
        let error = choose(&per_head(Platform::Sm89)).err().unwrap().to_string();
        assert!(error.contains("FLASHINFER: [per-head quant scales not supported]"), "{error}");
        let baseline = Question { per_head_scales: true, ..question(Platform::Sm89, "bfloat16") };
        assert_eq!(name(&baseline), "FLASH_ATTN", "a 16-bit cache has no scales");

        let blocks = |block_tokens, question| Question { block_tokens: Some(block_tokens), ..question };
        assert_eq!(name(&blocks(128, question(Platform::Sm100, "bfloat16"))), "FLASHINFER");
        assert_eq!(name(&blocks(48, question(Platform::Sm100, "bfloat16"))), "FLASH_ATTN");
        assert_eq!(name(&blocks(128, fp8(Platform::Sm89))), "TRITON_ATTN");
        let error = choose(&blocks(8, question(Platform::Sm90, "bfloat16"))).err().unwrap().to_string();
        assert!(error.contains("block_size=8") && error.contains("FLASH_ATTN: [block_size not supported]"), "{error}");
    }
}
