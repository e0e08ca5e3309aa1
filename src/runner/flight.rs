//! Groups in flight: as many are asked at once as the arm's concurrency says, and they land in the order they started in,
//! so that the journal of an arm does not depend on which group was answered first.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use crate::runner::event::RunEvent;
use crate::sample::{Completion, Item};
use crate::targets::{CancelFlag, Target, TargetError, TargetEvent, Watch};

/// Started groups per lane: an answered group waits for those before it, and behind a slow one not more than these pile up.
const GROUPS_PER_LANE: usize = 2;

/// What comes back for a group, item by item.
pub(super) type Results = Vec<Result<Completion, TargetError>>;

/// The groups that were started and have not landed.
pub(super) struct Flight<'a> {
    target: &'a dyn Target,
    cancel: &'a Arc<CancelFlag>,
    gauge: &'a Gauge<'a>,
    lanes: usize,
    n_started: usize,
    slots: VecDeque<Slot<'a>>,
}

struct Slot<'a> {
    number: usize,
    items: Vec<Item>,
    state: State<'a>,
}

enum State<'a> {
    Asked(Pin<Box<dyn Future<Output = Results> + 'a>>),
    Answered(Results),
}

impl<'a> Flight<'a> {
    pub(super) fn new(lanes: usize, target: &'a dyn Target, cancel: &'a Arc<CancelFlag>, gauge: &'a Gauge<'a>) -> Self {
        Self { target, cancel, gauge, lanes, n_started: 0, slots: VecDeque::new() }
    }

    /// Whether another group may start.
    pub(super) fn has_room(&self) -> bool {
        let asked = self.slots.iter().filter(|slot| matches!(slot.state, State::Asked(_))).count();
        asked < self.lanes && self.slots.len() < GROUPS_PER_LANE * self.lanes
    }

    /// Whether everything has landed.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Items in flight.
    pub(super) fn items(&self) -> usize {
        self.slots.iter().map(|slot| slot.items.len()).sum()
    }

    /// Asks the items of a group.
    pub(super) fn start(&mut self, items: Vec<Item>) {
        let (target, gauge, number) = (self.target, self.gauge, self.n_started);
        let (asked, cancel) = (items.clone(), Arc::clone(self.cancel));
        self.n_started += 1;
        gauge.begin(number);
        let answers = async move {
            let forward = |event: TargetEvent| gauge.take(number, event);
            let watch = Watch { on_event: &forward, cancel };
            target.complete(asked, &watch).await
        };
        self.slots.push_back(Slot { number, items, state: State::Asked(Box::pin(answers)) });
    }

    /// Waits until one more group is answered.
    pub(super) async fn wait(&mut self) {
        poll_fn(|context| {
            let mut is_news = self.slots.iter().all(|slot| matches!(slot.state, State::Answered(_)));
            for slot in &mut self.slots {
                if let State::Asked(answers) = &mut slot.state
                    && let Poll::Ready(results) = answers.as_mut().poll(context)
                {
                    slot.state = State::Answered(results);
                    is_news = true;
                }
            }
            if is_news { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// The oldest group, if it is answered.
    pub(super) fn land(&mut self) -> Option<(Vec<Item>, Results)> {
        let is_answered = self.slots.front().is_some_and(|slot| matches!(slot.state, State::Answered(_)));
        match if is_answered { self.slots.pop_front() } else { None } {
            Some(Slot { number, items, state: State::Answered(results) }) => {
                self.gauge.end(number);
                Some((items, results))
            }
            _ => None,
        }
    }
}

/// The progress of all groups in flight as one.
pub(super) struct Gauge<'a> {
    on_event: &'a (dyn Fn(RunEvent) + Send + Sync),
    groups: Mutex<BTreeMap<usize, Reached>>,
}

#[derive(Clone, Copy, Default)]
struct Reached {
    done: usize,
    total: usize,
    tokens: usize,
}

impl<'a> Gauge<'a> {
    pub(super) fn new(on_event: &'a (dyn Fn(RunEvent) + Send + Sync)) -> Self {
        Self { on_event, groups: Mutex::default() }
    }

    fn begin(&self, number: usize) {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Reached::default());
    }

    fn end(&self, number: usize) {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    fn take(&self, number: usize, event: TargetEvent) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = groups.entry(number).or_default();
        match event {
            TargetEvent::Prefill { done, total } => (reached.done, reached.total) = (done, total),
            TargetEvent::Decode { tokens } => reached.tokens = tokens,
        }
        let sum = |part: fn(&Reached) -> usize| groups.values().map(part).sum();
        let event = match event {
            TargetEvent::Prefill { .. } => {
                RunEvent::Prefill { done: sum(|reached| reached.done), total: sum(|reached| reached.total) }
            }
            TargetEvent::Decode { .. } => RunEvent::Decode { tokens: sum(|reached| reached.tokens) },
        };
        drop(groups);
        (self.on_event)(event);
    }
}
