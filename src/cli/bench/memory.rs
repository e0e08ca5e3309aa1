//! Peak memory of a part of this process, as Linux counts it.

use std::fs;

/// Starts the peak anew. Where that is not possible the peak stays that of the whole process.
pub(super) fn forget_peak() {
    /// Asks Linux to set the peak to the present size (proc(5), `clear_refs`).
    const RESET_PEAK: &str = "5";
    drop(fs::write("/proc/self/clear_refs", RESET_PEAK));
}

/// Bytes of resident memory at the peak since [`forget_peak`]; `None` where the system does not tell.
pub(super) fn peak_bytes() -> Option<u64> {
    peak_of(&fs::read_to_string("/proc/self/status").ok()?)
}

fn peak_of(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_line_of_the_high_water_mark() {
        assert_eq!(peak_of("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"), Some(2 << 20));
        assert_eq!(peak_of("VmHWM: many kB\n"), None);
        assert_eq!(peak_of(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_large_allocation_raises_the_peak() {
        const BYTES: usize = 64 << 20;
        forget_peak();
        let before = peak_bytes().unwrap();
        let held = std::hint::black_box(vec![1_u8; BYTES]);
        assert!(peak_bytes().unwrap() >= before.min(BYTES as u64));
        assert!(peak_bytes().unwrap() >= BYTES as u64, "{} bytes held", held.len());
    }
}
