//! vLLM 0.6 … 0.33: bodies of messages, whatever prefix a version, a worker or a container puts before them.

mod backend;
mod capacity;
mod dtype;
mod start;

use std::sync::LazyLock;

use regex::Regex;

use crate::serving::startup_log::draft::Draft;
use crate::serving::startup_log::{Dialect, LogLine, group, note_starts, option, pattern};

pub(super) const DIALECT: Dialect = Dialect {
    engine: "vllm",
    signatures: &[
        "LLM engine (v",
        "vLLM API server version",
        "non-default args: ",
        "data type to store kv cache",
        "KV cache size: ",
        "Maximum concurrency for ",
        "Available KV cache memory: ",
        "attention backend out of potential backends",
        "backend out of potential backends",
        "Using AttentionBackendEnum.",
        "backend on V1 engine",
        "AttentionSelectorConfig(",
        "vLLM environment variable",
        "Falling back to V0",
        "the current vLLM instance",
        "# GPU blocks: ",
        "# cuda blocks: ",
        "# CPU blocks: ",
        "CPU backend doesn't support ",
        "Default vLLM sampling parameters",
    ],
    marks: &["(EngineCore", "(APIServer", "GPU KV cache usage: "],
    phrases: &[
        "args: Namespace(",
        "vllm serve ",
        "vllm.entrypoints",
        "blocks: ",
        "num_gpu_blocks_override",
        "reserved for KV Cache is",
        "GiB for KV cache on node",
        "memory for KV Cache",
        "Multiplying the ",
        "Auto-fit max_model_len",
        "max model len ",
        "To serve at least one request",
        "Selected backend ",
        "No valid attention backend",
        "is not valid for this configuration",
        "Using Flash",
        "Using flash",
        "Using XFormers",
        "Using Torch SDPA",
        "Using Triton",
        "Using Flex",
        "Using Cutlass",
        "Using Tree",
        "Using Sparse MLA",
        "Using ROCm",
        "Using Rocm",
        "Using Aiter",
        "Using AITER",
        "Using Pallas",
        "Using IPEX",
        "Using Dual",
        "Using backend ",
        "Using _Backend.",
        "backend.",
        "Using TRTLLM",
        "prefill for MLA",
        "Valid backends: ",
        "Found incompatible backend",
        "Cannot use ",
        "backend is not supported",
        "precluded higher-priority",
        "falling back to ",
        "is not supported by the V1 Engine",
        "kv_cache_quant_algo",
        " kv-cache for ",
        " KV cache for ",
        "KV cache scaling factor",
        "uncalibrated q_scale",
        "q scaling factor",
        "calculate_kv_scales",
        "calculate-kv-scales",
        "is not loaded.",
        "TQ hybrid",
        ": kv_cache_dtype=",
        "Invalid kv_cache_dtype",
        "kv_cache_dtype=",
        "kv-cache-dtype",
        "kv-cache is not supported",
        "ValueError: ",
        "RuntimeError: ",
        "OutOfMemoryError",
        "unrecognized arguments",
        "invalid choice",
        "Engine core initialization failed",
        "sampling parameters have been overridden",
        "Disabling prefix caching",
        "is preempted by PreemptionMode",
        "version 0.",
    ],
    read,
};

static VERSION: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?:LLM engine \(v|vLLM API server version |[▄█▀] +version )([0-9][0-9A-Za-z.+-]*)"));
static MODEL_DTYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bdtype=torch\.(\w+)"));
static DUMPED_KV_DTYPE: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bkv_cache_dtype='?([A-Za-z0-9_.]+)"));
static DUMPED_LENGTH: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bmax_seq_len=(\d+)"));
static DUMPED_QUANTIZATION: LazyLock<Regex> = LazyLock::new(|| pattern(r"\bquantization='?([A-Za-z0-9_.-]+)"));
static ARGUMENT_KV_DTYPE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?:'kv_cache_dtype': |\bkv_cache_dtype=)'([^']+)'"));
static ARGUMENT_BACKEND: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?:'attention_backend': |\battention_backend=|",
        r"'attention_config': (?:\{'backend': |AttentionConfig\((?:[^)]*?, )?backend=))",
        r"<?'?(?:AttentionBackendEnum\.|_Backend\.)?([A-Za-z0-9_]+)"
    ))
});
static ARGUMENT_BLOCK_SIZE: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?:'block_size': |\bblock_size=)(\d+)"));
static SKIPPED_LAYERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"'kv_cache_dtype_skip_layers': \[([^\]]+)\]"));
static OVERRIDDEN_SAMPLING: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"Default (?:vLLM )?sampling parameters have been overridden .*"));
static NO_PREFIX_CACHE: LazyLock<Regex> = LazyLock::new(|| pattern(r"Disabling prefix caching .*"));

/// A release; pre-release suffixes count as the release they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version(u32, u32, u32);

impl Version {
    /// `None` for builds whose number says nothing (`0.1.dev8168+g475c1a0`).
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| {
            let digits = part.find(|it: char| !it.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        });
        let (major, minor) = (parts.next()??, parts.next()??);
        ((major, minor) > (0, 1)).then(|| Self(major, minor, parts.next().flatten().unwrap_or(0)))
    }
}

/// What the checkpoint's quantization may do to the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Quantization {
    /// The dump says there is none.
    Absent,
    /// llm-compressor's format, which may carry a scheme for the cache.
    CompressedTensors,
    /// Another method: it has no scheme that acts without a word.
    Other,
    /// The log does not say.
    Unstated,
}

/// The dump of the engine's configuration.
#[derive(Clone, Debug)]
struct Dump {
    line: u64,
    kv_cache_dtype: Option<String>,
    model_dtype: Option<String>,
    max_seq_len: Option<u32>,
    quantization: Quantization,
}

/// What was typed, as far as the log repeats it.
#[derive(Clone, Debug, Default)]
struct Typed {
    line: u64,
    /// The whole list of options is there, so an option that is not in it was not given.
    is_complete: bool,
    kv_cache_dtype: Option<String>,
    backend: Option<String>,
    block_size: Option<u32>,
}

/// The lines of one start, and what all parts of the reading need of them.
struct Start<'a> {
    lines: &'a [LogLine],
    version: Option<Version>,
    dump: Option<Dump>,
    typed: Option<Typed>,
}

impl<'a> Start<'a> {
    fn of(lines: &'a [LogLine]) -> Self {
        let version = lines.iter().find_map(|line| Version::parse(group(&VERSION, &line.text)?));
        let dump = lines.iter().rev().find(|line| line.text.contains("LLM engine (v")).map(dump_of);
        let typed = lines.iter().rev().find_map(typed_of);
        Self { lines, version, dump, typed }
    }

    /// Every match of `pattern`, with its line; a line may hold messages of two processes.
    fn all<'b>(&'b self, pattern: &'b Regex) -> impl Iterator<Item = (&'a LogLine, regex::Captures<'a>)> + 'b {
        self.lines.iter().flat_map(move |line| pattern.captures_iter(&line.text).map(move |found| (line, found)))
    }

    fn model_dtype(&self) -> Option<&str> {
        self.dump.as_ref()?.model_dtype.as_deref()
    }

    fn is_before(&self, version: Version) -> bool {
        self.version.is_some_and(|own| own < version)
    }
}

fn dump_of(line: &LogLine) -> Dump {
    // From the head on: another process may have written into the same line before it.
    let text = line.text.find("LLM engine (v").map_or(line.text.as_str(), |at| &line.text[at..]);
    let quantization = match group(&DUMPED_QUANTIZATION, text) {
        _ if text.contains("kv_cache_scheme") && !text.contains("kv_cache_scheme': None") => {
            Quantization::CompressedTensors
        }
        None => Quantization::Unstated,
        Some("None") => Quantization::Absent,
        Some("compressed-tensors" | "compressed_tensors") => Quantization::CompressedTensors,
        Some(_) => Quantization::Other,
    };
    Dump {
        line: line.number,
        kv_cache_dtype: group(&DUMPED_KV_DTYPE, text).map(String::from),
        model_dtype: group(&MODEL_DTYPE, text).map(|name| if name == "half" { "float16" } else { name }.into()),
        max_seq_len: group(&DUMPED_LENGTH, text).and_then(|it| it.parse().ok()),
        quantization,
    }
}

fn typed_of(line: &LogLine) -> Option<Typed> {
    let text = &line.text;
    if let Some(at) = text.find("non-default args: ").or_else(|| text.find("args: Namespace(")) {
        let args = &text[at..];
        return Some(Typed {
            line: line.number,
            is_complete: args.contains(['}', ')']) && balanced(args),
            kv_cache_dtype: group(&ARGUMENT_KV_DTYPE, args).map(String::from),
            backend: group(&ARGUMENT_BACKEND, args).filter(|name| *name != "None").map(backend::plain),
            block_size: group(&ARGUMENT_BLOCK_SIZE, args).and_then(|it| it.parse().ok()),
        });
    }
    if text.contains("vllm serve ") || text.contains("vllm.entrypoints") {
        let typed = Typed {
            line: line.number,
            is_complete: false,
            kv_cache_dtype: option(text, &["--kv-cache-dtype", "--kv_cache_dtype"]).map(String::from),
            backend: option(text, &["--attention-backend", "--attention-config.backend"]).map(backend::plain),
            block_size: option(text, &["--block-size"]).and_then(|it| it.parse().ok()),
        };
        return (typed.kv_cache_dtype.is_some() || typed.backend.is_some()).then_some(typed);
    }
    None
}

/// Whether every brace is closed: the line was not cut.
fn balanced(text: &str) -> bool {
    let count = |open, close| text.matches(open).count() <= text.matches(close).count();
    count('{', '}') && count('(', ')')
}

fn read(lines: &[LogLine]) -> Draft {
    let mut draft = Draft::default();
    let (lines, starts) = start::last(lines);
    note_starts(&mut draft, starts);
    if let Some((line, version)) = lines.iter().find_map(|line| Some((line, group(&VERSION, &line.text)?))) {
        draft.version(version, line.number);
    }
    let start = Start::of(lines);
    capacity::read(&start, &mut draft);
    backend::read(&start, &mut draft);
    let failure = start::failure(&start, &mut draft);
    dtype::read(&start, failure, &mut draft);
    if failure.is_none() {
        settle(&start, &mut draft);
    }
    for (_, found) in start.all(&OVERRIDDEN_SAMPLING).chain(start.all(&NO_PREFIX_CACHE)) {
        draft.note(&found[0]);
    }
    if let Some(typed) = lines.iter().find(|line| line.text.contains("non-default args: "))
        && let Some(layers) = group(&SKIPPED_LAYERS, &typed.text)
    {
        draft.note(&format!("kv_cache_dtype_skip_layers: {layers} keep the dtype of the model"));
    }
    draft
}

/// Whether the request is known to be in effect. A backend that nobody asked for may have been lost to the dtype as well: that
/// contradicts no request, so it is a note, unless the server gives its reasons.
fn settle(start: &Start<'_>, draft: &mut Draft) {
    let is_open = draft.facts.fallback.is_none() && draft.facts.requested_backend.is_none();
    if is_open && backend::may_have_lost_one(start, &draft.facts) {
        draft.note("FLASH_ATTN is not among the potential backends; the reasons are printed at DEBUG only");
    }
    draft.settle();
}
