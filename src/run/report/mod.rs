//! Reports of a run for the program: events, snapshots, summaries, errors, trajectory, log.

mod event;
mod log;
mod snapshot;
mod summary;
mod terminated;
mod trajectory;
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
    usage::ReportedUsage,
};
