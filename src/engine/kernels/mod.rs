//! Every SIMD instruction and nearly every `unsafe` of the crate: GEMM and attention, one file per instruction set.
//!
//! All kernels share one packed weight layout and one contract: **the value of an output element depends only on its own
//! row and column**, never on how many rows or tiles are computed together, nor on the number of threads. Sums run over the
//! inner dimension in one fixed order per kernel, and attention walks the keys in blocks of [`KEY_BLOCK`] aligned to
//! absolute positions. So results are bit-identical for any batch, prefill chunk and thread count.
//!
//! # Adding a kernel
//! 1. A file (in the folder of its architecture) with a type that implements [`Kernel`] and a `probe` for it.
//! 2. A line in [`KERNELS`], best first. The contract tests, the CLI and the record read that table.

// In tests everywhere, so that it is compiled and held to the contract without such a machine.
#[cfg(any(target_arch = "aarch64", test))]
mod aarch64;
pub mod decode;
pub mod emulated;
mod geometry;
mod packed;
mod peak;
mod portable;
mod prefetch;
mod reference;
mod rounding;
#[cfg(test)]
pub(in crate::engine) mod tests;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::sync::Arc;

pub use self::geometry::positions_per_task;
pub use self::packed::{PackedMatrix, TileLine};
pub use self::peak::peak_flops;
pub use self::prefetch::prefetch;
pub use self::rounding::{bf16_to_f32, f32_to_bf16};

/// Keys per attention block, aligned to absolute positions.
pub const KEY_BLOCK: usize = 64;

/// Output columns per weight tile.
pub const TILE_OUT: usize = 16;

/// K and V rows of one sequence, layer and KV head, as attention reads them: always out of the quantized cache.
pub trait KvRows: Sync {
    /// Decodes positions `start..start + n` to exact f32 values: k, v `[n, head_dim]`.
    fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]);

    /// Decodes positions `start..start + n` to BF16 bit patterns: k, v `[n, head_dim]`.
    fn decode_bf16(&self, start: usize, n: usize, k: &mut [u16], v: &mut [u16]);

    /// Whether these rows are stored in 16 bits, as skipped layers of a quantized cache are: a serving engine attends to them
    /// with its 16-bit arithmetic.
    fn is_16_bit(&self) -> bool {
        false
    }

    /// Says that positions `start..start + n` are about to be decoded, so that they can be on their way from memory.
    fn prefetch(&self, _start: usize, _n: usize) {}

    /// Decodes positions `start..start + n` to the values of their codes without the scales, k, v `[n, head_dim]`, and the
    /// scale of each key, k_scales, v_scales `[n]`. A store without scales has decoded values and ones.
    fn decode_codes_f32(
        &self,
        start: usize,
        n: usize,
        k: &mut [f32],
        v: &mut [f32],
        k_scales: &mut [f32],
        v_scales: &mut [f32],
    ) {
        self.decode_f32(start, n, k, v);
        k_scales.fill(1.0);
        v_scales.fill(1.0);
    }
}

/// Attention of consecutive query positions of one sequence over one KV head.
pub struct AttentionJob<'a> {
    /// Keys and values; at least `first_position + n_position` of them are stored.
    pub kv: &'a dyn KvRows,
    /// Queries `[n_position, group, head_dim]`, RoPE applied, not scaled.
    pub q: &'a [f32],
    /// Output, same shape.
    pub out: &'a mut [f32],
    /// Absolute position of the first query; query i attends to keys `0..=first_position + i` (inside `window`).
    pub first_position: usize,
    /// Query heads per KV head.
    pub group: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Softmax scale, usually `1/√head_dim`.
    pub scale: f32,
    /// Sliding window: only the last `window` keys, the query's own included.
    pub window: Option<usize>,
}

/// A set of compute routines with one arithmetic.
///
/// `f32` kernels (`reference`, `portable`, `x86_64-f32-avx2`): activations, decoded K/V, Q and P stay f32, weights are exact
/// BF16. `bf16` kernels: activations are rounded to BF16 before a product; in attention decoded K/V, Q and P are BF16, the
/// softmax scale multiplies the f32 scores, and the sum of a row's P is taken before P is rounded (as `FlashAttention` does);
/// sums are f32 everywhere.
pub trait Kernel: Send + Sync {
    /// `{arch}-{dtype}-{variant}`, for example `x86_64-bf16-avx512`; stored in the record.
    fn name(&self) -> &'static str;

    /// y = x · Wᵀ for the weight tiles `tiles` (of [`TILE_OUT`] outputs each): x `[n_row, n_in]` → y `[n_row, n_column]`,
    /// both row-major, where `n_column` is [`PackedMatrix::n_column`] of `tiles`.
    ///
    /// # Panics
    /// If a slice does not have exactly that shape.
    fn gemm(&self, x: &[f32], n_row: usize, w: &PackedMatrix, tiles: std::ops::Range<usize>, y: &mut [f32]);

    /// Flash-style attention of one job with online softmax over key blocks.
    ///
    /// # Panics
    /// If `q` and `out` are not both `[n_position, group, head_dim]`.
    fn attend(&self, job: &mut AttentionJob<'_>);

    /// The same for forks: jobs of one position, group, head size and scale and without a window, whose keys `0..n_shared` lie
    /// in the same memory, so that a kernel may read them once. `n_shared` is a multiple of [`KEY_BLOCK`], and every query
    /// comes after those keys. Same bits as [`Self::attend`].
    fn attend_forks(&self, jobs: &mut [AttentionJob<'_>], _n_shared: usize) {
        jobs.iter_mut().for_each(|job| self.attend(job));
    }
}

/// A kernel that may exist on this machine.
pub struct KernelEntry {
    /// The name asked for and recorded.
    pub name: &'static str,
    /// Builds the kernel, or says why this machine cannot run it.
    pub probe: fn() -> Result<Arc<dyn Kernel>, &'static str>,
}

/// All kernels, best first: `auto` takes the first whose probe succeeds.
pub static KERNELS: &[KernelEntry] = &[
    #[cfg(target_arch = "x86_64")]
    x86_64::AMX,
    #[cfg(target_arch = "x86_64")]
    x86_64::AVX512,
    #[cfg(target_arch = "x86_64")]
    x86_64::AVX2,
    #[cfg(target_arch = "aarch64")]
    aarch64::NEON,
    portable::ENTRY,
    reference::ENTRY,
];

/// Why no kernel could be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// No kernel of that name exists in this build.
    #[error("unknown kernel `{name}`")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// The kernel exists, but not on this machine.
    #[error("kernel `{name}` is not available here: {reason}")]
    Unavailable {
        /// The name asked for.
        name: &'static str,
        /// What its probe found.
        reason: &'static str,
    },
}

impl KernelError {
    /// What to do about it, most useful first: one line each, lower case, without a full stop. The engine imports nothing, so
    /// the trait for this is implemented by those who wrap it.
    pub fn hints(&self) -> Vec<String> {
        match self {
            KernelError::Unknown { known, .. } => vec![format!("known: auto, {}", known.join(", "))],
            KernelError::Unavailable { .. } => {
                let runs = KERNELS.iter().filter(|entry| (entry.probe)().is_ok());
                let names: Vec<&str> = runs.map(|entry| entry.name).collect();
                vec![format!("this machine runs: {}; `auto` takes the first", names.join(", "))]
            }
        }
    }
}

/// The kernel called `requested`; without a name, or with `auto`, the best one of this machine.
///
/// # Errors
/// A named kernel that is unknown or that this machine cannot run is an error, never replaced by another one.
pub fn resolve(requested: Option<&str>) -> Result<Arc<dyn Kernel>, KernelError> {
    let Some(name) = requested.filter(|name| *name != "auto") else {
        return Ok(KERNELS
            .iter()
            .find_map(|entry| (entry.probe)().ok())
            .expect("the reference kernel runs on every machine"));
    };
    let entry = KERNELS.iter().find(|entry| entry.name == name).ok_or_else(|| KernelError::Unknown {
        name: name.to_owned(),
        known: KERNELS.iter().map(|entry| entry.name).collect(),
    })?;
    (entry.probe)().map_err(|reason| KernelError::Unavailable { name: entry.name, reason })
}
