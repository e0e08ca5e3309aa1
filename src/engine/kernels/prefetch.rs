//! A hint to the memory system.

/// Starts to load `bytes` into the caches, where the machine has an instruction for that.
///
/// A paged cache is read in runs of a few KiB that lie far apart, often one per memory page. The hardware's own prefetchers
/// stop at page borders, so without the hint every run begins with the full latency of memory.
pub fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    super::x86_64::prefetch(bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}
