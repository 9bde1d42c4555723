//! What a program learns of a run: events, snapshots, summaries, errors, a trajectory, the log.

mod event;
mod log;
mod snapshot;
mod summary;
mod terminated;
mod trajectory;
mod tries;
mod usage;

pub use self::{
    event::{RunEvent, RunEvents, RunNotice},
    snapshot::{Deadlines, RunProgress, RunSnapshot},
    summary::CallSummary,
    terminated::Terminated,
    trajectory::Trajectory,
    usage::NotCounted,
};

pub(crate) use self::{
    summary::{Hooks, OnEnd},
    tries::AttemptTarget,
    usage::ReportedUsage,
};
