//! Counts requests, and those that were dropped before their answer was complete.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// The counts of all requests; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Stats(Arc<Mutex<StatsPage>>);

/// The counters as `GET /stats` shows them.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct StatsPage {
    #[serde(flatten)]
    total: RequestCounts,
    by_model: BTreeMap<&'static str, RequestCounts>,
}

#[derive(Debug, Clone, Default, Serialize)]
struct RequestCounts {
    /// Requests that arrived.
    started: u64,
    /// Requests in flight: the upstream has not dropped them and their answers yet.
    open: u64,
    /// Requests that were dropped before their answer was complete.
    released: u64,
}

/// A request in flight. Dropping it before [`OpenRequest::complete`] counts as released.
#[derive(Debug)]
pub(super) struct OpenRequest {
    stats: Stats,
    model: &'static str,
    /// The number of the request on this server, from 1.
    pub(super) serial: u64,
    complete: bool,
}

impl Stats {
    /// Counts a new request for `model`.
    pub(super) fn open(&self, model: &'static str) -> OpenRequest {
        let mut counts = self.lock();
        counts.count(model, |count| {
            count.started += 1;
            count.open += 1;
        });
        OpenRequest {
            stats: self.clone(),
            model,
            serial: counts.total.started,
            complete: false,
        }
    }

    pub(super) fn snapshot(&self) -> StatsPage {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, StatsPage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StatsPage {
    fn count(&mut self, model: &'static str, apply: impl Fn(&mut RequestCounts)) {
        apply(&mut self.total);
        apply(self.by_model.entry(model).or_default());
    }
}

impl OpenRequest {
    /// Marks the answer as complete: a drop from now on releases nothing.
    pub(super) fn complete(&mut self) {
        self.complete = true;
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let released = u64::from(!self.complete);
        self.stats.lock().count(self.model, |count| {
            count.open -= 1;
            count.released += released;
        });
    }
}
