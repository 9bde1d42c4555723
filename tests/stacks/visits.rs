//! Several requests of a run, at one replica or at two that share a store, and an operator who holds
//! the run, lets it go on, extends and aborts it.

use std::{collections::BTreeSet, time::Duration};

use futures_util::{
    StreamExt,
    future::{join, join_all},
    stream::FuturesUnordered,
};
use http::{HeaderValue, Request};
use proptest::{prelude::*, sample::Index};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tower::Layer;
use tower_agent::{
    Owner, ReplayBody, Run, RunLayer, RunRegistry, TerminalReason,
    layers::run_store::RunStoreLayer,
    registry::store::InMemoryRunStore,
    run::{RunAdjustments, RunCap, RunExtension},
};

use crate::tests::stacks::{
    build::{self, Boxed, boxed, stack, turn_cap},
    cases,
    drive::{
        self, FOR_EVER, HALF, first_patience, read_all, runtime, settle, settle_at_once, ticks,
    },
    oracles,
    plan::{Kind, Plan},
    trace::{Entry, Event, Node, Over, Story, Trace},
};

/// The number of a request, which its calls of the upstream carry.
pub(crate) const VISIT: &str = "x-visit";

#[derive(Clone, Debug)]
pub(crate) struct Visits {
    /// Of each request its replica and its tick.
    requests: Vec<(usize, u64)>,
    /// What the operator does a half tick after these.
    operations: Vec<(u64, Operation)>,
    /// One without a store, or two with one.
    replicas: usize,
}

/// What an operator does to the run, at all replicas as the gateway does; an abort at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// By so many turns.
    Extend(u32),
    Suspend,
    Resume,
    Abort,
}

/// The same plans, with several requests, a run as the outermost layer, and mostly a cap on its turns.
pub(crate) fn plans() -> impl Strategy<Value = Plan> {
    let operation = prop_oneof![
        3 => (1..3u32).prop_map(Operation::Extend),
        2 => Just(Operation::Suspend),
        3 => Just(Operation::Resume),
        1 => Just(Operation::Abort),
    ];
    let visits = (
        prop::collection::vec((0..2usize, 0..12u64), 2..7),
        prop::collection::vec((0..16u64, operation), 0..5),
        1..3usize,
    );
    let visits = visits.prop_map(|(requests, mut operations, replicas)| {
        operations.sort_by_key(|(at, _)| *at);
        Visits {
            requests,
            operations,
            replicas,
        }
    });
    let pausing = (1..5u32, 0..6u64, 1..30u64);
    let cap = prop_oneof![
        1 => Just(None),
        2 => (1..5u32).prop_map(|turns| Some(Kind::TurnCap(turns))),
        4 => pausing.prop_map(|(turns, wait, limit)| {
            Some(Kind::PausingTurnCap { turns, wait, limit })
        }),
    ];
    (cases::plans(), visits, cap, any::<Index>()).prop_map(|(mut plan, visits, cap, place)| {
        let replaced = |kind: &Kind| matches!(kind, Kind::TurnCap(_) | Kind::Run);
        plan.layers.retain(|kind| !replaced(kind));
        if let Some(cap) = cap {
            plan.layers.insert(place.index(plan.layers.len() + 1), cap);
        }
        plan.layers.insert(0, Kind::Run);
        Plan {
            visits: Some(visits),
            named: true,
            action: None,
            pause: None,
            ..plan
        }
    })
}

struct Replica {
    registry: RunRegistry,
    trace: Trace,
    service: Boxed,
    tasks: Vec<JoinHandle<()>>,
}

impl Replica {
    fn new(plan: &Plan, store: Option<&InMemoryRunStore>) -> Self {
        let trace = Trace::new();
        let mut registry = RunRegistry::new();
        let mut tasks = vec![];
        if let Some(store) = store {
            registry = registry.share(store.replica());
            tasks.push(tokio::spawn(registry.listen()));
        }
        let mut service = stack(plan, &trace, &registry, &build::budget(plan));
        if store.is_some() {
            let asks = RunStoreLayer::new(&RunLayer::new(registry.clone()));
            let asks = match turn_cap(&plan.layers) {
                Some(cap) => asks.turns(&cap),
                None => asks,
            };
            service = boxed(asks.layer(service));
        }
        Self {
            registry,
            trace,
            service,
            tasks,
        }
    }

    fn run(&self) -> Option<Run> {
        self.registry.get(Owner::anonymous(), &"r".parse().unwrap())
    }

    /// Notes when the run ends here.
    fn observe(&self) -> Option<JoinHandle<()>> {
        let (run, trace) = (self.run()?, self.trace.clone());
        Some(tokio::spawn(async move {
            let reason = run.ended().await;
            trace.push(Event::Noticed(Node::Run, reason));
        }))
    }

    /// Operates on the run; of an extension the turns that its cap held, and those that it had. One replica
    /// extends the run, and the others take over its `sums`.
    fn operate(
        &self,
        number: usize,
        operation: Operation,
        sums: &mut Option<RunAdjustments>,
    ) -> Option<(u32, u32)> {
        let run = self.run()?;
        let turns = run.turns();
        let paused = run.snapshot().paused.filter(|paused| !paused.suspended);
        let is_done = match operation {
            Operation::Extend(turns) => match sums {
                Some(sums) => run.adjust_to(sums).is_ok(),
                None => {
                    let is_done = run.extend(RunExtension::new().turns(turns)).is_ok();
                    *sums = is_done.then(|| run.adjustments());
                    is_done
                }
            },
            Operation::Suspend => run.suspend(),
            Operation::Resume => run.resume(),
            Operation::Abort => {
                self.registry
                    .abort(Owner::anonymous(), &"r".parse().unwrap());
                true
            }
        };
        if !is_done {
            return None;
        }
        self.trace.push(Event::Operated(number, turns));
        let paused = paused.filter(|paused| paused.cap == Some(RunCap::Turns))?;
        matches!(operation, Operation::Extend(_)).then_some((paused.held as u32, turns))
    }

    /// Notes what became of the turns that were held when an operation extended the run.
    fn note_let_go(&self, number: usize, (held, before): (u32, u32)) {
        let lives = self.run().filter(|run| run.terminal_reason().is_none());
        if let Some(run) = lives.filter(|_| held > 0) {
            let admitted = run.turns().saturating_sub(before);
            self.trace.push(Event::LetGo(number, held, admitted));
        }
    }
}

fn request(plan: &Plan, number: usize) -> Request<ReplayBody> {
    let mut request = drive::request(plan);
    request
        .headers_mut()
        .insert(VISIT, HeaderValue::from(number));
    request
}

pub(crate) fn play(plan: &Plan) -> Story {
    runtime().block_on(async {
        let visits = plan.visits.as_ref().unwrap();
        let store = (visits.replicas > 1).then(InMemoryRunStore::new);
        let mut replicas: Vec<_> = (0..visits.replicas)
            .map(|_| Replica::new(plan, store.as_ref()))
            .collect();
        let start = Instant::now();
        // A request is polled only if it was woken, as in a task of its own.
        let requests: FuturesUnordered<_> = visits
            .requests
            .iter()
            .enumerate()
            .map(|(number, (at, tick))| {
                let Replica { trace, service, .. } = &replicas[at % visits.replicas];
                let patience = match number {
                    0 => first_patience(plan),
                    _ => FOR_EVER,
                };
                async move {
                    sleep(ticks(*tick)).await;
                    read_all(trace, service, request(plan, number), patience).await;
                }
            })
            .collect();
        let observers = replicas.iter().map(|replica| async move {
            // Runs are opened at full ticks; nothing ends before the next quarter.
            for tick in 0..16 {
                sleep_until(start + ticks(tick)).await;
                settle_at_once().await;
                if let Some(observer) = replica.observe() {
                    return Some(observer);
                }
            }
            None
        });
        let operations = async {
            for (number, (at, operation)) in visits.operations.iter().enumerate() {
                sleep_until(start + ticks(*at) + HALF).await;
                let reached = match operation {
                    Operation::Abort => &replicas[..1],
                    _ => &replicas[..],
                };
                let (mut held, mut sums) = (vec![], None);
                for replica in reached {
                    held.push(replica.operate(number, *operation, &mut sums));
                    // Requests go on between the replicas, and may ask the store.
                    settle_at_once().await;
                }
                for (replica, held) in reached.iter().zip(held) {
                    if let Some(held) = held {
                        replica.note_let_go(number, held);
                    }
                }
            }
        };
        let (_, (observers, ())) =
            join(requests.count(), join(join_all(observers), operations)).await;
        for (replica, observer) in replicas.iter_mut().zip(observers) {
            settle(plan, &replica.trace).await;
            replica.tasks.extend(observer);
        }
        // What has ended refuses one more request, at each replica.
        let ended = replicas.iter().any(|replica| ended_for_all(replica.run()));
        if ended {
            for (number, replica) in replicas.iter().enumerate() {
                let Replica { trace, service, .. } = replica;
                let number = visits.requests.len() + number;
                read_all(trace, service, request(plan, number), FOR_EVER).await;
            }
        }
        for replica in &replicas {
            settle(plan, &replica.trace).await;
        }
        for task in replicas.iter().flat_map(|replica| &replica.tasks) {
            task.abort();
        }
        settle_at_once().await;
        let tasks = tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks();
        let mut parts = replicas.iter().map(|replica| {
            let in_flight = replica.run().map_or(0, |run| run.in_flight());
            let listed = replica
                .registry
                .list()
                .iter()
                .map(|run| run.in_flight)
                .sum();
            replica.trace.push(Event::Gone(in_flight, listed, tasks));
            replica.trace.take()
        });
        let entries = parts.next().unwrap();
        let elsewhere = parts.next().unwrap_or_default();
        Story {
            entries,
            given: vec![],
            said: vec![],
            left: vec![],
            known: true,
            observed: true,
            summaries: vec![],
            turns: vec![],
            elsewhere,
        }
    })
}

/// Whether an end of this run is one at all replicas.
fn ended_for_all(run: Option<Run>) -> bool {
    run.and_then(|run| run.terminal_reason())
        .is_some_and(|reason| is_told(&reason))
}

fn is_told(reason: &TerminalReason) -> bool {
    ![TerminalReason::Completed, TerminalReason::Shutdown].contains(reason)
}

fn parts(story: &Story) -> impl Iterator<Item = &[Entry]> {
    let parts = [&*story.entries, &*story.elsewhere].into_iter();
    parts.filter(|part| !part.is_empty())
}

/// What must hold at each replica, and over all.
pub(crate) fn judge(plan: &Plan, story: &Story) -> Vec<(&'static str, String)> {
    type Judgement = fn(&Plan, &Visits, &Story) -> Option<String>;
    let checks: [(&'static str, Judgement); 5] = [
        ("2 no more turns than the cap and what was added", turns),
        ("2 an extension lets as many held turns go on", let_go),
        ("2 no turn while the run is suspended", suspended),
        ("2 an end is one everywhere, and at once", ends),
        ("2 what has ended asks no upstream", refused),
    ];
    let visits = plan.visits.as_ref().unwrap();
    let broken = checks.into_iter();
    let broken = broken.filter_map(|(oracle, check)| Some((oracle, check(plan, visits, story)?)));
    let of_each = parts(story).flat_map(|part| oracles::of_several(plan, part));
    broken.chain(of_each).collect()
}

/// The requests that reached the upstream.
fn admitted(story: &Story) -> BTreeSet<usize> {
    let visits = parts(story)
        .flatten()
        .filter_map(|entry| match entry.event {
            Event::Visited(number) => Some(number),
            _ => None,
        });
    visits.collect()
}

fn cap(plan: &Plan) -> Option<usize> {
    plan.layers.iter().find_map(|kind| match kind {
        Kind::TurnCap(turns) | Kind::PausingTurnCap { turns, .. } => Some(*turns as usize),
        _ => None,
    })
}

/// The operations that succeeded at any replica, by their numbers.
fn operated(story: &Story) -> BTreeSet<usize> {
    let operated = parts(story)
        .flatten()
        .filter_map(|entry| match entry.event {
            Event::Operated(number, _) => Some(number),
            _ => None,
        });
    operated.collect()
}

fn turns(plan: &Plan, visits: &Visits, story: &Story) -> Option<String> {
    let added = operated(story)
        .into_iter()
        .map(|number| match visits.operations[number].1 {
            Operation::Extend(turns) => turns as usize,
            _ => 0,
        });
    let most = cap(plan)? + added.sum::<usize>();
    let admitted = admitted(story).len();
    (admitted > most).then(|| format!("{admitted} turns of {most}"))
}

fn let_go(_: &Plan, visits: &Visits, story: &Story) -> Option<String> {
    // At two replicas the turns that were added are for both.
    (visits.replicas == 1).then_some(())?;
    parts(story).flatten().find_map(|entry| {
        let Event::LetGo(number, held, admitted) = entry.event else {
            return None;
        };
        let Operation::Extend(added) = visits.operations[number].1 else {
            return None;
        };
        let least = added.min(held);
        (admitted < least).then(|| format!("{admitted} of {held} held turns, by {added}"))
    })
}

fn suspended(plan: &Plan, visits: &Visits, story: &Story) -> Option<String> {
    let pauses = |kind: &Kind| matches!(kind, Kind::PausingTurnCap { .. });
    // With a store the count also has turns of the other replica that are heard of later.
    let is_alone = visits.replicas == 1;
    (is_alone && plan.layers.iter().any(pauses)).then_some(())?;
    parts(story).find_map(|part| {
        let mut since = None;
        part.iter().find_map(|entry| {
            let Event::Operated(number, turns) = entry.event else {
                return None;
            };
            match visits.operations[number].1 {
                Operation::Suspend => since = Some(turns),
                Operation::Resume => {
                    let before = since.take().filter(|before| *before != turns)?;
                    return Some(format!("{before} turns became {turns}"));
                }
                _ => {}
            }
            None
        })
    })
}

/// When the run ended at a replica, and why.
fn ended(part: &[Entry]) -> Option<(Duration, &TerminalReason)> {
    part.iter().find_map(|entry| match &entry.event {
        Event::Noticed(Node::Run, reason) => Some((entry.at, reason)),
        _ => None,
    })
}

fn ends(_: &Plan, _: &Visits, story: &Story) -> Option<String> {
    let [one, two] = [&*story.entries, &*story.elsewhere];
    [(one, two), (two, one)].into_iter().find_map(|(one, two)| {
        // A cap that is used up closes each part once its own calls are over.
        let (at, reason) = ended(one)
            .filter(|(_, reason)| is_told(reason) && **reason != TerminalReason::TurnCap)?;
        let lived = |entry: &Entry| matches!(entry.event, Event::Called(..)) && entry.at < at;
        two.iter().any(lived).then_some(())?;
        let elsewhere = ended(two);
        let is_later = elsewhere.is_none_or(|(elsewhere, _)| elsewhere > at);
        is_later.then(|| format!("{reason:?} at {at:?}, and elsewhere {elsewhere:?}"))
    })
}

fn refused(_: &Plan, visits: &Visits, story: &Story) -> Option<String> {
    let late = admitted(story).split_off(&visits.requests.len());
    (!late.is_empty()).then(|| format!("{late:?}"))
}

pub(crate) const SIGHTS: [&str; 7] = [
    "a run at two replicas",
    "an end at both",
    "a turn that was put off",
    "a turn beyond the cap",
    "a held turn that an extension let go",
    "a suspension and its end",
    "an end by the limit of a pause",
];

pub(crate) fn sights(plan: &Plan, story: &Story) -> Vec<&'static str> {
    let visits = plan.visits.as_ref().unwrap();
    let called = |part: &[Entry]| part.iter().any(|it| matches!(it.event, Event::Called(..)));
    let put_off = |entry: &Entry| match &entry.event {
        Event::Head(503, ..) => true,
        Event::Over(Over::Error(error)) => error.contains("the run is paused"),
        _ => false,
    };
    let is_let_go = |entry: &Entry| matches!(entry.event, Event::LetGo(_, _, 1..));
    let resumed = |number: &usize| visits.operations[*number].1 == Operation::Resume;
    let pauses = |kind: &Kind| matches!(kind, Kind::PausingTurnCap { .. });
    let is_capped =
        |part: &[Entry]| ended(part).is_some_and(|(_, reason)| *reason == TerminalReason::TurnCap);
    let seen = [
        parts(story).filter(|part| called(part)).count() == 2,
        parts(story).filter(|part| ended(part).is_some()).count() == 2,
        parts(story).flatten().any(put_off),
        cap(plan).is_some_and(|cap| admitted(story).len() > cap),
        parts(story).flatten().any(is_let_go),
        operated(story).iter().any(resumed),
        plan.layers.iter().any(pauses) && parts(story).any(is_capped),
    ];
    let seen = SIGHTS.into_iter().zip(seen);
    seen.filter_map(|(sight, seen)| seen.then_some(sight))
        .collect()
}
