//! Several groups in flight on one engine: whoever has a question open takes part in the next decode step, and a group that
//! comes later joins in as soon as its prompts are read (continuous batching).
//!
//! What is in a batch changes no answer, because the engine computes every row by itself. Two things keep it so here: a
//! group is let in only if the cache holds all that it and those before it can need at most, and when a batch fails, its
//! groups are answered again one by one, because a failed batch does not tell whose fault it was.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::{Engine, SequenceId};
use crate::targets::TargetError;
use crate::targets::embedded::LoadedModel;
use crate::targets::embedded::group::{Group, Job, engine_error, likeliest};
use crate::targets::embedded::question::Asked;

/// Rows of one decode pass: their logits take 64 × vocabulary × 4 bytes, 12 MiB for a small one and 64 MiB for the largest.
const MAX_DECODE_ROWS: usize = 64;

/// The engine of an arm with the groups that wait for it.
pub(super) struct Scheduler {
    model: Arc<LoadedModel>,
    engine: Mutex<Engine>,
    waiting: Mutex<VecDeque<Job>>,
}

/// What is going on.
#[derive(Default)]
struct Work<'m> {
    open: Vec<Group<'m>>,
    /// The next group, while there is no room for it.
    next: Option<Group<'m>>,
    /// Groups of a batch that failed, to be answered one by one.
    again: VecDeque<Group<'m>>,
    /// Whether the open group is one of these.
    is_alone: bool,
}

impl Scheduler {
    pub(super) fn new(model: Arc<LoadedModel>, engine: Engine) -> Self {
        Self { model, engine: Mutex::new(engine), waiting: Mutex::default() }
    }

    /// Lets a group wait; [`Scheduler::run`] has to be called after it.
    pub(super) fn add(&self, job: Job) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back(job);
    }

    /// Answers groups until none waits. While it runs, further calls wait, and find their group answered by the first.
    pub(super) fn run(&self) {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let mut work = Work::default();
        loop {
            self.admit(&mut engine, &mut work);
            if work.open.is_empty() {
                return;
            }
            work.step(&mut engine);
        }
    }

    /// Starts groups as long as there is room.
    fn admit<'m>(&'m self, engine: &mut Engine, work: &mut Work<'m>) {
        if work.open.is_empty() {
            work.is_alone = false;
            if let Some(group) = work.again.pop_front() {
                work.is_alone = true;
                work.start(engine, group);
            }
        }
        let capacity = engine.capacity();
        while !work.is_alone {
            let job = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(group) = work.next.take().or_else(|| job().map(|job| Group::new(&self.model, job))) else {
                return;
            };
            let blocks = |group: &Group<'_>| group.most_blocks(capacity.block_tokens);
            let needed: usize = work.open.iter().chain([&group]).map(blocks).sum();
            if !work.open.is_empty() && needed > capacity.n_block {
                work.next = Some(group);
                return;
            }
            work.start(engine, group);
        }
    }
}

impl<'m> Work<'m> {
    fn start(&mut self, engine: &mut Engine, mut group: Group<'m>) {
        group.start(engine);
        self.open.push(group);
    }

    /// One token for every open question.
    fn step(&mut self, engine: &mut Engine) {
        for group in &mut self.open {
            if group.is_abandoned() {
                group.fail(engine, &TargetError::Cancelled);
            } else if !group.is_done() {
                group.take_tokens(engine);
            }
        }
        let mut rows: Vec<&mut Asked> = self.open.iter_mut().flat_map(Group::open).collect();
        let result = rows.chunks_mut(MAX_DECODE_ROWS).try_for_each(|rows| decode(engine, rows));
        if let Err(error) = result {
            self.give_up_batch(engine, &error);
        }
        let (done, open): (Vec<_>, Vec<_>) = std::mem::take(&mut self.open).into_iter().partition(Group::is_done);
        self.open = open;
        done.into_iter().for_each(Group::reply);
    }

    fn give_up_batch(&mut self, engine: &mut Engine, error: &TargetError) {
        match self.open.as_mut_slice() {
            [group] => group.fail(engine, error),
            _ => {
                let (done, mut open): (Vec<_>, Vec<_>) = self.open.drain(..).partition(Group::is_done);
                open.iter_mut().for_each(|group| group.reset(engine));
                self.again.extend(open);
                self.open = done;
            }
        }
    }
}

/// Decodes one token of each row and chooses the next.
fn decode(engine: &mut Engine, rows: &mut [&mut Asked]) -> Result<(), TargetError> {
    let steps: Vec<(SequenceId, u32)> = rows.iter().map(|row| (row.sequence, row.next_token)).collect();
    let logits = engine.decode(&steps).map_err(engine_error)?;
    for (row, logits) in rows.iter_mut().zip(logits.chunks_exact(logits.len() / steps.len())) {
        row.next_token = likeliest(logits)?;
    }
    Ok(())
}
