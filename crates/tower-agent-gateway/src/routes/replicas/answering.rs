//! What this gateway answers others, from its own runs.

use std::{iter, sync::Arc};

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use tower_agent::{
    Run, RunId, RunRegistry, RunSnapshot,
    registry::{RunCursor, RunPlace},
    run::RunCompletion,
};

use super::question::{
    CompletionAnswer, ControlAnswer, ControlQuestion, FoundRun, OwnerDigest, PageAnswer, PageRow,
    read, write,
};
use crate::routes::{
    Watched,
    bulk::carry_out,
    events::EventFeed,
    queries::MAX_PAGE,
    selection::{RunOrder, Selection},
};

/// The most bytes of the runs on a page: an answer has at most 4 MiB.
const MAX_BYTES: usize = 3 * 1024 * 1024;

/// What the answers come from.
#[derive(Debug)]
struct Answerer {
    registry: RunRegistry,
    events: EventFeed,
    /// The id of this gateway in the store.
    id: String,
}

/// Answers the questions of other gateways, for as long as the store lives; `None` without
/// `[replicas]`.
pub(crate) fn answers(watched: &Watched) -> Option<impl Future<Output = ()> + Send + 'static> {
    let store = &watched.peers.as_ref()?.store;
    let answering = Arc::new(Answerer {
        registry: watched.registry.clone(),
        events: watched.events.clone(),
        id: store.replica_id().to_owned(),
    });
    Some(store.answer(move |question| {
        let answering = Arc::clone(&answering);
        async move { answering.answer(&question) }
    }))
}

impl Answerer {
    fn answer(&self, question: &str) -> String {
        let answer = read(question).and_then(|question| self.carry_out(question));
        write(answer.unwrap_or(ControlAnswer::Unknown))
    }

    /// Carries out what is asked; `None` if it makes no sense.
    fn carry_out(&self, question: ControlQuestion) -> Option<ControlAnswer> {
        Some(match question {
            ControlQuestion::List {
                limit,
                after,
                wanted,
                sort,
            } => {
                let after = after.of(&self.id);
                let page = page_of(&self.registry, after, limit, &wanted, sort, shared);
                ControlAnswer::Page(page)
            }
            ControlQuestion::Abort { wanted, dry_run } => {
                let ended = carry_out(&self.registry, &wanted, dry_run);
                ControlAnswer::Aborted(ended.iter().map(raw).collect())
            }
            ControlQuestion::Adjust { run, by, at } => {
                let runs = self.find(&run, None)?;
                let is_meant = |run: &&Run| {
                    at.as_ref().is_none_or(|at| {
                        let owner = OwnerDigest::from(run.owner().unwrap_or_default());
                        at.contains(&(owner, self.id.clone()))
                    })
                };
                let adjusted = by.carry_out(runs.iter().filter(is_meant));
                ControlAnswer::Adjusted(adjusted)
            }
            ControlQuestion::Show { run, owner } => {
                let runs = self.find(&run, owner)?;
                let runs = runs.iter().map(|run| FoundRun {
                    owner: run.owner().unwrap_or_default().into(),
                    is_live: run.terminal_reason().is_none(),
                    run: shared(&run.snapshot()),
                });
                ControlAnswer::Runs(runs.collect())
            }
            ControlQuestion::Complete { run, owner } => {
                let runs = self.find(&run, owner)?;
                ControlAnswer::Completion(completion(&runs))
            }
            ControlQuestion::Events { after, since_ms } => {
                let after = after.of(&self.id);
                ControlAnswer::Events(self.events.answer(after, since_ms))
            }
        })
    }

    /// The runs of this id, of all owners or of this one; `None` if it is not an id.
    fn find(&self, id: &str, owner: Option<OwnerDigest>) -> Option<Vec<Run>> {
        let id: RunId = id.parse().ok()?;
        Some(match owner {
            None => self.registry.find(&id),
            Some(owner) => Vec::from_iter(self.registry.get(owner.into(), &id)),
        })
    }
}

/// A page of those of the registry's runs that are wanted, behind this position; `show` makes a row. In
/// another order than the usual one there is one page, of the first.
pub(crate) fn page_of(
    registry: &RunRegistry,
    after: Option<u64>,
    limit: usize,
    wanted: &Selection,
    sort: RunOrder,
    show: impl Fn(&RunSnapshot) -> Box<RawValue>,
) -> PageAnswer {
    let limit = limit.clamp(1, MAX_PAGE);
    let is_sorted = sort != RunOrder::Started;
    let size = match !is_sorted && *wanted == Selection::default() {
        // One run more than the page holds shows whether more follow.
        true => limit + 1,
        false => MAX_PAGE,
    };
    let number = |cursor: RunCursor| cursor.to_string().parse().unwrap_or(0);
    let after = after.and_then(|after| after.to_string().parse().ok());
    let (mut start, mut next) = (None, Some(after));
    let pages = iter::from_fn(|| {
        let page = registry.page(next.take()?, size);
        start.get_or_insert(page.start);
        next = page.next.map(Some);
        Some(page)
    });
    let found = pages.flat_map(|page| page.runs.into_iter().zip(page.places));
    let found = found.filter(|(run, _)| wanted.fits(run));
    let row = |(run, place): (RunSnapshot, RunPlace)| PageRow {
        position: number(place.cursor),
        age_us: u64::try_from(place.age.as_micros()).unwrap_or(u64::MAX),
        key: sort.key(&run),
        run: show(&run),
    };
    let (rows, more) = match is_sorted {
        false => newest(found.map(row), limit),
        true => {
            let first = first(found, sort, limit);
            (first.into_iter().map(row).collect(), false)
        }
    };
    PageAnswer {
        more,
        start: start.map_or(0, number),
        rows,
    }
}

/// The first rows of all that fit on a page, and whether more follow.
fn newest(all: impl Iterator<Item = PageRow>, limit: usize) -> (Vec<PageRow>, bool) {
    let (mut rows, mut bytes) = (Vec::new(), 0);
    for row in all {
        bytes += row.run.get().len();
        if rows.len() == limit || (bytes > MAX_BYTES && !rows.is_empty()) {
            return (rows, true);
        }
        rows.push(row);
    }
    (rows, false)
}

/// The first `limit` runs in this order.
fn first(
    all: impl Iterator<Item = (RunSnapshot, RunPlace)>,
    sort: RunOrder,
    limit: usize,
) -> Vec<(RunSnapshot, RunPlace)> {
    let mut keyed: Vec<_> = all.map(|it| (sort.key(&it.0), it)).collect();
    keyed.sort_by(|(one, _), (other, _)| one.before(other));
    keyed.truncate(limit);
    keyed.into_iter().map(|(_, it)| it).collect()
}

/// A run as other gateways get it: without what was said in it, which never goes into the store.
pub(crate) fn shared(run: &RunSnapshot) -> Box<RawValue> {
    let mut run = serde_json::to_value(run).unwrap_or_default();
    without_texts(&mut run);
    raw(&run)
}

/// Takes from a snapshot what may be words of a prompt or of an answer.
pub(crate) fn without_texts(run: &mut Value) {
    if let Some(fields) = run.as_object_mut() {
        for texts in ["text", "task", "actions", "last_check"] {
            fields.remove(texts);
        }
    }
}

/// A value as JSON.
pub(crate) fn raw(value: &impl Serialize) -> Box<RawValue> {
    // Snapshots and events always serialize.
    to_raw_value(value).unwrap_or_default()
}

/// Completes each of these runs.
pub(crate) fn completion<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Completion {
    let mut done = CompletionAnswer::default();
    for run in runs {
        done.runs += 1;
        match run.complete() {
            RunCompletion::Completed => {}
            RunCompletion::Ended(reason) => done.ended = Some(reason.as_str().to_owned()),
            // Work that has ended since completes the run in this moment.
            _ => done.in_flight += run.in_flight().max(1),
        }
    }
    done
}

/// What became of runs that were to complete.
pub(crate) type Completion = CompletionAnswer;

impl CompletionAnswer {
    /// The status and the answer to whoever completes the runs.
    pub(crate) fn answer(&self) -> (StatusCode, Value) {
        if let Some(reason) = &self.ended {
            return (
                StatusCode::OK,
                json!({ "completed": false, "reason": reason }),
            );
        }
        match self.in_flight {
            0 => (StatusCode::OK, json!({ "completed": true })),
            work => {
                let answer = json!({ "completed": false, "in_flight": work });
                (StatusCode::ACCEPTED, answer)
            }
        }
    }

    /// Adds those of another gateway.
    pub(crate) fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.in_flight += other.in_flight;
        if self.ended.is_none() {
            self.ended = other.ended;
        }
    }
}
