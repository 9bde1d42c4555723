//! `GET /metrics`: counts of runs, calls and attempts, for Prometheus.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use futures_util::FutureExt;
use tokio::time::sleep;
use tower_agent::{CallSummary, RunEvent, RunEvents, RunRegistry, TerminalReason};

pub(crate) use self::attempts::AttemptsLayer;
use self::exposition::{Exposition, Kind};

mod attempts;
mod exposition;
#[cfg(test)]
mod tests;

/// The time for which the ends of runs gather before they are counted.
///
/// The registry holds 1024 events for an observer: those of 50,000 runs per second.
const GATHERED: Duration = Duration::from_millis(10);

/// The counts since the start. Cheap to clone; all clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(Arc<Mutex<Counts>>);

/// The counts behind the metrics.
///
/// Labels come only from the configuration and this crate, so callers and upstreams cannot
/// create new ones.
#[derive(Debug, Default)]
struct Counts {
    candidates: BTreeSet<String>,
    /// Runs that ended, by reason.
    runs: BTreeMap<String, u64>,
    /// Calls that ended, by reason and candidate.
    calls: BTreeMap<(String, String), u64>,
    /// Attempts, by candidate and outcome.
    attempts: BTreeMap<(String, String), u64>,
    input_tokens: u64,
    output_tokens: u64,
    /// Events that the registry dropped, because they came faster than they were counted.
    lost: u64,
}

impl Metrics {
    /// Counts under the names of these candidates, too; any other name counts as `other`.
    pub(crate) fn know(&self, candidates: impl IntoIterator<Item = String>) {
        self.with(|counts| counts.candidates.extend(candidates));
    }

    /// Counts a call that ended; to be called once for each.
    pub(crate) fn call(&self, call: &CallSummary) {
        self.with(|counts| {
            let candidate = counts.candidate(call.candidate.as_deref());
            let key = (reason(&call.reason), candidate.to_owned());
            *counts.calls.entry(key).or_default() += 1;
            if let Some(usage) = call.usage {
                counts.input_tokens = counts.input_tokens.saturating_add(usage.input_tokens);
                counts.output_tokens = counts.output_tokens.saturating_add(usage.output_tokens);
            }
        });
    }

    /// Counts an attempt with a known outcome; to be called once for each.
    fn attempt(&self, candidate: String, outcome: String) {
        self.with(|counts| *counts.attempts.entry((candidate, outcome)).or_default() += 1);
    }

    /// The label for the candidate of a call or an attempt.
    fn candidate(&self, name: Option<&str>) -> String {
        self.with(|counts| counts.candidate(name).to_owned())
    }

    /// Counts how runs end, until the registry is dropped.
    pub(crate) async fn watch(self, mut events: RunEvents) {
        while let Some(event) = events.next().await {
            self.event(&event);
            while let Some(event) = events.next().now_or_never() {
                let Some(event) = event else {
                    return;
                };
                self.event(&event);
            }
            // While it sleeps, the end of a run wakes no task for it.
            sleep(GATHERED).await;
        }
    }

    fn event(&self, event: &RunEvent) {
        self.with(|counts| match event {
            RunEvent::Ended { reason: why, .. } => {
                *counts.runs.entry(reason(why)).or_default() += 1;
            }
            RunEvent::Lost { events } => counts.lost += events,
            _ => {}
        });
    }

    fn scrape(&self, registry: &RunRegistry) -> String {
        self.text(registry.open_runs())
    }

    fn text(&self, open: usize) -> String {
        let mut out = Exposition::default();
        self.with(|counts| {
            out.family("agent_runs_open", Kind::Gauge, "Runs that have not ended.");
            out.sample(&[], open as u64);
            out.family(
                "agent_runs_ended_total",
                Kind::Counter,
                "Runs that ended, by why.",
            );
            for (reason, count) in &counts.runs {
                out.sample(&[("reason", reason)], *count);
            }
            let help = "Calls that ended, by why and by who served them or was asked last.";
            out.family("agent_calls_ended_total", Kind::Counter, help);
            for ((reason, candidate), count) in &counts.calls {
                out.sample(&[("reason", reason), ("candidate", candidate)], *count);
            }
            let help = "Tries of calls, by whom they went to and how their answers began, \
                        or why there was none.";
            out.family("agent_attempts_total", Kind::Counter, help);
            for ((candidate, outcome), count) in &counts.attempts {
                out.sample(&[("candidate", candidate), ("outcome", outcome)], *count);
            }
            for (name, help, count) in [
                (
                    "agent_input_tokens_total",
                    "Tokens of prompts.",
                    counts.input_tokens,
                ),
                (
                    "agent_output_tokens_total",
                    "Tokens of answers.",
                    counts.output_tokens,
                ),
                (
                    "agent_events_lost_total",
                    "Events that were not counted.",
                    counts.lost,
                ),
            ] {
                out.family(name, Kind::Counter, help);
                out.sample(&[], count);
            }
        });
        out.finish()
    }

    fn with<T>(&self, f: impl FnOnce(&mut Counts) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Counts {
    /// The label of a candidate; one that is not configured is `other`.
    fn candidate<'a>(&self, name: Option<&'a str>) -> &'a str {
        match name {
            None => "",
            Some(name) if self.candidates.contains(name) => name,
            Some(_) => "other",
        }
    }
}

pub(crate) async fn metrics(State((metrics, registry)): State<(Metrics, RunRegistry)>) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    let text = metrics.scrape(&registry);
    ([("content-type", kind)], text).into_response()
}

/// The label of a reason. A trusted upstream may send reasons of its own, and these share the
/// label `other`.
fn reason(reason: &TerminalReason) -> String {
    match reason {
        TerminalReason::Custom(_) => "other".to_owned(),
        known => known.as_str().to_owned(),
    }
}
