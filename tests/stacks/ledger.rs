//! What was tried and what was paid for it, worked out from the trace: a second
//! set of books, in which the budget of a plan is kept by hand.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use crate::tests::stacks::{
    plan::{Kind, Plan},
    trace::{Event, Story},
};

const TOKEN: u64 = 1_000;
const SECOND: u64 = 1_000_000_000;

type Name = Option<String>;

/// All that the trace tells about tries.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// What is wrong.
    pub(crate) faults: Vec<String>,
    /// How many repeats each candidate has left in the end.
    pub(crate) left: HashMap<Name, u64>,
    pub(crate) repeats: usize,
    pub(crate) fallbacks: usize,
    /// Repeats that the bucket could not pay for.
    pub(crate) denials: usize,
    /// The layers that were about to try again when the story ended, and since
    /// when.
    pub(crate) waiting: HashMap<usize, Duration>,
    /// How many tries each layer made of the latest request that came to it.
    pub(crate) tries: HashMap<usize, usize>,
}

/// The bucket of one candidate.
#[derive(Debug, Default)]
struct Bucket {
    deposits: u64,
    spent_until: u64,
    first: u64,
    repeats: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Source {
    Deposits,
    Floor,
    Nothing,
}

/// One request at one layer.
#[derive(Debug)]
struct Visit {
    tries: Vec<Name>,
    granted: Option<(Name, Source, Duration)>,
}

struct Books<'a> {
    plan: &'a Plan,
    buckets: HashMap<Name, Bucket>,
    visits: HashMap<usize, Visit>,
    /// Whose buckets the call has paid into.
    paid: HashSet<Name>,
    ledger: Ledger,
}

pub(crate) fn ledger(plan: &Plan, story: &Story) -> Ledger {
    let mut books = Books {
        plan,
        buckets: HashMap::new(),
        visits: HashMap::new(),
        paid: HashSet::new(),
        ledger: Ledger::default(),
    };
    let mut now = Duration::ZERO;
    for entry in &story.entries {
        now = entry.at;
        match &entry.event {
            Event::Came(layer, _) => books.came(*layer),
            Event::Willing(layer, name) => books.willing(*layer, name, now),
            Event::Tried(layer, name) => books.tried(*layer, name, now),
            _ => {}
        }
    }
    books.close(now)
}

impl Books<'_> {
    /// What layers further in were granted and did not use went back.
    fn refund(&mut self, from: usize) {
        for (_, visit) in self.visits.iter_mut().filter(|(layer, _)| **layer >= from) {
            let Some((name, source, _)) = visit.granted.take() else {
                continue;
            };
            let interval = interval(self.plan);
            let bucket = self.buckets.entry(name).or_default();
            match source {
                Source::Deposits => bucket.deposits += TOKEN,
                Source::Floor => bucket.spent_until -= interval.unwrap_or(0),
                Source::Nothing => {}
            }
        }
    }

    fn came(&mut self, layer: usize) {
        self.refund(layer);
        let visit = Visit {
            tries: vec![],
            granted: None,
        };
        self.visits.insert(layer, visit);
    }

    fn willing(&mut self, layer: usize, name: &Name, now: Duration) {
        self.refund(layer);
        let repeats = matches!(self.plan.layers[layer], Kind::Retry { .. });
        let source = if repeats {
            withdraw(
                self.plan,
                self.buckets.entry(name.clone()).or_default(),
                now,
            )
        } else {
            Some(Source::Nothing)
        };
        match (self.visits.get_mut(&layer), source) {
            (Some(visit), Some(source)) => visit.granted = Some((name.clone(), source, now)),
            _ => self.ledger.denials += 1,
        }
    }

    fn tried(&mut self, layer: usize, name: &Name, now: Duration) {
        self.refund(layer + 1);
        let kind = self.plan.layers[layer];
        let Some(visit) = self.visits.get_mut(&layer) else {
            return self.fault("a try without a request");
        };
        let first = visit.tries.is_empty();
        let granted = visit.granted.take();
        let again = visit.tries.contains(name);
        visit.tries.push(name.clone());
        let tries = visit.tries.len();
        match kind {
            Kind::Fallback { candidates, .. } => {
                self.ledger.fallbacks += usize::from(!first);
                if again || tries > candidates {
                    self.fault(format!("{name:?} came up twice in one call"));
                }
            }
            Kind::Retry { attempts, .. } => {
                self.ledger.repeats += usize::from(!first);
                if tries as u64 > u64::from(attempts) {
                    self.fault(format!("try {tries} of {attempts}"));
                }
                self.pay(name, first, now);
            }
            _ => {}
        }
        if !first && granted.is_none() {
            self.fault(format!("{name:?} was tried again without leave"));
        }
    }

    /// Each first attempt pays in, once for all layers that make it; what is paid
    /// out is never more than that and the floor.
    fn pay(&mut self, name: &Name, first: bool, now: Duration) {
        let Budgeted { deposit, floor } = budgeted(self.plan);
        let bucket = self.buckets.entry(name.clone()).or_default();
        if !first {
            bucket.repeats += 1;
        } else if self.paid.insert(name.clone()) {
            bucket.first += 1;
            bucket.deposits = (bucket.deposits + deposit).min((10 * floor).max(10) * TOKEN);
        }
        let time = u64::try_from(now.as_nanos()).unwrap();
        let most = bucket.first * deposit + (floor + floor * time / SECOND) * TOKEN;
        if bucket.repeats * TOKEN > most {
            let why = format!("{name:?} was repeated {} times, of {most}", bucket.repeats);
            self.fault(why);
        }
    }

    fn fault(&mut self, why: impl Into<String>) {
        self.ledger.faults.push(why.into());
    }

    fn close(mut self, now: Duration) -> Ledger {
        for (layer, visit) in &self.visits {
            self.ledger.tries.insert(*layer, visit.tries.len());
            if let Some((_, _, since)) = visit.granted {
                self.ledger.waiting.insert(*layer, since);
            }
        }
        self.refund(0);
        let plan = self.plan;
        let names = std::iter::once(None).chain((0..4).map(|at| Some(super::build::model(at))));
        for name in names {
            let bucket = self.buckets.entry(name.clone()).or_default();
            let mut left = 0;
            while withdraw(plan, bucket, now).is_some() {
                left += 1;
            }
            self.ledger.left.insert(name, left);
        }
        self.ledger
    }
}

struct Budgeted {
    deposit: u64,
    floor: u64,
}

fn budgeted(plan: &Plan) -> Budgeted {
    Budgeted {
        deposit: plan.budget.deposit,
        floor: u64::from(plan.budget.floor),
    }
}

fn interval(plan: &Plan) -> Option<u64> {
    SECOND.checked_div(budgeted(plan).floor)
}

/// From the deposits first, then from the floor, of which a second piles up.
fn withdraw(plan: &Plan, bucket: &mut Bucket, now: Duration) -> Option<Source> {
    if let Some(rest) = bucket.deposits.checked_sub(TOKEN) {
        bucket.deposits = rest;
        return Some(Source::Deposits);
    }
    let interval = interval(plan)?;
    let now = u64::try_from(now.as_nanos()).unwrap();
    let next = bucket.spent_until.max(now) + interval;
    if next > now + budgeted(plan).floor * interval {
        return None;
    }
    bucket.spent_until = next;
    Some(Source::Floor)
}
