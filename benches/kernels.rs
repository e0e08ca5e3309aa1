//! GEMM and attention of every kernel that this machine can run, at the shapes of the default model (30 layers of width 576,
//! 9 query heads on 3 KV heads of 64).

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvgauge::engine::kernels::{AttentionJob, KERNELS, Kernel, KvRows, PackedMatrix, bf16_to_f32, f32_to_bf16};
use kvgauge::engine::threads::Pool;

/// Threads of the pool: the numbers are per machine share of two cores.
const THREADS: usize = 2;

const HEAD_DIM: usize = 64;
const GROUP: usize = 3;
const KV_HEADS: usize = 3;

/// A fixed stream of values in −1..1.
fn values(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

fn bf16s(n: usize) -> Vec<u16> {
    values(n).into_iter().map(f32_to_bf16).collect()
}

/// A BF16 cache, so that decoding is a copy and the time is that of the kernel.
struct Rows {
    k: Vec<u16>,
    v: Vec<u16>,
}

impl KvRows for Rows {
    fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]) {
        for (to, from) in [(k, &self.k), (v, &self.v)] {
            let from = &from[start * HEAD_DIM..(start + n) * HEAD_DIM];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = bf16_to_f32(*from));
        }
    }

    fn decode_bf16(&self, start: usize, n: usize, k: &mut [u16], v: &mut [u16]) {
        k.copy_from_slice(&self.k[start * HEAD_DIM..(start + n) * HEAD_DIM]);
        v.copy_from_slice(&self.v[start * HEAD_DIM..(start + n) * HEAD_DIM]);
    }
}

/// The oracle is measured by nobody: it is slow on purpose.
fn kernels() -> Vec<std::sync::Arc<dyn Kernel>> {
    let fast = KERNELS.iter().filter(|entry| entry.name != "reference");
    fast.filter_map(|entry| (entry.probe)().ok()).collect()
}

fn gemm(criterion: &mut Criterion) {
    let pool = Pool::new(THREADS).expect("two threads start");
    for (n_row, n_in, n_out) in
        [(512, 576, 1536), (512, 1536, 576), (512, 576, 192), (1, 576, 1536), (8, 576, 1536), (8, 576, 49_152)]
    {
        let w = PackedMatrix::pack(n_out, n_in, &bf16s(n_out * n_in));
        let x = values(n_row * n_in);
        let mut y = vec![0.0; n_row * n_out];
        let mut group = criterion.benchmark_group("gemm");
        group.sample_size(10).throughput(Throughput::Elements(2 * (n_row * n_in * n_out) as u64));
        for kernel in kernels() {
            let id = BenchmarkId::new(kernel.name(), format!("{n_row}x{n_in}x{n_out}"));
            group.bench_function(id, |bencher| {
                bencher.iter(|| pool.run(|| pool.matmul(&*kernel, black_box(&x), n_row, &w, &mut y)));
            });
        }
    }
}

fn attention(criterion: &mut Criterion) {
    let pool = Pool::new(THREADS).expect("two threads start");
    for (context, n_position) in [(2048, 256), (8192, 256), (32_768, 64), (8192, 1), (32_768, 1)] {
        let kv = Rows { k: bf16s(context * HEAD_DIM), v: bf16s(context * HEAD_DIM) };
        let q = values(n_position * GROUP * HEAD_DIM);
        let mut outs = vec![vec![0.0; q.len()]; KV_HEADS];
        let first_position = context - n_position;
        let keys: usize = (first_position + 1..=context).sum();
        let mut group = criterion.benchmark_group("attention");
        group.sample_size(10).throughput(Throughput::Elements((keys * KV_HEADS * GROUP * HEAD_DIM * 4) as u64));
        for kernel in kernels() {
            let id = BenchmarkId::new(kernel.name(), format!("{n_position} at {context}"));
            group.bench_function(id, |bencher| {
                bencher.iter(|| {
                    let jobs = outs.iter_mut().map(|out| AttentionJob {
                        kv: &kv,
                        q: &q,
                        out,
                        first_position,
                        group: GROUP,
                        head_dim: HEAD_DIM,
                        scale: 0.125,
                        window: None,
                    });
                    pool.attend(&*kernel, jobs.collect());
                });
            });
        }
    }
}

criterion_group!(benches, gemm, attention);
criterion_main!(benches);
