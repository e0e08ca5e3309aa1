//! Options of the embedded engine: what each arm is asked for beyond its dtype, and how that is recorded.
//!
//! Platform, backend and its arithmetic hold for every arm, the baseline's included. Scales, skipped layers, mechanisms and
//! planted faults are what is under test: they hold for the candidates alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use kvgauge::engine::kv_cache::codec::codec;
use kvgauge::engine::{EngineOptions, Fault, KvScaleSource, Mechanism, Platform, ScaleGranularity};
use kvgauge::hint::Hint;
use kvgauge::setup::{Arm, ArmRole};
use kvgauge::tokenizer::Tokenizer;
use kvgauge::units::parse_bytes;
use serde::Deserialize;

use crate::failure::Failure;

/// A calibration set is some hundred prompts.
const MAX_CALIBRATION_BYTES: u64 = 64 << 20;
const MAX_CALIBRATION_PROMPTS: usize = 4096;
/// Ids of one prompt that are used: scales settle long before.
const MAX_CALIBRATION_TOKENS: usize = 8192;

/// The options, as given on the command line, in the environment or under `[engine]` in `kvgauge.toml`.
#[derive(Args, Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct EngineArgs {
    /// Choose backend and arithmetic as vLLM does there: none, sm80, sm89, sm90, sm100, cpu [default: none]
    #[arg(long, value_name = "PLATFORM", env = "KVGAUGE_EMULATE", hide_env_values = true)]
    pub(crate) emulate: Option<String>,
    /// Attention backend of every arm; see `kvgauge list backends` [default: the platform's choice]
    #[arg(long, value_name = "BACKEND", env = "KVGAUGE_ATTENTION_BACKEND", hide_env_values = true)]
    pub(crate) attention_backend: Option<String>,
    /// Factor on softmax weights before TRITON_ATTN casts them to fp8: 1 (vLLM up to 0.31) or 256 [default: 256]
    #[arg(long, value_name = "1|256", hide_env_values = true, value_parser = ["1", "256"])]
    pub(crate) triton_p_scale: Option<String>,
    /// Whether FA3 adds each key block's sum into a true f32 [default: on]
    #[arg(long, value_enum, value_name = "on|off")]
    pub(crate) fa3_two_level_accumulation: Option<Switch>,
    /// Static scales of the candidates: none, checkpoint, random, calibrate:FILE.jsonl [default: none]
    #[arg(long, value_name = "SOURCE", env = "KVGAUGE_KV_SCALES", hide_env_values = true)]
    pub(crate) kv_scales: Option<String>,
    /// One scale per layer (tensor) or per KV head (head) [default: tensor]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) kv_scale_granularity: Option<Granularity>,
    /// Layers that the candidates keep at the model's dtype: indices, or sliding_window
    #[arg(long, value_name = "LAYER,...", value_delimiter = ',')]
    pub(crate) kv_cache_dtype_skip_layers: Option<Vec<String>>,
    /// Randomized Hadamard rotation of int4_per_token_head [default: on]
    #[arg(long, value_enum, value_name = "on|off")]
    pub(crate) int4_rotation: Option<Switch>,
    /// Mechanisms switched on in the candidates: query_fp8, p_fp8, p_fp8_256, short_accumulator, two_level_accumulator, truncating_codec
    #[arg(long, value_name = "MECHANISM,...", value_delimiter = ',')]
    pub(crate) mechanisms: Option<Vec<String>>,
    /// Faults planted in the candidates, to try the instrument: k_noise=DB, v_noise=DB, kv_noise=DB, key_bias=X, key_bias@LAYER=X
    #[arg(long, value_name = "FAULT,...", value_delimiter = ',')]
    pub(crate) kv_fault: Option<Vec<String>>,
    /// Memory of the KV cache: 4GiB, 512MiB [default: half of the machine's, taken as needed]
    #[arg(long, value_name = "SIZE", env = "KVGAUGE_KV_CACHE_MEMORY", hide_env_values = true)]
    pub(crate) kv_cache_memory: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Granularity {
    /// K or V of a layer
    Tensor,
    /// K or V of one KV head
    Head,
}

/// Keys of `[engine]`.
pub(crate) const ENGINE_KEYS: &[&str] = &[
    "emulate",
    "attention_backend",
    "triton_p_scale",
    "fa3_two_level_accumulation",
    "kv_scales",
    "kv_scale_granularity",
    "kv_cache_dtype_skip_layers",
    "int4_rotation",
    "mechanisms",
    "kv_fault",
    "kv_cache_memory",
];

/// Why an option cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineOptionError {
    #[error("--kv-cache-memory `{found}` is no size")]
    Memory { found: String },
    #[error("--triton-p-scale `{found}` is neither 1 nor 256")]
    PScale { found: String },
    #[error("--kv-scales `{found}` is no source of scales")]
    Scales { found: String },
    #[error("calibration file `{}`: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("calibration file `{}` {problem}", path.display())]
    Calibration { path: PathBuf, problem: String },
    #[error("the model has no tokenizer, which `--kv-scales calibrate` needs")]
    NoTokenizer,
}

impl Hint for EngineOptionError {
    fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Memory { .. } => "a number with KiB, MiB or GiB: `4GiB`",
            Self::PScale { .. } => "1 is what vLLM did up to 0.31, 256 since",
            Self::Scales { .. } => "known: none, checkpoint, random, calibrate:FILE.jsonl",
            Self::Read { .. } => "one JSON value per line, as in `--kv-scales calibrate:prompts.jsonl`",
            Self::Calibration { .. } => {
                "each line is a JSON string, or an object with `text`, `prompt`, `input` or `messages`"
            }
            Self::NoTokenizer => "use `--kv-scales random`, which needs none",
        };
        vec![hint.into()]
    }
}

/// One value per option.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EngineSettings {
    pub(crate) emulate: Option<Platform>,
    pub(crate) attention_backend: Option<String>,
    triton_p_scale: u32,
    fa3_two_level_accumulation: bool,
    kv_scales: Scales,
    granularity: ScaleGranularity,
    skip_layers: Vec<String>,
    int4_rotation: bool,
    mechanisms: Vec<Mechanism>,
    faults: Vec<Fault>,
    kv_cache_memory: Option<u64>,
}

/// Where scales come from, before a tokenizer is at hand.
#[derive(Clone, Debug, PartialEq)]
enum Scales {
    None,
    Checkpoint,
    Random,
    Calibrate { prompts: Vec<String>, hash: String },
}

impl EngineSettings {
    /// Options beat the file.
    pub(crate) fn new(args: &EngineArgs, file: &EngineArgs) -> Result<Self, Failure> {
        fn first<T: Clone>(option: &Option<T>, file: &Option<T>) -> Option<T> {
            option.as_ref().or(file.as_ref()).cloned()
        }
        let parsed = |texts: Option<Vec<String>>| texts.unwrap_or_default();
        let emulate = first(&args.emulate, &file.emulate).filter(|platform| platform != "none");
        let mechanisms = parsed(first(&args.mechanisms, &file.mechanisms));
        let mut mechanisms: Vec<Mechanism> = mechanisms.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        mechanisms.sort_unstable();
        mechanisms.dedup();
        let faults = parsed(first(&args.kv_fault, &file.kv_fault));
        let p_scale = first(&args.triton_p_scale, &file.triton_p_scale);
        let triton_p_scale = match p_scale.as_deref() {
            None | Some("256") => 256,
            Some("1") => 1,
            Some(found) => return Err(EngineOptionError::PScale { found: found.into() }.into()),
        };
        let memory = first(&args.kv_cache_memory, &file.kv_cache_memory);
        let kv_cache_memory = match memory {
            None => None,
            Some(found) => Some(parse_bytes(&found).ok_or(EngineOptionError::Memory { found })?),
        };
        let is_on = |switch: Option<Switch>| switch != Some(Switch::Off);
        Ok(Self {
            emulate: emulate.map(|name| name.parse()).transpose()?,
            attention_backend: first(&args.attention_backend, &file.attention_backend),
            triton_p_scale,
            fa3_two_level_accumulation: is_on(first(
                &args.fa3_two_level_accumulation,
                &file.fa3_two_level_accumulation,
            )),
            kv_scales: Scales::read(first(&args.kv_scales, &file.kv_scales).as_deref().unwrap_or("none"))?,
            granularity: match first(&args.kv_scale_granularity, &file.kv_scale_granularity) {
                Some(Granularity::Head) => ScaleGranularity::Head,
                Some(Granularity::Tensor) | None => ScaleGranularity::Tensor,
            },
            skip_layers: parsed(first(&args.kv_cache_dtype_skip_layers, &file.kv_cache_dtype_skip_layers)),
            int4_rotation: is_on(first(&args.int4_rotation, &file.int4_rotation)),
            mechanisms,
            faults: faults.iter().map(|fault| fault.parse()).collect::<Result<_, _>>()?,
            kv_cache_memory,
        })
    }

    /// Whether nothing but defaults was asked for.
    pub(crate) fn is_plain(&self) -> bool {
        let plain = Arm::candidate("int4_per_token_head");
        self.applied_to(plain.clone()) == plain
    }

    /// What the engine of `arm` is built with; `base` has kernel and threads.
    pub(crate) fn options(
        &self,
        arm: &Arm,
        base: &EngineOptions,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<EngineOptions, Failure> {
        let shared = EngineOptions {
            kv_cache_dtype: arm.kv_cache_dtype.clone(),
            emulate: self.emulate,
            attention_backend: arm.attention_backend.clone(),
            triton_p_scale: self.triton_p_scale,
            fa3_two_level_accumulation: self.fa3_two_level_accumulation,
            kv_cache_memory: self.kv_cache_memory,
            ..base.clone()
        };
        if arm.role != ArmRole::Candidate {
            return Ok(shared);
        }
        Ok(EngineOptions {
            kv_cache_dtype_skip_layers: self.skip_layers.clone(),
            kv_scales: self.kv_scales.source(tokenizer)?,
            kv_scale_granularity: self.granularity,
            int4_rotation: self.int4_rotation,
            mechanisms: self.mechanisms.clone(),
            faults: self.faults.clone(),
            ..shared
        })
    }

    /// `arm` with what is asked of it beyond its dtype, as it is recorded.
    pub(crate) fn applied_to(&self, arm: Arm) -> Arm {
        let mut settings = self.shared_settings();
        let backend = arm.attention_backend.clone().or_else(|| self.attention_backend.clone());
        let mut name = arm.name.clone();
        if arm.role == ArmRole::Candidate {
            for (key, value, tag) in self.candidate_settings(&arm.kv_cache_dtype) {
                settings.insert(key.into(), value);
                name = format!("{name}+{}", tag.replace(['/', '\\', ':', ','], "-"));
            }
        }
        Arm { name, attention_backend: backend, settings, ..arm }
    }

    fn shared_settings(&self) -> BTreeMap<String, String> {
        let mut settings = BTreeMap::new();
        let mut add = |key: &str, value: Option<String>| {
            settings.extend(value.map(|value| (key.to_owned(), value)));
        };
        add("emulate", self.emulate.map(|platform| platform.to_string()));
        add("triton_p_scale", (self.triton_p_scale != 256).then(|| self.triton_p_scale.to_string()));
        add("fa3_two_level_accumulation", (!self.fa3_two_level_accumulation).then(|| "off".into()));
        add("kv_cache_memory", self.kv_cache_memory.map(|bytes| bytes.to_string()));
        settings
    }

    /// Key, value, and the word that sets the arm's name apart.
    fn candidate_settings(&self, dtype: &str) -> Vec<(&'static str, String, String)> {
        let joined = |items: Vec<String>| items.join(",");
        let mut settings = Vec::new();
        match &self.kv_scales {
            Scales::None => {}
            Scales::Checkpoint => settings.push(("kv_scales", "checkpoint".into(), "scales_checkpoint".into())),
            Scales::Random => settings.push(("kv_scales", "random".into(), "scales_random".into())),
            Scales::Calibrate { hash, .. } => {
                settings.push(("kv_scales", format!("calibrate:{hash}"), format!("scales_{}", &hash[..8])));
            }
        }
        if self.granularity == ScaleGranularity::Head {
            settings.push(("kv_scale_granularity", "head".into(), "per_head".into()));
        }
        if !self.skip_layers.is_empty() {
            let layers = joined(self.skip_layers.clone());
            settings.push(("kv_cache_dtype_skip_layers", layers.clone(), format!("skip_{layers}")));
        }
        if !self.int4_rotation && dtype.starts_with("int4") {
            settings.push(("int4_rotation", "off".into(), "no_rotation".into()));
        }
        if !self.mechanisms.is_empty() {
            let names = joined(self.mechanisms.iter().map(Mechanism::to_string).collect());
            settings.push(("mechanisms", names.clone(), names));
        }
        if !self.faults.is_empty() {
            let faults = joined(self.faults.iter().map(Fault::to_string).collect());
            settings.push(("kv_fault", faults.clone(), faults));
        }
        settings
    }

    /// The arms of a list of dtypes: each `DTYPE` or `DTYPE@BACKEND` once, and none that is the baseline itself.
    pub(crate) fn candidates(&self, dtypes: &[String], baseline: &Arm) -> Result<Vec<Arm>, Failure> {
        let mut arms: Vec<Arm> = Vec::new();
        for text in dtypes {
            let (dtype, backend) = match text.split_once('@') {
                Some((dtype, backend)) => (dtype, Some(backend.to_owned())),
                None => (text.as_str(), None),
            };
            codec(dtype)?;
            let arm = Arm { name: text.clone(), attention_backend: backend, ..Arm::candidate(dtype) };
            let arm = self.applied_to(arm);
            if arm.name != baseline.name && arms.iter().all(|other| other.name != arm.name) {
                arms.push(arm);
            }
        }
        Ok(arms)
    }
}

impl Scales {
    fn read(text: &str) -> Result<Self, EngineOptionError> {
        match text {
            "none" => Ok(Self::None),
            "checkpoint" => Ok(Self::Checkpoint),
            "random" => Ok(Self::Random),
            other => {
                let path = other.strip_prefix("calibrate:").filter(|path| !path.is_empty());
                read_prompts(Path::new(path.ok_or_else(|| EngineOptionError::Scales { found: other.into() })?))
            }
        }
    }

    fn source(&self, tokenizer: Option<&Tokenizer>) -> Result<KvScaleSource, Failure> {
        Ok(match self {
            Self::None => KvScaleSource::None,
            Self::Checkpoint => KvScaleSource::Checkpoint,
            Self::Random => KvScaleSource::Random,
            Self::Calibrate { prompts, .. } => {
                let tokenizer = tokenizer.ok_or(EngineOptionError::NoTokenizer)?;
                let ids = prompts.iter().map(|prompt| {
                    let mut ids = tokenizer.encode(prompt, true)?;
                    ids.truncate(MAX_CALIBRATION_TOKENS);
                    Ok::<_, Failure>(ids)
                });
                KvScaleSource::Calibrate(ids.collect::<Result<_, _>>()?)
            }
        })
    }
}

fn read_prompts(path: &Path) -> Result<Scales, EngineOptionError> {
    let read = |source| EngineOptionError::Read { path: path.into(), source };
    let broken = |problem: String| EngineOptionError::Calibration { path: path.into(), problem };
    let mut text = String::new();
    File::open(path).map_err(read)?.take(MAX_CALIBRATION_BYTES + 1).read_to_string(&mut text).map_err(read)?;
    if text.len() as u64 > MAX_CALIBRATION_BYTES {
        return Err(broken(format!("is larger than {MAX_CALIBRATION_BYTES} bytes")));
    }
    let mut prompts = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value = serde_json::from_str(line).map_err(|error| broken(format!("line {}: {error}", index + 1)))?;
        let prompt = prompt_of(&value).filter(|prompt| !prompt.is_empty());
        prompts.push(prompt.ok_or_else(|| broken(format!("line {} holds no text", index + 1)))?);
    }
    if prompts.is_empty() || prompts.len() > MAX_CALIBRATION_PROMPTS {
        return Err(broken(format!("has {} prompts, expected 1 to {MAX_CALIBRATION_PROMPTS}", prompts.len())));
    }
    let hash = blake3_of(&prompts);
    Ok(Scales::Calibrate { prompts, hash })
}

fn blake3_of(prompts: &[String]) -> String {
    let parts: Vec<&str> = prompts.iter().map(String::as_str).collect();
    kvgauge::rng::hash_name(&parts).to_hex().to_string()
}

fn prompt_of(value: &serde_json::Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.into());
    }
    let field = ["text", "prompt", "input"].into_iter().find_map(|key| value.get(key)?.as_str());
    if let Some(text) = field {
        return Some(text.into());
    }
    let messages = value.get("messages")?.as_array()?;
    let contents: Vec<&str> = messages.iter().filter_map(|message| message.get("content")?.as_str()).collect();
    Some(contents.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(args: EngineArgs) -> EngineSettings {
        EngineSettings::new(&args, &EngineArgs::default()).unwrap()
    }

    fn list(items: &[&str]) -> Vec<String> {
        items.iter().map(|item| (*item).to_string()).collect()
    }

    #[test]
    fn without_options_arms_are_named_by_their_dtype_and_have_no_settings() {
        let plain = settings(EngineArgs::default());
        let baseline = plain.applied_to(Arm::baseline("bfloat16"));
        let arms = plain.candidates(&list(&["bfloat16", "fp8", "fp8", "int8_per_token_head"]), &baseline).unwrap();
        assert_eq!(arms, [Arm::candidate("fp8"), Arm::candidate("int8_per_token_head")]);
        let options = plain.options(&arms[0], &EngineOptions::default(), None).unwrap();
        assert_eq!(options, EngineOptions { kv_cache_dtype: "fp8".into(), ..EngineOptions::default() });
    }

    #[test]
    fn what_is_under_test_holds_for_candidates_alone_and_is_in_their_names() {
        let tested = settings(EngineArgs {
            emulate: Some("sm90".into()),
            kv_scales: Some("random".into()),
            kv_cache_dtype_skip_layers: Some(list(&["0", "sliding_window"])),
            kv_fault: Some(list(&["k_noise=12"])),
            ..EngineArgs::default()
        });
        let baseline = tested.applied_to(Arm::baseline("bfloat16"));
        assert_eq!((baseline.name.as_str(), baseline.settings.len()), ("bfloat16", 1));
        let arms = tested.candidates(&list(&["fp8", "bfloat16", "bfloat16@FLASHINFER"]), &baseline).unwrap();
        assert_eq!(arms[0].name, "fp8+scales_random+skip_0-sliding_window+k_noise=12");
        assert_eq!(arms[2].attention_backend.as_deref(), Some("FLASHINFER"));
        assert_eq!(arms.len(), 3, "a damaged copy of the baseline is a candidate");
        let base = EngineOptions::default();
        let options = tested.options(&baseline, &base, None).unwrap();
        assert_eq!((options.emulate, options.faults.len()), (Some(Platform::Sm90), 0));
        assert_eq!(options.kv_scales, KvScaleSource::None);
        let options = tested.options(&arms[0], &base, None).unwrap();
        assert_eq!((options.faults.len(), options.kv_scales), (1, KvScaleSource::Random));
    }

    #[test]
    fn prompts_are_read_from_every_usual_shape_of_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines =
            "\"one\"\n{\"prompt\": \"two\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"three\"}]}\n";
        std::fs::write(file.path(), lines).unwrap();
        let Scales::Calibrate { prompts, .. } = Scales::read(&format!("calibrate:{}", file.path().display())).unwrap()
        else {
            panic!("a calibration")
        };
        assert_eq!(prompts, ["one", "two", "three"]);
        std::fs::write(file.path(), "\"one\"\n{\"n\": 3}\n").unwrap();
        let error = read_prompts(file.path()).unwrap_err();
        assert!(error.to_string().contains("line 2 holds no text"), "{error}");
        assert!(Scales::read("calibrate:").is_err() && Scales::read("magic").is_err());
        assert!(matches!(Scales::read("calibrate:/no/such/file"), Err(EngineOptionError::Read { .. })));
    }
}
