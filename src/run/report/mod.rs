//! Reports of a run for the program: events, snapshots, summaries, errors, trajectory, log, spans.

mod event;
mod log;
#[cfg(feature = "metrics")]
mod metrics;
mod paused;
mod snapshot;
mod span;
mod summary;
mod terminated;
mod trajectory;
mod verdict;

pub use self::{
    event::{RunEvent, RunEvents, RunNotice},
    paused::{RunCap, RunPause, RunPaused},
    snapshot::{Deadlines, RunAction, RunCheck, RunProgress, RunSnapshot},
    summary::{CallSummary, NotCounted},
    terminated::Terminated,
    trajectory::Trajectory,
    verdict::{Answer, Status, Verdict},
};

#[cfg(feature = "metrics")]
pub(crate) use self::metrics::{CallMetrics, StreamChunks};
pub(crate) use self::{
    paused::Hold,
    span::{Spans, is_traced},
    summary::{Hooks, OnEnd, ReportedUsage},
};

pub(in crate::run) use self::{paused::CapWords, span::SpanSlot};
