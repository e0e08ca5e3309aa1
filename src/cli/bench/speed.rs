//! Prefill and decode, timed per length and dtype. Dtypes take turns inside a repeat and the first of them changes from repeat
//! to repeat, so that a machine that slows down while it is measured slows all of them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvgauge::engine::kernels::peak_flops;
use kvgauge::engine::kv_cache::codec::codec;
use kvgauge::engine::{Engine, EngineError, EngineOptions, Model, RopeScaling, SequenceId};
use kvgauge::rng::Rng;
use kvgauge::units::format_token_count;

use super::document::{Cell, Decode, Document, FORMAT_VERSION, Rate};
use super::options::SpeedArgs;
use super::workload::prefill_flop;
use super::{BenchError, memory, outputs};
use crate::args::RopeChoice;
use crate::config::ConfigFile;
use crate::exit_code::Exit;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output::note;
use crate::settings::{self, ModelSettings};
use crate::{machine, model};

/// Tokens computed and thrown away by each new engine: starts its threads and touches every weight.
const WARM_UP_TOKENS: usize = 64;

/// Lines about one long prefill come at most this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// What is timed; every list without repetitions.
struct Plan {
    lengths: Vec<u32>,
    dtypes: Vec<&'static str>,
    batches: Vec<u32>,
    decode_tokens: u32,
    repeats: u32,
}

/// Tokens per second of one visit to a cell.
struct Trial {
    prefill: f64,
    /// One per batch size.
    decode: Vec<f64>,
    peak_rss_bytes: Option<u64>,
}

/// The loaded model and how it is run.
struct Bench {
    model: Arc<Model>,
    settings: ModelSettings,
    plan: Plan,
}

pub(super) fn execute(args: &SpeedArgs, config: &ConfigFile) -> Result<Exit, Failure> {
    outputs::check(&args.results)?;
    let plan = Plan::new(args)?;
    let settings = settings::model(&args.model, config);
    let _interrupt = Interrupt::watch().map_err(Failure::Runtime)?;
    let found = model::find(&settings)?;
    let load_before = load_average();
    let start = Instant::now();
    let model = Arc::new(Model::load(&found.path)?);
    let load_seconds = start.elapsed().as_secs_f64();
    let bench = Bench { model, settings, plan };
    bench.check()?;

    let engine = bench.engine(bench.plan.dtypes[0])?;
    let kernel = engine.resolved().kernel.clone();
    drop(engine);
    let threads = bench.settings.threads;
    let peak = || peak_flops(&kernel, threads).map_err(EngineError::Kernel);
    note(&format!("measuring the peak of {kernel} on {threads} threads"));
    let peak_before = peak()?;
    let trials = bench.run()?;
    // Whatever slowed the first measurement of the peak would make the shares too large.
    let peak_gflops = peak_before.max(peak()?) / 1e9;
    let document = Document {
        format_version: FORMAT_VERSION,
        kvgauge_version: env!("CARGO_PKG_VERSION"),
        machine: machine::facts(),
        load_average: [load_before, load_average()],
        model: found.name.clone(),
        weights: bench.model.weights_hash(),
        load_seconds,
        threads,
        peak_gflops,
        decode_tokens: bench.plan.decode_tokens,
        repeats: bench.plan.repeats,
        cells: bench.cells(trials, peak_gflops)?,
        kernel,
    };
    outputs::deliver(&document, &args.results)?;
    Ok(Exit::Success)
}

impl Plan {
    fn new(args: &SpeedArgs) -> Result<Self, Failure> {
        let mut lengths = args.lengths.clone();
        lengths.sort_unstable();
        lengths.dedup();
        let mut dtypes: Vec<&'static str> = Vec::new();
        for name in &args.kv_cache_dtype {
            let name = codec(name)?.name();
            if !dtypes.contains(&name) {
                dtypes.push(name);
            }
        }
        let mut batches: Vec<u32> = Vec::new();
        for batch in &args.batch {
            if !batches.contains(batch) {
                batches.push(*batch);
            }
        }
        Ok(Self { lengths, dtypes, batches, decode_tokens: args.decode_tokens, repeats: args.repeats })
    }

    /// Cells of one repeat as indices: of the length, of the dtype.
    fn turns(&self, repeat: u32) -> impl Iterator<Item = (usize, usize)> + '_ {
        let n_dtype = self.dtypes.len();
        let first = repeat as usize % n_dtype;
        (0..self.lengths.len()).flat_map(move |length| (0..n_dtype).map(move |turn| (length, (first + turn) % n_dtype)))
    }
}

impl Bench {
    fn engine(&self, dtype: &str) -> Result<Engine, EngineError> {
        let options = EngineOptions {
            kv_cache_dtype: dtype.into(),
            kernel: self.settings.kernel.clone(),
            threads: self.settings.threads,
            ..EngineOptions::default()
        };
        Engine::new(Arc::clone(&self.model), &options)
    }

    /// Whether every cell can be measured, before the first one is.
    fn check(&self) -> Result<(), Failure> {
        let longest = *self.plan.lengths.last().expect("the option has at least one value");
        check_trained(&self.settings, self.model.config().trained_context, longest)?;
        let batch = self.plan.batches.iter().copied().max().unwrap_or(1);
        for dtype in &self.plan.dtypes {
            let engine = self.engine(dtype)?;
            let facts = engine.resolved();
            let (prompt, decoded) = (longest as usize, self.plan.decode_tokens as usize + 1);
            let own = (prompt + decoded).div_ceil(facts.block_tokens) - prompt / facts.block_tokens;
            let needed_blocks = prompt.div_ceil(facts.block_tokens) + batch as usize * own;
            if needed_blocks > facts.n_block {
                let (dtype, n_block) = ((*dtype).to_owned(), facts.n_block);
                return Err(BenchError::CacheTooSmall { length: longest, batch, dtype, needed_blocks, n_block }.into());
            }
        }
        Ok(())
    }

    /// Trials as `[length][dtype][repeat]`.
    fn run(&self) -> Result<Vec<Vec<Vec<Trial>>>, Failure> {
        let Plan { lengths, dtypes, repeats, .. } = &self.plan;
        let mut trials: Vec<Vec<Vec<Trial>>> =
            lengths.iter().map(|_| dtypes.iter().map(|_| Vec::new()).collect()).collect();
        let n_trial = lengths.len() * dtypes.len() * *repeats as usize;
        let mut done = 0;
        for repeat in 0..*repeats {
            for (length, dtype) in self.plan.turns(repeat) {
                let trial = self.trial(lengths[length], dtypes[dtype])?;
                done += 1;
                let (length_text, dtype_name) = (format_token_count(lengths[length]), dtypes[dtype]);
                note(&format!("{done}/{n_trial} {length_text} {dtype_name}: prefill {:.0} tok/s", trial.prefill));
                trials[length][dtype].push(trial);
            }
        }
        Ok(trials)
    }

    /// A new engine each time, so that its memory is that of this cell alone.
    fn trial(&self, length: u32, dtype: &str) -> Result<Trial, EngineError> {
        memory::forget_peak();
        let mut engine = self.engine(dtype)?;
        let ids = self.ids(length as usize);
        let warm = engine.start(RopeScaling::Default)?;
        engine.prefill(warm, &ids[..ids.len().min(WARM_UP_TOKENS)], &mut |_| ControlFlow::Continue(()))?;
        engine.decode(&[(warm, ids[0])])?;
        engine.release(warm);

        let prompt = engine.start(scaling(&self.settings, self.model.config().trained_context, length))?;
        let start = Instant::now();
        let mut told = start;
        engine.prefill(prompt, &ids, &mut |done| {
            if told.elapsed() >= PROGRESS_INTERVAL {
                told = Instant::now();
                note(&format!("{} {dtype}: {done} tokens of the prompt done", format_token_count(length)));
            }
            ControlFlow::Continue(())
        })?;
        let prefill = f64::from(length) / start.elapsed().as_secs_f64();
        let batches = self.plan.batches.iter();
        let decode = batches.map(|batch| self.decode(&mut engine, prompt, *batch)).collect::<Result<_, _>>()?;
        Ok(Trial { prefill, decode, peak_rss_bytes: memory::peak_bytes() })
    }

    /// Tokens per second of `batch` sequences that go on after the same prompt.
    fn decode(&self, engine: &mut Engine, prompt: SequenceId, batch: u32) -> Result<f64, EngineError> {
        let twins: Vec<SequenceId> = (0..batch).map(|_| engine.fork(prompt)).collect::<Result<_, _>>()?;
        // Ids are given, not chosen from the logits, so that every dtype decodes the same text.
        let ids = self.ids((self.plan.decode_tokens as usize + 1) * twins.len());
        let mut steps = ids.chunks_exact(twins.len()).map(|ids| {
            let step: Vec<(SequenceId, u32)> = twins.iter().copied().zip(ids.iter().copied()).collect();
            engine.decode(&step).map(drop)
        });
        // The first step copies the blocks that the twins share.
        steps.next().unwrap_or(Ok(()))?;
        let start = Instant::now();
        steps.collect::<Result<(), _>>()?;
        let seconds = start.elapsed().as_secs_f64();
        twins.into_iter().for_each(|twin| engine.release(twin));
        Ok(f64::from(batch * self.plan.decode_tokens) / seconds)
    }

    /// The same ids in every run. Speed does not depend on them.
    fn ids(&self, n_token: usize) -> Vec<u32> {
        let mut rng = Rng::from_name(&["bench"]);
        let vocab_size = self.model.config().vocab_size;
        (0..n_token).map(|_| rng.below(vocab_size) as u32).collect()
    }

    fn cells(&self, trials: Vec<Vec<Vec<Trial>>>, peak_gflops: f64) -> Result<Vec<Cell>, EngineError> {
        let mut cells = Vec::new();
        for (length, by_dtype) in self.plan.lengths.iter().zip(trials) {
            for (dtype, trials) in self.plan.dtypes.iter().zip(by_dtype) {
                let prefill = Rate::of(trials.iter().map(|trial| trial.prefill).collect());
                let prefill_gflop = prefill_flop(self.model.config(), *length as usize) / 1e9;
                let decode = self.plan.batches.iter().enumerate().map(|(index, batch)| Decode {
                    batch: *batch,
                    rate: Rate::of(trials.iter().map(|trial| trial.decode[index]).collect()),
                });
                cells.push(Cell {
                    length: *length,
                    kv_cache_dtype: (*dtype).into(),
                    share_of_peak: prefill_gflop * prefill.best / f64::from(*length) / peak_gflops,
                    prefill,
                    prefill_gflop,
                    decode: decode.collect(),
                    cache_bytes_per_token: self.engine(dtype)?.resolved().bytes_per_token,
                    peak_rss_bytes: trials.iter().filter_map(|trial| trial.peak_rss_bytes).max(),
                });
            }
        }
        Ok(cells)
    }
}

/// An error for prompts longer than the model was trained for, unless positions may be stretched.
pub(super) fn check_trained(settings: &ModelSettings, trained_context: usize, length: u32) -> Result<(), BenchError> {
    if settings.rope_scaling == RopeChoice::None && length as usize > trained_context {
        return Err(BenchError::BeyondTrained { length, trained_context, model: settings.name.clone() });
    }
    Ok(())
}

/// How positions are stretched for a prompt of `length` tokens.
pub(super) fn scaling(settings: &ModelSettings, trained_context: usize, length: u32) -> RopeScaling {
    let factor = f64::from(length) / trained_context as f64;
    match settings.rope_scaling {
        RopeChoice::Ntk if factor > 1.0 => RopeScaling::Ntk { factor },
        RopeChoice::Linear if factor > 1.0 => RopeScaling::Linear { factor },
        _ => RopeScaling::Default,
    }
}

/// The last 1, 5 and 15 minutes; empty where the system does not tell.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dtypes_take_turns_at_being_first() {
        let plan =
            Plan { lengths: vec![512, 2048], dtypes: vec!["a", "b"], batches: vec![1], decode_tokens: 1, repeats: 2 };
        let turns = |repeat| plan.turns(repeat).collect::<Vec<_>>();
        assert_eq!(turns(0), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(turns(1), [(0, 1), (0, 0), (1, 1), (1, 0)]);
    }
}
