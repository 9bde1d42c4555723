//! What the operator's routes show of the past: the attempts of runs, the ends of the last hour, and how
//! each candidate fared of late.
//!
//! Hooks of the stacks write it at the end of each attempt and each call. It is in memory and bounded; what
//! a route shows costs a lock for as long as it is copied.

mod attempts;
mod candidates;
mod ends;

pub(crate) use self::{
    candidates::CandidateOfLate,
    ends::{EndKey, EndsBy, KEPT as KEPT_MINUTES},
};

use std::{sync::Arc, time::SystemTime};

use serde_json::Value;
use tower_agent::{CallSummary, Owner, RunId, attempt::AttemptSummary};

use self::{
    attempts::AttemptsOfLate,
    candidates::Candidates,
    ends::{Ends, EndsOfMinute},
};

/// The journal of a gateway; clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal(Arc<JournalState>);

#[derive(Debug, Default)]
struct JournalState {
    attempts: AttemptsOfLate,
    candidates: Candidates,
    ends: Ends,
}

impl Journal {
    /// Notes an attempt that is over.
    pub(crate) fn tried(&self, tried: &AttemptSummary) {
        let now = now();
        self.0.attempts.note(tried, now);
        self.0.candidates.note(tried, now);
    }

    /// Notes a call that has ended.
    pub(crate) fn ended(&self, call: &CallSummary) {
        self.0.ends.note(call, now());
    }

    /// The last attempts of a run that are over, the oldest first.
    pub(crate) fn attempts(&self, owner: Owner, run: &RunId) -> Vec<Value> {
        self.0.attempts.of(owner, run)
    }

    /// The candidate of the last attempt of a run that is over.
    pub(crate) fn candidate(&self, owner: Owner, run: &RunId) -> Option<Arc<str>> {
        self.0.attempts.candidate(owner, run)
    }

    /// How each candidate fared in the last five minutes.
    pub(crate) fn candidates(&self) -> Vec<(Arc<str>, CandidateOfLate)> {
        self.0.candidates.of_late(now())
    }

    /// How many calls ended in each of the last `minutes`, by what.
    pub(crate) fn ends(&self, by: EndsBy, minutes: usize) -> Vec<EndsOfMinute> {
        self.0.ends.last(by, minutes, now())
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "people read these times, and minutes are the wall clock's"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Milliseconds since 1970.
fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
