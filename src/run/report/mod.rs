//! Reports of a run for the program: events, snapshots, summaries, errors, trajectory, log.

mod event;
mod log;
mod snapshot;
mod summary;
mod terminated;
mod trajectory;

pub use self::{
    event::{Answer, RunEvent, RunEvents, RunNotice, Status, Verdict},
    snapshot::{Deadlines, RunAction, RunCheck, RunProgress, RunSnapshot},
    summary::{CallSummary, NotCounted},
    terminated::Terminated,
    trajectory::Trajectory,
};

pub(crate) use self::summary::{Hooks, OnEnd, ReportedUsage};
