//! The most multiply-adds per second that a kernel's instructions can do on this machine: what a measured speed is a share of.
//!
//! Each loop keeps its operands in registers and has more sums than the instruction's latency, so nothing but the arithmetic
//! unit bounds it. It is measured, not looked up, because clocks under wide instructions differ from machine to machine.

use std::hint::black_box;
use std::time::{Duration, Instant};

#[cfg(target_arch = "x86_64")]
use super::x86_64::{self, peak};
use super::{KernelError, resolve};

/// A loop of register-only arithmetic: does `n_round` rounds and returns the floating-point operations of one.
pub(super) type PeakLoop = fn(n_round: u64) -> Option<u64>;

/// Time of one trial: long enough for the clock to settle, short enough to fall between the turns of other processes.
const TRIAL: Duration = Duration::from_millis(40);

/// Trials of which the best counts: anything else that runs can only slow one down.
const N_TRIAL: usize = 6;

/// Rounds between two looks at the clock.
const ROUNDS: u64 = 20_000;

/// Floating-point operations per second of `n_thread` threads that run the register-only loop of the kernel named `kernel`
/// at the same time; a multiply-add counts as two. The best of several trials.
///
/// # Errors
/// A kernel that is unknown or that this machine cannot run.
pub fn peak_flops(kernel: &str, n_thread: usize) -> Result<f64, KernelError> {
    let name = resolve(Some(kernel))?.name();
    let work = loop_of(name);
    let trial = || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n_thread.max(1)).map(|_| scope.spawn(|| rate(work))).collect();
            threads.into_iter().map(|thread| thread.join().expect("the loop does not panic")).sum::<f64>()
        })
    };
    Ok((0..N_TRIAL).map(|_| trial()).fold(0.0, f64::max))
}

fn loop_of(kernel: &str) -> PeakLoop {
    #[cfg(target_arch = "x86_64")]
    for (entry, work) in
        [(x86_64::AMX, peak::amx as PeakLoop), (x86_64::AVX512, peak::avx512), (x86_64::AVX2, peak::avx2)]
    {
        if entry.name == kernel {
            return work;
        }
    }
    debug_assert!(!kernel.is_empty());
    portable
}

fn rate(work: PeakLoop) -> f64 {
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < TRIAL {
        let Some(per_round) = work(ROUNDS) else { return 0.0 };
        done += ROUNDS * per_round;
    }
    done as f64 / start.elapsed().as_secs_f64()
}

/// Products and sums in safe code, for kernels that are written so.
fn portable(n_round: u64) -> Option<u64> {
    /// Eight registers of four lanes.
    const LANES: usize = 32;
    let (factor, term) = (black_box(0.5_f32), black_box(1.0_f32));
    let mut sums = [0.0_f32; LANES];
    for _ in 0..n_round {
        for sum in &mut sums {
            *sum = *sum * factor + term;
        }
    }
    black_box(sums);
    Some(2 * LANES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kernels::KERNELS;

    #[test]
    fn every_kernel_of_this_machine_has_a_peak() {
        for entry in KERNELS.iter().filter(|entry| (entry.probe)().is_ok()) {
            let one = peak_flops(entry.name, 1).unwrap();
            // No core does more than 10 TFLOP/s, and none that runs this does less than 50 MFLOP/s.
            assert!(one > 5e7 && one < 1e13, "{}: {one}", entry.name);
            assert!(peak_flops(entry.name, 2).unwrap() > 0.0, "{}", entry.name);
        }
    }

    #[test]
    fn an_unknown_kernel_is_an_error() {
        assert!(matches!(peak_flops("abacus", 1), Err(KernelError::Unknown { .. })));
    }
}
