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
use kvgauge::engine::{BACKENDS, EngineOptions, Fault, KvScaleSource, Mechanism, Platform, ScaleGranularity};
use kvgauge::hint::{Hint, did_you_mean};
use kvgauge::setup::{Arm, ArmRole};
use kvgauge::tokenizer::Tokenizer;
use kvgauge::units::parse_bytes;
use serde::{Deserialize, Deserializer};

use crate::failure::Failure;
use crate::output::note;

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
    #[serde(deserialize_with = "number_or_text")]
    pub(crate) triton_p_scale: Option<String>,
    /// Whether FA3 adds each key block's sum into a true f32 [default: on]
    #[arg(long, value_enum, value_name = "on|off")]
    #[serde(deserialize_with = "switch_or_boolean")]
    pub(crate) fa3_two_level_accumulation: Option<Switch>,
    /// Static scales of the candidates: none, checkpoint, random, calibrate:FILE.jsonl [default: none]
    #[arg(long, value_name = "SOURCE", env = "KVGAUGE_KV_SCALES", hide_env_values = true)]
    pub(crate) kv_scales: Option<String>,
    /// One scale per layer (tensor) or per KV head (head) [default: tensor]
    #[arg(long, value_enum, value_name = "WHAT")]
    pub(crate) kv_scale_granularity: Option<Granularity>,
    /// Layers that the candidates keep at the model's dtype: indices, or sliding_window
    #[arg(long, value_name = "LAYER,...", value_delimiter = ',')]
    #[serde(deserialize_with = "list_of_numbers_or_texts")]
    pub(crate) kv_cache_dtype_skip_layers: Option<Vec<String>>,
    /// Randomized Hadamard rotation of int4_per_token_head [default: on]
    #[arg(long, value_enum, value_name = "on|off")]
    #[serde(deserialize_with = "switch_or_boolean")]
    pub(crate) int4_rotation: Option<Switch>,
    /// Mechanisms switched on in the candidates: query_fp8, p_fp8, p_fp8_256, short_accumulator, two_level_accumulator, truncating_codec
    #[arg(long, value_name = "MECHANISM,...", value_delimiter = ',')]
    #[serde(deserialize_with = "list_of_numbers_or_texts")]
    pub(crate) mechanisms: Option<Vec<String>>,
    /// Faults planted in the candidates, to try the instrument: k_noise=DB, v_noise=DB, kv_noise=DB, key_bias=X, key_bias@LAYER=X
    #[arg(long, value_name = "FAULT,...", value_delimiter = ',')]
    #[serde(deserialize_with = "list_of_numbers_or_texts")]
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

/// A value in TOML as people write it: `triton_p_scale = 1`, `kv_cache_dtype_skip_layers = [0, 2]` or `"0,2"`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, a text or a list of these")]
enum Loose {
    Number(i64),
    Text(String),
    List(Vec<Loose>),
}

impl Loose {
    fn texts(self) -> Vec<String> {
        match self {
            Self::Number(number) => vec![number.to_string()],
            Self::Text(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
            Self::List(items) => items.into_iter().flat_map(Self::texts).collect(),
        }
    }
}

fn number_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<Loose>::deserialize(from)?.map(|value| value.texts().join(",")))
}

fn list_of_numbers_or_texts<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<String>>, D::Error> {
    Ok(Option::<Loose>::deserialize(from)?.map(Loose::texts))
}

fn switch_or_boolean<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Switch>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected \"on\", \"off\", true or false")]
    enum Value {
        Boolean(bool),
        Switch(Switch),
    }
    Ok(Option::<Value>::deserialize(from)?.map(|value| match value {
        Value::Boolean(true) => Switch::On,
        Value::Boolean(false) => Switch::Off,
        Value::Switch(switch) => switch,
    }))
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
    #[error("there is no attention backend `{found}`")]
    Backend { found: String },
    #[error("--kv-cache-dtype-skip-layers: `{found}` is neither the index of a layer nor `sliding_window`")]
    SkipLayer { found: String },
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
            Self::Backend { found } => {
                let names: Vec<&str> = BACKENDS.iter().map(|backend| backend.name).collect();
                return vec![did_you_mean(found, &names), "`kvgauge list backends` shows all".into()];
            }
            Self::SkipLayer { .. } => "layers are counted from 0: `0,1,29`",
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
        let faults = faults.iter().map(|fault| fault.trim().parse()).collect::<Result<Vec<Fault>, _>>()?;
        let attention_backend = first(&args.attention_backend, &file.attention_backend);
        known_backend(attention_backend.as_deref())?;
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
            attention_backend,
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
            skip_layers: canonical_layers(parsed(first(
                &args.kv_cache_dtype_skip_layers,
                &file.kv_cache_dtype_skip_layers,
            )))?,
            int4_rotation: is_on(first(&args.int4_rotation, &file.int4_rotation)),
            mechanisms,
            faults: canonical_faults(faults),
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
        Arm { name: legal_name(name), attention_backend: backend, settings, ..arm }
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

    /// The arms of a list of dtypes: each `DTYPE` or `DTYPE@BACKEND` once, whatever it is called, and none that is the
    /// baseline itself.
    pub(crate) fn candidates(&self, dtypes: &[String], baseline: &Arm) -> Result<Vec<Arm>, Failure> {
        let mut arms: Vec<Arm> = Vec::new();
        for text in dtypes {
            let (dtype, backend) = match text.split_once('@') {
                Some((dtype, backend)) => (dtype, Some(backend.to_owned())),
                None => (text.as_str(), None),
            };
            codec(dtype)?;
            known_backend(backend.as_deref())?;
            let arm = Arm { name: text.clone(), attention_backend: backend, ..Arm::candidate(dtype) };
            let arm = self.applied_to(arm);
            match std::iter::once(baseline).chain(&arms).find(|other| asks_the_same(other, &arm)) {
                None => arms.push(arm),
                Some(other) if other.name == arm.name => {}
                Some(other) => note(&format!("`{text}` is `{}` under another name and is measured once", other.name)),
            }
        }
        let concerns_rotation = arms.iter().any(|arm| arm.settings.contains_key("int4_rotation"));
        if !self.int4_rotation && !concerns_rotation {
            note("--int4-rotation off changes nothing: no candidate is int4_per_token_head");
        }
        Ok(arms)
    }
}

/// Whether two arms are the same request, whatever their names and the spelling of their dtypes.
fn asks_the_same(left: &Arm, right: &Arm) -> bool {
    let name = |arm: &Arm| codec(&arm.kv_cache_dtype).map(|codec| codec.name()).ok();
    name(left) == name(right) && left.attention_backend == right.attention_backend && left.settings == right.settings
}

fn known_backend(name: Option<&str>) -> Result<(), EngineOptionError> {
    match name {
        Some(found) if BACKENDS.iter().all(|backend| backend.name != found) => {
            Err(EngineOptionError::Backend { found: found.into() })
        }
        _ => Ok(()),
    }
}

/// Indices in order, each once and in one spelling; `sliding_window` behind them.
fn canonical_layers(given: Vec<String>) -> Result<Vec<String>, EngineOptionError> {
    const WINDOWED: &str = "sliding_window";
    let mut indices: Vec<u32> = Vec::new();
    for found in given.iter().map(|text| text.trim()).filter(|text| *text != WINDOWED) {
        indices.push(found.parse().map_err(|_| EngineOptionError::SkipLayer { found: found.into() })?);
    }
    indices.sort_unstable();
    indices.dedup();
    let windowed = given.iter().any(|text| text.trim() == WINDOWED).then(|| WINDOWED.to_owned());
    Ok(indices.iter().map(u32::to_string).chain(windowed).collect())
}

/// Faults in one order, each once; the same noise on K and on V is `kv_noise`.
fn canonical_faults(mut faults: Vec<Fault>) -> Vec<Fault> {
    let noise = |keys, values, snr_db| Fault::Noise { keys, values, snr_db };
    let on_keys: Vec<f32> = faults
        .iter()
        .filter_map(|fault| match fault {
            Fault::Noise { keys: true, values: false, snr_db } => Some(*snr_db),
            _ => None,
        })
        .collect();
    for snr_db in on_keys {
        if faults.contains(&noise(false, true, snr_db)) {
            faults.retain(|fault| ![noise(true, false, snr_db), noise(false, true, snr_db)].contains(fault));
            faults.push(noise(true, true, snr_db));
        }
    }
    faults.sort_by_key(Fault::to_string);
    faults.dedup();
    faults
}

/// Longest name of an arm; with `.partial` and the like behind it a folder's name may be 255 bytes on every file system.
const MAX_NAME_BYTES: usize = 120;

/// A long name is cut and ends in a hash of the whole, so that different arms keep different names.
fn legal_name(name: String) -> String {
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    let hash = blake3_of(std::slice::from_ref(&name));
    format!("{}-{}", &name[..name.floor_char_boundary(MAX_NAME_BYTES - 9)], &hash[..8])
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
    fn one_request_has_one_arm_whatever_it_is_called() {
        let of = |layers: &[&str], faults: &[&str]| {
            settings(EngineArgs {
                kv_cache_dtype_skip_layers: Some(list(layers)),
                kv_fault: Some(list(faults)),
                ..EngineArgs::default()
            })
        };
        let usual = of(&["0", "2"], &["k_noise=10", "v_noise=10"]);
        assert_eq!(usual, of(&["2", " 0", "00", "2"], &["v_noise=10", "k_noise=10"]));
        assert_eq!(usual, of(&["0", "2"], &["kv_noise=10"]));
        assert_ne!(usual, of(&["0", "2"], &["k_noise=10", "v_noise=12"]));
        let error = EngineSettings::new(
            &EngineArgs { kv_cache_dtype_skip_layers: Some(list(&["first"])), ..EngineArgs::default() },
            &EngineArgs::default(),
        );
        assert!(error.unwrap_err().to_string().contains("`first` is neither"));
        let plain = settings(EngineArgs::default());
        let baseline = plain.applied_to(Arm::baseline("bfloat16"));
        let names = list(&["fp8", "fp8_e4m3", "auto", "bfloat16", "fp8@NATIVE", "fp8_e4m3@NATIVE"]);
        let arms = plain.candidates(&names, &baseline).unwrap();
        assert_eq!(arms.iter().map(|arm| arm.name.as_str()).collect::<Vec<_>>(), ["fp8", "fp8@NATIVE"]);
        assert!(plain.candidates(&list(&["fp8@../evil"]), &baseline).is_err());
        let long = of(&[], &["key_bias=1e38", "key_bias@1=1e-38", "key_bias@2=-1e38", "k_noise=10", "v_noise=20"]);
        let name = &long.candidates(&list(&["fp8"]), &baseline).unwrap()[0].name;
        assert!(name.len() <= MAX_NAME_BYTES && name.starts_with("fp8+"), "{name}");
    }

    #[test]
    fn the_file_takes_numbers_lists_and_booleans_as_people_write_them() {
        let read = |text: &str| toml::from_str::<EngineArgs>(text);
        let written = read(
            "triton_p_scale = 1\nfa3_two_level_accumulation = false\nkv_cache_dtype_skip_layers = [0, \"sliding_window\"]",
        );
        let written = written.unwrap();
        assert_eq!(written.triton_p_scale.as_deref(), Some("1"));
        assert_eq!(written.fa3_two_level_accumulation, Some(Switch::Off));
        assert_eq!(written.kv_cache_dtype_skip_layers, Some(list(&["0", "sliding_window"])));
        let written =
            read("kv_cache_dtype_skip_layers = \"0,2\"\nint4_rotation = \"off\"\nmechanisms = \"p_fp8\"").unwrap();
        assert_eq!(written.kv_cache_dtype_skip_layers, Some(list(&["0", "2"])));
        assert_eq!((written.int4_rotation, written.mechanisms), (Some(Switch::Off), Some(list(&["p_fp8"]))));
        assert!(read("int4_rotation = 3").unwrap_err().message().contains("true or false"));
        assert_eq!(read("").unwrap(), EngineArgs::default());
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
