//! Metrics of runs, calls and attempts, recorded with the `metrics` facade.
//!
//! A program that installs a recorder of the facade, such as that of `metrics-exporter-prometheus`,
//! gets the numbers below. Without a recorder nothing is counted, and a request allocates only for
//! a name with labels that its thread does not remember; a thread remembers 64. A recorder that
//! panics disturbs no call.
//!
//! | metric | type | labels |
//! |---|---|---|
//! | `gen_ai.client.operation.duration` | histogram, seconds | those of a call, `error.type` |
//! | `gen_ai.client.token.usage` | histogram, tokens | those of a call, `gen_ai.token.type` |
//! | `gen_ai.client.operation.time_to_first_chunk` | histogram, seconds | those of a call |
//! | `gen_ai.client.operation.time_per_output_chunk` | histogram, seconds | those of a call |
//! | `agent_runs_ended_total` | counter | `reason` |
//! | `agent_attempts_total` | counter | `model`, `outcome` |
//! | `agent_retry_budget_denied_total` | counter | `budget` |
//! | `agent_fallbacks_total` | counter | `from`, `to`, `why` |
//! | `agent_cooldowns_total` | counter | `model`, `why` |
//! | `agent_cancel_latency_seconds` | histogram, seconds | |
//!
//! The labels of a call are `gen_ai.operation.name`, `gen_ai.provider.name` and
//! `gen_ai.request.model`. `docs/events.md`, beside the README, says of each metric when it is
//! recorded, and which values its labels have.
//!
//! # What is not a label
//!
//! A label is a word of this crate or the [label](crate::Candidate::label) of a candidate of the
//! program. Nothing that callers or upstreams send becomes one: a [custom
//! reason](crate::TerminalReason::custom) is `other`, and so is the operation of an unknown path.
//! The model is left out where no [`ModelFallbackLayer`](crate::ModelFallbackLayer) chose a
//! candidate.
//!
//! # Examples
//!
//! ```
//! use metrics_util::debugging::DebuggingRecorder;
//! use tower_agent::{Run, TerminalReason};
//!
//! let recorder = DebuggingRecorder::new();
//! let numbers = recorder.snapshotter();
//! recorder.install().expect("no recorder is installed yet");
//! tower_agent::metrics::describe();
//!
//! Run::open().end(TerminalReason::TurnCap);
//!
//! let numbers = numbers.snapshot().into_vec();
//! let (name, ..) = &numbers[0];
//! assert_eq!(name.key().to_string(), "Key(agent_runs_ended_total, [reason = turn_cap_reached])");
//! ```

use std::{cell::Cell, sync::Arc, time::Duration};

use ::metrics::{Key, KeyName, Label, Level, Metadata, Recorder, Unit, with_recorder};
use http::StatusCode;

use crate::guarded::guarded;
use crate::llm::{GenAiOperation, dialect::Usage};

/// The value of a label instead of a text that this crate and the configuration do not know.
pub(crate) const OTHER: &str = "other";

/// One metric: its name, its unit and its description.
struct Metric {
    name: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Histogram,
}

const DURATION: Metric = Metric {
    name: "gen_ai.client.operation.duration",
    kind: Kind::Histogram,
    unit: Unit::Seconds,
    help: "Time from the start of a call to its end, over all its attempts.",
};

const TOKENS: Metric = Metric {
    name: "gen_ai.client.token.usage",
    kind: Kind::Histogram,
    unit: Unit::Count,
    help: "Tokens of a call that upstreams reported, over all its attempts.",
};

const FIRST_CHUNK: Metric = Metric {
    name: "gen_ai.client.operation.time_to_first_chunk",
    kind: Kind::Histogram,
    unit: Unit::Seconds,
    help: "Time from the start of a call to the first chunk with content of its stream.",
};

const PER_CHUNK: Metric = Metric {
    name: "gen_ai.client.operation.time_per_output_chunk",
    kind: Kind::Histogram,
    unit: Unit::Seconds,
    help: "Time from one chunk with content to the next, as the mean of a call's stream.",
};

const RUNS: Metric = Metric {
    name: "agent_runs_ended_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Runs that ended, by reason.",
};

const ATTEMPTS: Metric = Metric {
    name: "agent_attempts_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Attempts, by candidate and by the head of the answer or the cause of its absence.",
};

const DENIED: Metric = Metric {
    name: "agent_retry_budget_denied_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Repeats that were refused, by the budget that was used up.",
};

const FALLBACKS: Metric = Metric {
    name: "agent_fallbacks_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Moves of a call to another candidate, by cause.",
};

const COOLDOWNS: Metric = Metric {
    name: "agent_cooldowns_total",
    kind: Kind::Counter,
    unit: Unit::Count,
    help: "Cooldowns that began, by the candidate that failed and by the class of its failure.",
};

const CANCEL_LATENCY: Metric = Metric {
    name: "agent_cancel_latency_seconds",
    kind: Kind::Histogram,
    unit: Unit::Seconds,
    help: "Time from the disconnect of a caller to the release of the upstream.",
};

static ALL: [Metric; 10] = [
    DURATION,
    TOKENS,
    FIRST_CHUNK,
    PER_CHUNK,
    RUNS,
    ATTEMPTS,
    DENIED,
    FALLBACKS,
    COOLDOWNS,
    CANCEL_LATENCY,
];

/// Describes all metrics of this crate, with their units, to the current recorder.
///
/// Call it once, after the recorder is installed. Exporters show the descriptions as help texts.
pub fn describe() {
    with_recorder(|recorder| {
        for metric in &ALL {
            let name = KeyName::from_const_str(metric.name);
            let (unit, help) = (Some(metric.unit), metric.help.into());
            match metric.kind {
                Kind::Counter => recorder.describe_counter(name, unit, help),
                Kind::Histogram => recorder.describe_histogram(name, unit, help),
            }
        }
    });
}

/// The target of the metrics, by which a recorder may filter them.
static METADATA: Metadata<'static> = Metadata::new("tower_agent", Level::INFO, None);

/// The most keys that a thread remembers. A program has some for each of its candidates.
const MOST_KEYS: usize = 64;

thread_local! {
    /// The keys under which this thread has recorded: making a key takes longer than recording.
    static KEYS: Cell<Vec<Key>> = const { Cell::new(Vec::new()) };
}

/// The name and the value of a label; `None` if the metric goes without it.
type MaybeLabel<'a> = Option<(&'static str, &'a str)>;

impl Metric {
    fn increment(&self, labels: &[MaybeLabel<'_>]) {
        self.record(labels, |recorder, key| {
            recorder.register_counter(key, &METADATA).increment(1);
        });
    }

    /// Records `value` `times` times.
    fn observe(&self, labels: &[MaybeLabel<'_>], value: f64, times: usize) {
        self.record(labels, |recorder, key| {
            let histogram = recorder.register_histogram(key, &METADATA);
            histogram.record_many(value, times);
        });
    }

    /// Calls `act` with the recorder, and catches a panic of the recorder.
    ///
    /// Calls end where bodies are dropped: a panic there would take unrelated work down.
    fn record(&self, labels: &[MaybeLabel<'_>], act: impl FnOnce(&dyn Recorder, &Key)) {
        // A thread that ends has dropped its keys, and maybe its recorder.
        let Ok(mut keys) = KEYS.try_with(Cell::take) else {
            return;
        };
        let record = || {
            let known = keys.iter().position(|key| self.is_key(key, labels));
            let at = known.unwrap_or_else(|| {
                if keys.len() == MOST_KEYS {
                    keys.clear();
                }
                keys.push(self.key(labels));
                keys.len() - 1
            });
            with_recorder(|recorder| act(recorder, &keys[at]));
            KEYS.set(keys);
        };
        guarded(record);
    }

    fn is_key(&self, key: &Key, labels: &[MaybeLabel<'_>]) -> bool {
        // Most texts are static words of this crate, and so have equal addresses.
        let same = |one: &str, other: &str| std::ptr::eq(one, other) || one == other;
        let mut labels = labels.iter().flatten();
        same(key.name(), self.name)
            && key.labels().all(|known| {
                let label = labels.next();
                label.is_some_and(|(name, value)| {
                    same(known.key(), name) && same(known.value(), value)
                })
            })
            && labels.next().is_none()
    }

    fn key(&self, labels: &[MaybeLabel<'_>]) -> Key {
        let labels = labels.iter().flatten();
        let labels = labels.map(|&(name, value)| Label::new(name, value.to_owned()));
        let name = KeyName::from_const_str(self.name);
        Key::from_parts(name, labels.collect::<Vec<_>>()).to_retained()
    }
}

/// The label of a candidate; none if no layer chose one.
fn of_candidate<'a>(name: &'static str, candidate: Option<&'a Arc<str>>) -> MaybeLabel<'a> {
    candidate.map(|candidate| (name, &**candidate))
}

/// Counts a run that ended.
pub(crate) fn run_ended(reason: &'static str) {
    RUNS.increment(&[Some(("reason", reason))]);
}

/// Counts an attempt with a known outcome.
pub(crate) fn attempt(model: Option<&Arc<str>>, outcome: &'static str) {
    ATTEMPTS.increment(&[of_candidate("model", model), Some(("outcome", outcome))]);
}

/// The outcome of an attempt that got an answer with this status.
pub(crate) fn outcome_of(status: StatusCode) -> &'static str {
    match status.as_u16() / 100 {
        1 => "1xx",
        2 => "2xx",
        3 => "3xx",
        4 => "4xx",
        5 => "5xx",
        _ => OTHER,
    }
}

/// Counts a repeat that a budget refused.
pub(crate) fn repeat_denied(budget: &'static str) {
    DENIED.increment(&[Some(("budget", budget))]);
}

/// Counts a move of a call from one candidate to another.
pub(crate) fn fallback(from: Option<&Arc<str>>, to: Option<&Arc<str>>, why: &'static str) {
    let (from, to) = (of_candidate("from", from), of_candidate("to", to));
    FALLBACKS.increment(&[from, to, Some(("why", why))]);
}

/// Counts a cooldown that began.
pub(crate) fn cooldown(model: &Arc<str>, why: &'static str) {
    COOLDOWNS.increment(&[of_candidate("model", Some(model)), Some(("why", why))]);
}

/// Records the time from the caller's disconnect until the call released the upstream.
pub(crate) fn released(after: Duration) {
    CANCEL_LATENCY.observe(&[], after.as_secs_f64(), 1);
}

/// The most values that one stream records of its chunks: a recorder may keep each of them.
const MOST_CHUNKS: u32 = 1024;

/// The times of the chunks with content in one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkTimes {
    /// The time from the start of the call to the first chunk.
    pub(crate) first: Duration,
    /// The time from the first chunk to the last.
    pub(crate) rest: Duration,
    /// The number of chunks after the first.
    pub(crate) more: u32,
}

/// A call that ended and left no work.
#[derive(Debug)]
pub(crate) struct EndedCall {
    pub(crate) operation: &'static GenAiOperation,
    pub(crate) model: Option<Arc<str>>,
    /// The reason of the call's end; `None` for a completed call.
    pub(crate) error: Option<&'static str>,
    pub(crate) elapsed: Duration,
    pub(crate) usage: Option<Usage>,
    /// The times of the chunks in one of the call's streams; `None` without such.
    ///
    /// That stream is the first that ended with content. A stream that is compressed, or that has
    /// no 2xx status, does not count.
    pub(crate) chunks: Option<ChunkTimes>,
}

impl EndedCall {
    /// Records all metrics of the call.
    pub(crate) fn record(&self) {
        let elapsed = self.elapsed.as_secs_f64();
        let error = self.error.map(|error| ("error.type", error));
        DURATION.observe(&self.labels(error), elapsed, 1);
        if let Some(usage) = self.usage {
            let tokens = [
                ("input", usage.input_tokens),
                ("output", usage.output_tokens),
            ];
            for (kind, count) in tokens {
                #[allow(clippy::cast_precision_loss, reason = "no call has so many tokens")]
                let count = count as f64;
                TOKENS.observe(&self.labels(Some(("gen_ai.token.type", kind))), count, 1);
            }
        }
        if let Some(ChunkTimes { first, rest, more }) = self.chunks {
            FIRST_CHUNK.observe(&self.labels(None), first.as_secs_f64(), 1);
            if more > 0 {
                let mean = rest.as_secs_f64() / f64::from(more);
                let times = more.min(MOST_CHUNKS) as usize;
                PER_CHUNK.observe(&self.labels(None), mean, times);
            }
        }
    }

    fn labels<'a>(&'a self, own: MaybeLabel<'a>) -> [MaybeLabel<'a>; 4] {
        let provider = self.operation.provider.unwrap_or(OTHER);
        [
            Some(("gen_ai.operation.name", self.operation.name)),
            Some(("gen_ai.provider.name", provider)),
            of_candidate("gen_ai.request.model", self.model.as_ref()),
            own,
        ]
    }
}
