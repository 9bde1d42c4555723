//! How each candidate fared of late.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use serde::Serialize;
use tower_agent::attempt::AttemptSummary;

/// How long an attempt counts.
const LATE: Duration = Duration::from_secs(300);

/// The most attempts of a candidate that are kept; of more, the last count.
const MOST: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Candidates(Mutex<HashMap<Arc<str>, VecDeque<CandidateAttempt>>>);

#[derive(Debug)]
struct CandidateAttempt {
    at: SystemTime,
    served_after: Option<Duration>,
    class: Option<&'static str>,
}

/// The attempts of a candidate in the last five minutes, of which up to 4,096 count.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CandidateOfLate {
    attempts: usize,
    failures: usize,
    failures_by_class: BTreeMap<&'static str, usize>,
    /// The median of the time until the answer: for a stream, until its first content.
    first_content_p50_ms: Option<u64>,
}

impl Candidates {
    pub(super) fn note(&self, tried: &AttemptSummary, now: SystemTime) {
        let Some(candidate) = &tried.candidate else {
            return;
        };
        let attempt = CandidateAttempt {
            at: now,
            served_after: tried.served_after,
            class: tried.class.map(|class| class.as_str()),
        };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Names are those of the configurations so far: few.
        let attempts = all.entry(Arc::clone(candidate)).or_default();
        if attempts.len() >= MOST {
            attempts.pop_front();
        }
        attempts.push_back(attempt);
    }

    pub(super) fn of_late(&self, now: SystemTime) -> Vec<(Arc<str>, CandidateOfLate)> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_one = |(name, attempts): (&Arc<str>, &mut VecDeque<CandidateAttempt>)| {
            let is_old = |attempt: &CandidateAttempt| {
                now.duration_since(attempt.at).is_ok_and(|ago| ago > LATE)
            };
            while attempts.front().is_some_and(is_old) {
                attempts.pop_front();
            }
            (Arc::clone(name), CandidateOfLate::of(attempts))
        };
        let mut shown: Vec<_> = all.iter_mut().map(of_one).collect();
        shown.sort_by(|one, other| one.0.cmp(&other.0));
        shown
    }
}

impl CandidateOfLate {
    fn of(attempts: &VecDeque<CandidateAttempt>) -> Self {
        let mut times: Vec<_> = attempts.iter().filter_map(|it| it.served_after).collect();
        times.sort_unstable();
        let median = times.get(times.len() / 2);
        let mut failures_by_class = BTreeMap::new();
        for class in attempts.iter().filter_map(|it| it.class) {
            *failures_by_class.entry(class).or_default() += 1;
        }
        Self {
            attempts: attempts.len(),
            failures: failures_by_class.values().sum(),
            failures_by_class,
            first_content_p50_ms: median
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}
