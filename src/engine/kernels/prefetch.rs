//! A hint to the memory system.

/// Most bytes to ask for: a run of 8-bit codes. Measured on decode over 8K and 16K keys: 8-bit caches gain up to here, while
/// for the 2 KiB runs of a BF16 cache asking for all of it cost more than it brought, since by then the hardware has seen a
/// stream and runs ahead by itself.
#[cfg(target_arch = "x86_64")]
const STREAM_START: usize = 1024;

/// Starts to load the first `bytes` into the caches, where the machine has an instruction for that.
///
/// A paged cache is read in runs of a few KiB that lie far apart, often one per memory page. The hardware's own prefetchers
/// stop at page borders, so without the hint every run begins with the full latency of memory.
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    super::x86_64::prefetch(&bytes[..bytes.len().min(STREAM_START)]);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
