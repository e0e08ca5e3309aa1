//! The contract of [`Kernel`], held against every kernel that this machine can run. `REQUIRE_KERNELS` (a comma list of name
//! parts) turns a kernel that did not run from a silence into a failure.

use std::ops::Range;
use std::sync::Arc;

use super::*;

/// Values with a spread of magnitudes from a fixed linear congruence; the same on every machine.
pub(in crate::engine) struct Numbers(u64);

impl Numbers {
    pub(in crate::engine) fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        unit * unit * unit * 4.0
    }

    pub(in crate::engine) fn f32s(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.next()).collect()
    }

    pub(in crate::engine) fn bf16s(&mut self, n: usize) -> Vec<u16> {
        (0..n).map(|_| f32_to_bf16(self.next())).collect()
    }

    /// Values that BF16 holds exactly, so that every kernel computes with the same inputs.
    pub(in crate::engine) fn exact(&mut self, n: usize) -> Vec<f32> {
        self.bf16s(n).into_iter().map(bf16_to_f32).collect()
    }
}

/// K and V in memory; reading a position that is not stored fails the test.
pub(in crate::engine) struct Rows {
    pub(in crate::engine) k: Vec<f32>,
    pub(in crate::engine) v: Vec<f32>,
    pub(in crate::engine) head_dim: usize,
}

impl Rows {
    pub(in crate::engine) fn new(n: usize, head_dim: usize, seed: u64) -> Rows {
        let mut numbers = Numbers::new(seed);
        Rows { k: numbers.exact(n * head_dim), v: numbers.exact(n * head_dim), head_dim }
    }
}

impl KvRows for Rows {
    fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]) {
        let span = start * self.head_dim..(start + n) * self.head_dim;
        k.copy_from_slice(&self.k[span.clone()]);
        v.copy_from_slice(&self.v[span]);
    }

    fn decode_bf16(&self, start: usize, n: usize, k: &mut [u16], v: &mut [u16]) {
        let span = start * self.head_dim..(start + n) * self.head_dim;
        assert_eq!((k.len(), v.len()), (span.len(), span.len()));
        for (from, to) in [(&self.k, k), (&self.v, v)] {
            to.iter_mut().zip(&from[span.clone()]).for_each(|(to, from)| *to = f32_to_bf16(*from));
        }
    }
}

/// Every kernel of this machine.
pub(in crate::engine) fn available() -> Vec<Arc<dyn Kernel>> {
    KERNELS.iter().filter_map(|entry| (entry.probe)().ok()).collect()
}

/// Every kernel of this machine, the AMX loops on emulated tiles, and the NEON kernel, which is safe code.
pub(in crate::engine) fn under_test() -> Vec<Arc<dyn Kernel>> {
    let mut kernels = available();
    #[cfg(not(target_arch = "aarch64"))]
    kernels.extend((aarch64::NEON.probe)());
    #[cfg(target_arch = "x86_64")]
    kernels.extend(x86_64::emulated_amx());
    kernels
}

fn reference() -> Arc<dyn Kernel> {
    resolve(Some("reference")).unwrap()
}

fn gemm(kernel: &dyn Kernel, x: &[f32], w: &PackedMatrix, tiles: Range<usize>) -> Vec<f32> {
    let n_row = x.len() / w.n_in;
    let mut y = vec![f32::NAN; n_row * w.n_column(&tiles)];
    kernel.gemm(x, n_row, w, tiles, &mut y);
    y
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    first_position: usize,
    n_position: usize,
    group: usize,
    head_dim: usize,
    window: Option<usize>,
}

impl Shape {
    fn queries(&self) -> Vec<f32> {
        Numbers::new(self.head_dim as u64).exact(self.n_position * self.group * self.head_dim)
    }

    fn attend(&self, kernel: &dyn Kernel, kv: &dyn KvRows, q: &[f32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; q.len()];
        kernel.attend(&mut AttentionJob {
            kv,
            q,
            out: &mut out,
            first_position: self.first_position,
            group: self.group,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            window: self.window,
        });
        out
    }

    fn n_key(&self) -> usize {
        self.first_position + self.n_position
    }
}

fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for head_dim in [2, 32, 33, 64, 80, 128] {
        for (group, n_position) in [(1, 130), (3, 1), (3, 65), (4, 64), (8, 26), (9, 63)] {
            for first_position in [0, 1, 62, 63, 64, 130] {
                for window in [None, Some(1), Some(65), Some(100)] {
                    shapes.push(Shape { first_position, n_position, group, head_dim, window });
                }
            }
        }
    }
    shapes
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn required_kernels_ran() {
    let ran: Vec<&str> = available().iter().map(|kernel| kernel.name()).collect();
    for required in std::env::var("REQUIRE_KERNELS").unwrap_or_default().split(',').filter(|name| !name.is_empty()) {
        assert!(ran.iter().any(|name| name.contains(required)), "{required} did not run; ran {ran:?}");
    }
}

#[test]
fn gemm_matches_the_reference() {
    for (n_out, n_in) in [(1, 33), (15, 32), (16, 576), (17, 1), (192, 97), (65, 1536), (130, 64)] {
        let mut numbers = Numbers::new(n_out as u64);
        let weights = numbers.bf16s(n_out * n_in);
        let w = PackedMatrix::pack(n_out, n_in, &weights);
        for n_row in [1, 2, 5, 15, 16, 17, 33] {
            let x = numbers.exact(n_row * n_in);
            let expected = gemm(&*reference(), &x, &w, 0..w.n_tile());
            for kernel in under_test() {
                let y = gemm(&*kernel, &x, &w, 0..w.n_tile());
                for (i, (got, expected)) in y.iter().zip(&expected).enumerate() {
                    let (row, out) = (i / n_out, i % n_out);
                    let products = x[row * n_in..][..n_in].iter().zip(&weights[out * n_in..]);
                    let magnitude: f32 = products.map(|(x, w)| (x * bf16_to_f32(*w)).abs()).sum();
                    assert!(
                        (got - expected).abs() <= 2e-6 * magnitude,
                        "{} [{n_row}, {n_in}] x [{n_in}, {n_out}] at {row}, {out}: {got} instead of {expected}",
                        kernel.name()
                    );
                }
            }
        }
    }
}

#[test]
fn a_gemm_value_depends_on_its_row_and_column_alone() {
    let (n_out, n_in) = (130, 97);
    let mut numbers = Numbers::new(7);
    let w = PackedMatrix::pack(n_out, n_in, &numbers.bf16s(n_out * n_in));
    let x = numbers.f32s(40 * n_in);
    for kernel in under_test() {
        let all = gemm(&*kernel, &x, &w, 0..w.n_tile());
        for rows in [0..1, 39..40, 3..5, 0..6, 1..8, 5..21, 7..40] {
            for tiles in [0..1, 8..9, 2..5, 1..9, 4..4] {
                let part = gemm(&*kernel, &x[rows.start * n_in..rows.end * n_in], &w, tiles.clone());
                let n_column = w.n_column(&tiles);
                let expected: Vec<f32> = rows
                    .clone()
                    .flat_map(|row| &all[row * n_out + (tiles.start * TILE_OUT).min(n_out)..][..n_column])
                    .copied()
                    .collect();
                assert_eq!(bits(&part), bits(&expected), "{} rows {rows:?} tiles {tiles:?}", kernel.name());
            }
        }
    }
}

#[test]
fn bf16_kernels_round_activations_to_nearest_even() {
    let (n_out, n_in) = (17, 65);
    let mut numbers = Numbers::new(3);
    let w = PackedMatrix::pack(n_out, n_in, &numbers.bf16s(n_out * n_in));
    let x = numbers.f32s(7 * n_in);
    let rounded: Vec<f32> = x.iter().map(|value| bf16_to_f32(f32_to_bf16(*value))).collect();
    for kernel in under_test() {
        let same = bits(&gemm(&*kernel, &x, &w, 0..2)) == bits(&gemm(&*kernel, &rounded, &w, 0..2));
        assert_eq!(same, kernel.name().contains("bf16"), "{}", kernel.name());
    }
}

#[test]
fn attention_matches_the_reference() {
    for shape in shapes() {
        let kv = Rows::new(shape.n_key(), shape.head_dim, 5);
        let q = shape.queries();
        let expected = shape.attend(&*reference(), &kv, &q);
        for kernel in under_test() {
            // A BF16 weight is off by up to 2⁻⁹ of itself, and values reach 4.
            let tolerance = if kernel.name().contains("bf16") { 1.0 / 128.0 } else { 2e-5 };
            for (i, (got, expected)) in shape.attend(&*kernel, &kv, &q).iter().zip(&expected).enumerate() {
                assert!(
                    (got - expected).abs() <= tolerance,
                    "{} {shape:?} at {i}: {got} instead of {expected}",
                    kernel.name()
                );
            }
        }
    }
}

#[test]
fn attention_of_a_chunk_or_one_position_has_the_bits_of_the_whole() {
    let shapes = shapes().into_iter().filter(|shape| {
        shape.n_position > 1
            && [33, 64].contains(&shape.head_dim)
            && [0, 63].contains(&shape.first_position)
            && [None, Some(65)].contains(&shape.window)
    });
    for shape in shapes {
        let kv = Rows::new(shape.n_key(), shape.head_dim, 9);
        let q = Numbers::new(1).f32s(shape.n_position * shape.group * shape.head_dim);
        let row = shape.group * shape.head_dim;
        // The reference computes every row on its own by construction, and slowly.
        for kernel in under_test().into_iter().filter(|kernel| kernel.name() != "reference") {
            let all = shape.attend(&*kernel, &kv, &q);
            for chunk in [1, 2, 7, 64] {
                let mut parts = Vec::new();
                for (i, q) in q.chunks(chunk * row).enumerate() {
                    let first_position = shape.first_position + i * chunk;
                    let part = Shape { first_position, n_position: q.len() / row, ..shape };
                    parts.extend(part.attend(&*kernel, &kv, q));
                }
                assert_eq!(bits(&parts), bits(&all), "{} {shape:?} in chunks of {chunk}", kernel.name());
            }
        }
    }
}

/// What sequences with a common past and an own end store.
struct Fork<'a> {
    past: &'a Rows,
    end: &'a Rows,
    n_shared: usize,
}

impl KvRows for Fork<'_> {
    fn decode_f32(&self, start: usize, n: usize, k: &mut [f32], v: &mut [f32]) {
        let rows = if start < self.n_shared { self.past } else { self.end };
        rows.decode_f32(start, n, k, v);
    }

    fn decode_bf16(&self, start: usize, n: usize, k: &mut [u16], v: &mut [u16]) {
        let rows = if start < self.n_shared { self.past } else { self.end };
        rows.decode_bf16(start, n, k, v);
    }
}

#[test]
fn forks_have_the_bits_of_jobs_on_their_own() {
    for (n_shared, group, head_dim) in [(64, 3, 64), (256, 1, 33), (128, 8, 16), (0, 2, 80)] {
        let past = Rows::new(n_shared + 130, head_dim, 1);
        let ends: Vec<Rows> = (0..5).map(|seed| Rows::new(n_shared + 130, head_dim, 10 + seed)).collect();
        let forks: Vec<Fork<'_>> = ends.iter().map(|end| Fork { past: &past, end, n_shared }).collect();
        let shape = |index: usize| {
            let first_position = n_shared + [0, 1, 63, 64, 129][index];
            Shape { first_position, n_position: 1, group, head_dim, window: None }
        };
        let queries: Vec<Vec<f32>> = (0..5).map(|i| Numbers::new(i).f32s(group * head_dim)).collect();
        for kernel in under_test() {
            let alone = |index: usize| shape(index).attend(&*kernel, &forks[index], &queries[index]);
            for n_fork in [1, 2, 5] {
                let mut outs = vec![vec![f32::NAN; group * head_dim]; n_fork];
                let jobs = outs.iter_mut().enumerate().map(|(i, out)| AttentionJob {
                    kv: &forks[i],
                    q: &queries[i],
                    out,
                    first_position: shape(i).first_position,
                    group,
                    head_dim,
                    scale: 1.0 / (head_dim as f32).sqrt(),
                    window: None,
                });
                kernel.attend_forks(&mut jobs.collect::<Vec<_>>(), n_shared);
                for (index, out) in outs.iter().enumerate() {
                    assert_eq!(bits(out), bits(&alone(index)), "{} {n_shared} {group} {index}", kernel.name());
                }
            }
        }
    }
}

#[test]
fn heads_of_a_group_do_not_touch_each_other() {
    let shape = Shape { first_position: 70, n_position: 5, group: 4, head_dim: 64, window: None };
    let kv = Rows::new(shape.n_key(), shape.head_dim, 2);
    let q = shape.queries();
    for kernel in under_test() {
        let all = shape.attend(&*kernel, &kv, &q);
        for head in 0..shape.group {
            let of_head =
                |rows: &[f32]| -> Vec<f32> { rows.chunks_exact(64).skip(head).step_by(4).flatten().copied().collect() };
            let alone = Shape { group: 1, ..shape }.attend(&*kernel, &kv, &of_head(&q));
            assert_eq!(bits(&alone), bits(&of_head(&all)), "{} head {head}", kernel.name());
        }
    }
}

/// A later token with a NaN in its row must not reach into the past, however rows share key blocks.
#[test]
fn keys_that_a_query_does_not_see_have_no_influence() {
    for window in [None, Some(20)] {
        let shape = Shape { first_position: 90, n_position: 30, group: 3, head_dim: 64, window };
        let clean = Rows::new(shape.n_key(), 64, 4);
        let mut poisoned = Rows::new(shape.n_key(), 64, 4);
        poisoned.k[100 * 64..101 * 64].fill(f32::NAN);
        poisoned.v[100 * 64..101 * 64].fill(f32::NAN);
        let q = shape.queries();
        for kernel in under_test() {
            let (clean, poisoned) = (shape.attend(&*kernel, &clean, &q), shape.attend(&*kernel, &poisoned, &q));
            for (i, (clean, poisoned)) in clean.iter().zip(&poisoned).enumerate() {
                let position = 90 + i / (3 * 64);
                if position >= 100 && window.is_none_or(|width| position < 100 + width) {
                    assert!(poisoned.is_nan(), "{} position {position} hides a NaN", kernel.name());
                } else {
                    assert_eq!(clean.to_bits(), poisoned.to_bits(), "{} position {position}", kernel.name());
                }
            }
        }
    }
}

#[test]
fn huge_scores_do_not_overflow() {
    let shape = Shape { first_position: 0, n_position: 70, group: 2, head_dim: 32, window: None };
    let mut kv = Rows::new(shape.n_key(), 32, 4);
    kv.k.iter_mut().for_each(|value| *value *= 1e4);
    let q: Vec<f32> = shape.queries().iter().map(|value| value * 1e4).collect();
    for kernel in under_test() {
        assert!(shape.attend(&*kernel, &kv, &q).iter().all(|value| value.is_finite()), "{}", kernel.name());
    }
}

#[test]
fn a_named_kernel_is_itself_and_a_wrong_name_is_an_error() {
    for entry in KERNELS {
        match resolve(Some(entry.name)) {
            Ok(kernel) => assert_eq!(kernel.name(), entry.name),
            Err(error) => {
                let KernelError::Unavailable { name, reason } = error else { panic!("{error}") };
                assert!(name == entry.name && !reason.is_empty());
                let hints = error.hints().concat();
                assert!(hints.contains("reference") && !hints.contains(entry.name), "{hints}");
            }
        }
    }
    let error = match resolve(Some("avx1024")) {
        Ok(kernel) => panic!("{} in place of an unknown kernel", kernel.name()),
        Err(error) => error,
    };
    assert!(matches!(&error, KernelError::Unknown { known, .. } if known.len() == KERNELS.len()));
    assert!(error.hints().concat().contains("portable"));
    let best = resolve(None).map(|kernel| kernel.name());
    assert_eq!(best, Ok(available()[0].name()));
    assert_eq!(resolve(Some("auto")).map(|kernel| kernel.name()), best);
}
