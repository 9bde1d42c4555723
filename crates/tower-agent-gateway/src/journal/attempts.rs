//! The last attempts of each run.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use serde_json::{Value, json};
use tower_agent::{Owner, RunId, RunRegistry, attempt::AttemptSummary};

use super::unix_ms;

/// The most attempts of a run that are kept.
const OF_RUN: usize = 32;

/// The most runs whose attempts are kept, as many as the registry remembers.
const RUNS: usize = RunRegistry::ENDED;

#[derive(Debug, Default)]
pub(super) struct AttemptsOfLate(Mutex<AttemptsByRun>);

#[derive(Debug, Default)]
struct AttemptsByRun {
    by_run: HashMap<Key, VecDeque<RunAttempt>>,
    /// The runs in the order of their first attempts.
    order: VecDeque<Key>,
}

type Key = (Option<Owner>, RunId);

#[derive(Debug)]
struct RunAttempt {
    tried: AttemptSummary,
    ended: SystemTime,
}

impl AttemptsOfLate {
    pub(super) fn note(&self, tried: &AttemptSummary, now: SystemTime) {
        let key = (tried.owner, tried.run.clone());
        let attempt = RunAttempt {
            tried: tried.clone(),
            ended: now,
        };
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !runs.by_run.contains_key(&key) {
            if runs.order.len() >= RUNS {
                if let Some(oldest) = runs.order.pop_front() {
                    runs.by_run.remove(&oldest);
                }
            }
            runs.order.push_back(key.clone());
        }
        let attempts = runs.by_run.entry(key).or_default();
        if attempts.len() >= OF_RUN {
            attempts.pop_front();
        }
        attempts.push_back(attempt);
    }

    pub(super) fn candidate(&self, owner: Owner, run: &RunId) -> Option<Arc<str>> {
        let runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let attempts = runs.by_run.get(&(Some(owner), run.clone()))?;
        attempts.back()?.tried.candidate.clone()
    }

    pub(super) fn of(&self, owner: Owner, run: &RunId) -> Vec<Value> {
        let runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let attempts = runs.by_run.get(&(Some(owner), run.clone()));
        attempts.map_or_else(Vec::new, |all| all.iter().map(RunAttempt::shown).collect())
    }
}

impl RunAttempt {
    /// The attempt as JSON. The upstream's message is for the operator: it may name hosts.
    fn shown(&self) -> Value {
        let tried = &self.tried;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        json!({
            "candidate": tried.candidate,
            "reason": tried.reason.as_str(),
            "class": tried.class.map(|class| class.as_str()),
            "signal": (!tried.signal.is_empty()).then_some(&*tried.signal),
            "status": tried.status.map(|status| status.as_u16()),
            "message": (!tried.message.is_empty()).then_some(&tried.message),
            "request_id": tried.request_id,
            "began_unix_ms": unix_ms(self.ended).saturating_sub(millis(tried.duration)),
            "served_after_ms": tried.served_after.map(millis),
            "duration_ms": millis(tried.duration),
            "usage": tried.usage,
        })
    }
}
