//! How one matmul or a set of attention jobs is spread over threads. The kernels promise that no value depends on how the
//! work is cut, so the cuts here are chosen for speed alone.

use std::ops::Range;

use rayon::prelude::*;

use super::kernels::{AttentionJob, Kernel, PackedMatrix, TILE_OUT, positions_per_task};

/// More threads than any machine this is meant for has; a guard against a typing error in `--threads`.
pub const MAX_THREADS: usize = 1024;

/// Tasks per thread, so that a thread that was held up can give work away.
const TASKS_PER_THREAD: usize = 4;

/// Tasks of forked sequences per thread: every further one reads the shared past once more, fewer leave threads waiting.
const FORKS_PER_THREAD: usize = 2;

/// From this many rows on a matmul is cut by rows: every task then reads all weights, and needs enough rows to pay for that.
const TALL_ROWS: usize = 96;

/// Fewest rows of a task of a tall matmul; a multiple of every kernel's row block.
const ROW_STEP: usize = 48;

/// Most rows of a task: 192 rows of 1,536 BF16 inputs are 0.6 MB and stay in L2 beside the weights that stream past.
const MAX_TASK_ROWS: usize = 192;

/// Products below which waking other threads costs more than it saves.
const SMALL_MATMUL: usize = 1 << 18;

/// Why a pool could not be built.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Too many threads asked for.
    #[error("{n_threads} threads asked for, the most is {MAX_THREADS}")]
    TooMany {
        /// What was asked for.
        n_threads: usize,
    },
    /// The operating system refused.
    #[error("cannot start {n_threads} threads")]
    Start {
        /// What was asked for.
        n_threads: usize,
        /// What it said.
        source: rayon::ThreadPoolBuildError,
    },
}

/// The engine's own threads.
pub struct Pool {
    n_threads: usize,
    /// None with one thread: the caller's own does the work.
    workers: Option<rayon::ThreadPool>,
}

impl Pool {
    /// A pool of `n_threads`; 0 means as many as the machine offers.
    ///
    /// # Errors
    /// If there are too many or the operating system refuses to start them.
    pub fn new(n_threads: usize) -> Result<Pool, PoolError> {
        let n_threads = if n_threads == 0 {
            std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
        } else {
            n_threads
        };
        if n_threads > MAX_THREADS {
            return Err(PoolError::TooMany { n_threads });
        }
        let workers = if n_threads == 1 {
            None
        } else {
            let builder = rayon::ThreadPoolBuilder::new().num_threads(n_threads);
            let builder = builder.thread_name(|index| format!("engine-{index}"));
            Some(builder.build().map_err(|source| PoolError::Start { n_threads, source })?)
        };
        Ok(Pool { n_threads, workers })
    }

    /// Number of threads.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Runs `work` on a thread of the pool, where calls of the other methods start without a hand-over. A forward pass that is
    /// many small matmuls belongs in one `run`.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.workers {
            None => work(),
            Some(workers) => workers.install(work),
        }
    }

    /// y = x · Wᵀ: x `[n_row, n_in]` → y `[n_row, n_out]`, row-major.
    ///
    /// # Panics
    /// If a slice does not have exactly that shape.
    pub fn matmul(&self, kernel: &dyn Kernel, x: &[f32], n_row: usize, w: &PackedMatrix, y: &mut [f32]) {
        assert_eq!(x.len(), n_row * w.n_in, "x [n_row, n_in]");
        assert_eq!(y.len(), n_row * w.n_out, "y [n_row, n_out]");
        if x.is_empty() || y.is_empty() {
            y.fill(0.0);
            return;
        }
        if self.n_threads == 1 || n_row * w.n_in * w.n_out < SMALL_MATMUL {
            tall(kernel, x, MAX_TASK_ROWS, w, y, false);
        } else if n_row >= TALL_ROWS {
            let share = n_row.div_ceil(self.n_threads * TASKS_PER_THREAD).next_multiple_of(ROW_STEP);
            self.run(|| tall(kernel, x, share.min(MAX_TASK_ROWS), w, y, true));
        } else {
            let share = w.n_tile().div_ceil(self.n_threads * TASKS_PER_THREAD);
            self.run(|| short(kernel, x, n_row, w, share, y));
        }
    }

    /// Attention of sequences that share their past; each set stays together as far as the threads allow.
    pub fn attend_forks(&self, kernel: &dyn Kernel, mut forks: Vec<Forks<'_>>) {
        let n_wanted = if self.n_threads == 1 { 1 } else { self.n_threads * FORKS_PER_THREAD };
        let n_part = n_wanted.div_ceil(forks.len().max(1));
        let mut tasks: Vec<(&mut [AttentionJob<'_>], usize)> = Vec::new();
        for Forks { jobs, n_shared } in &mut forks {
            let n_job = jobs.len().div_ceil(n_part).max(1);
            tasks.extend(jobs.chunks_mut(n_job).map(|jobs| (jobs, *n_shared)));
        }
        if self.n_threads == 1 {
            return tasks.iter_mut().for_each(|(jobs, n_shared)| kernel.attend_forks(jobs, *n_shared));
        }
        let tasks = tasks.par_iter_mut().with_max_len(1);
        self.run(|| tasks.for_each(|(jobs, n_shared)| kernel.attend_forks(jobs, *n_shared)));
    }

    /// Attention of many jobs; long ones are cut into query tiles, and the tiles shared among the threads.
    ///
    /// # Panics
    /// If a job's `q` and `out` are not both `[n_position, group, head_dim]`.
    pub fn attend(&self, kernel: &dyn Kernel, jobs: Vec<AttentionJob<'_>>) {
        let mut tasks: Vec<AttentionJob<'_>> = jobs.into_iter().flat_map(query_tiles).collect();
        if self.n_threads == 1 {
            tasks.iter_mut().for_each(|task| kernel.attend(task));
            return;
        }
        // The longest first, so that no thread starts one when the others are done.
        tasks.sort_by_key(|task| std::cmp::Reverse(task.first_position));
        self.run(|| tasks.par_iter_mut().with_max_len(1).for_each(|task| kernel.attend(task)));
    }
}

/// Attention jobs of one position each over one past.
pub struct Forks<'a> {
    /// Alike but for queries, output, position and the keys after `n_shared`; see [`Kernel::attend_forks`].
    pub jobs: Vec<AttentionJob<'a>>,
    /// Keys that all jobs read from the same memory.
    pub n_shared: usize,
}

/// Cut by rows, a slice of y per task.
fn tall(kernel: &dyn Kernel, x: &[f32], rows: usize, w: &PackedMatrix, y: &mut [f32], parallel: bool) {
    let task = |(x, y): (&[f32], &mut [f32])| kernel.gemm(x, y.len() / w.n_out, w, 0..w.n_tile(), y);
    let (x_step, y_step) = (rows * w.n_in, rows * w.n_out);
    if parallel {
        x.par_chunks(x_step).zip(y.par_chunks_mut(y_step)).with_max_len(1).for_each(task);
    } else {
        x.chunks(x_step).zip(y.chunks_mut(y_step)).for_each(task);
    }
}

/// Cut by columns, so that every weight is read once however few the rows are.
fn short(kernel: &dyn Kernel, x: &[f32], n_row: usize, w: &PackedMatrix, share: usize, y: &mut [f32]) {
    let n_tile = w.n_tile();
    let tiles_of = |task: usize| -> Range<usize> { task * share..((task + 1) * share).min(n_tile) };
    if n_row == 1 {
        y.par_chunks_mut(share * TILE_OUT)
            .with_max_len(1)
            .enumerate()
            .for_each(|(task, y)| kernel.gemm(x, 1, w, tiles_of(task), y));
        return;
    }
    let parts: Vec<(usize, Vec<f32>)> = (0..n_tile.div_ceil(share))
        .into_par_iter()
        .with_max_len(1)
        .map(|task| {
            let n_column = w.n_column(&tiles_of(task));
            let mut part = vec![0.0; n_row * n_column];
            kernel.gemm(x, n_row, w, tiles_of(task), &mut part);
            (n_column, part)
        })
        .collect();
    let mut first = 0;
    for (n_column, part) in parts {
        for (row, part) in part.chunks_exact(n_column).enumerate() {
            y[row * w.n_out + first..][..n_column].copy_from_slice(part);
        }
        first += n_column;
    }
}

/// The same attention as jobs of at most [`positions_per_task`] positions.
fn query_tiles(job: AttentionJob<'_>) -> impl Iterator<Item = AttentionJob<'_>> {
    let AttentionJob { kv, q, out, first_position, group, head_dim, scale, window } = job;
    assert_eq!(q.len(), out.len(), "queries and output have one shape");
    let positions = positions_per_task(group);
    let step = (positions * group * head_dim).max(1);
    q.chunks(step).zip(out.chunks_mut(step)).enumerate().map(move |(tile, (q, out))| AttentionJob {
        kv,
        q,
        out,
        first_position: first_position + tile * positions,
        group,
        head_dim,
        scale,
        window,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kernels::tests::{Numbers, Rows, available};

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn a_matmul_has_the_same_bits_with_any_number_of_threads() {
        let mut numbers = Numbers::new(1);
        for (n_row, n_in, n_out) in [(1, 97, 3000), (7, 576, 193), (95, 64, 130), (96, 64, 130), (500, 33, 97)] {
            let w = PackedMatrix::pack(n_out, n_in, &numbers.bf16s(n_out * n_in));
            let x = numbers.f32s(n_row * n_in);
            for kernel in available() {
                let mut expected = vec![f32::NAN; n_row * n_out];
                kernel.gemm(&x, n_row, &w, 0..w.n_tile(), &mut expected);
                for n_threads in [1, 2, 3] {
                    let mut y = vec![f32::NAN; n_row * n_out];
                    Pool::new(n_threads).unwrap().matmul(&*kernel, &x, n_row, &w, &mut y);
                    assert_eq!(bits(&y), bits(&expected), "{} {n_row} {n_in} {n_out}, {n_threads}", kernel.name());
                }
            }
        }
    }

    #[test]
    fn attention_has_the_same_bits_with_any_number_of_threads() {
        let (head_dim, group) = (32, 3);
        let kv = Rows::new(400, head_dim, 1);
        let mut numbers = Numbers::new(2);
        let inputs: Vec<(usize, Vec<f32>)> =
            [(0, 300), (399, 1), (100, 65)].map(|(first, n)| (first, numbers.f32s(n * group * head_dim))).into();
        for kernel in available() {
            let run = |pool: &Pool| {
                let mut outs: Vec<Vec<f32>> = inputs.iter().map(|(_, q)| vec![f32::NAN; q.len()]).collect();
                let jobs = inputs.iter().zip(&mut outs).map(|((first_position, q), out)| AttentionJob {
                    kv: &kv,
                    q,
                    out,
                    first_position: *first_position,
                    group,
                    head_dim,
                    scale: 0.2,
                    window: None,
                });
                pool.attend(&*kernel, jobs.collect());
                bits(&outs.concat())
            };
            let expected = run(&Pool::new(1).unwrap());
            for n_threads in [2, 3] {
                assert_eq!(run(&Pool::new(n_threads).unwrap()), expected, "{} {n_threads}", kernel.name());
            }
        }
    }

    #[test]
    fn a_typing_error_in_the_thread_count_is_an_error() {
        assert!(matches!(Pool::new(1_000_000), Err(PoolError::TooMany { n_threads: 1_000_000 })));
        assert!(Pool::new(0).unwrap().n_threads() >= 1);
        assert_eq!(Pool::new(3).unwrap().run(|| 5), 5);
    }
}
