//! The run tree: one place where the end of a run is written down, and where
//! every layer looks before it acts.
//!
//! The failures that this crate is about share one root: "this attempt failed,
//! try another" and "the run is over, stop" look the same to a layer that sees
//! an error. A [`Run`] is a handle on a node of a tree (run, call, attempt,
//! tool, sub-agent's run). A node ends once, with a [`TerminalReason`]; its
//! end ends everything below it, also what is opened later, and nothing above
//! it. So a layer that holds an error looks at its own node: live means that
//! the attempt failed, ended means stop.
//!
//! # Who settles
//!
//! Whoever opened a node settles it, and only if nothing else ended it: a
//! whole 2xx answer as `Completed`, a failed one as `Failed`, a dropped one as
//! `Aborted`. The first layer that sees a request without a node opens a run
//! that is this one call.
//!
//! # Same instant
//!
//! A stored reason, then what is finished, then the outermost node whose clock
//! has passed, and on one node ceiling, step window, caller's deadline.
//!
//! # Examples
//!
//! One run over several calls and tools, ended from anywhere:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use tower_agent::{Run, TerminalReason, ToolError};
//!
//! let run = Run::open();
//! let stop = run.clone();
//! let tool = run.tool("search").watch(std::future::pending::<()>());
//!
//! let (result, _) = tokio::join!(tool, async { stop.end(TerminalReason::Aborted) });
//! assert_eq!(result.unwrap_err().reason, TerminalReason::Aborted);
//! assert_eq!(run.settled().await, TerminalReason::Aborted);
//! # }
//! ```

mod actions;
mod core;
mod drive;
mod ended;
pub(crate) mod errors;
mod event;
mod handle;
mod harness;
mod hook;
mod id;
mod info;
mod kind;
mod log;
mod reason;
mod registry;
mod settle;
mod silence;
mod snapshot;
mod step;
mod summary;
mod task;
mod terminated;
mod told;
mod tool;
mod trajectory;
mod tries;
mod verdict;
mod wait;

pub use self::{
    actions::{LoopPattern, LoopVerdict},
    ended::{Ended, Settled},
    event::{Notice, RunEvent, RunEvents},
    handle::{PauseGuard, Run},
    harness::{ProgressNotices, ShadowReport},
    id::{InvalidRunId, RunId},
    kind::{Limits, NodeKind, ResetOn, Scope},
    reason::{CustomReason, ReasonClass, TerminalReason},
    registry::{InvalidRunCursor, Owner, OwnerCaps, RunCursor, RunDrain, RunPage, RunRegistry},
    snapshot::{Deadlines, Progress, RunSnapshot},
    step::{Step, StepKind},
    summary::CallSummary,
    terminated::Terminated,
    told::NotCounted,
    tool::{Call, CallResult, Tool, ToolError, Watch},
    trajectory::Trajectory,
    verdict::{Answer, Status, Verdict},
    wait::RunWait,
};

#[cfg(test)]
pub(crate) use self::core::gap;
pub(crate) use self::{
    actions::LoopLimits,
    core::{Announcement, Clock, Nanos, Passed, TaskId, Window, nanos},
    drive::{Drive, Turn, poll_until_end},
    handle::WeakRun,
    harness::{HEARTBEAT, TurnCap, Working},
    info::Failing,
    registry::{Held, OpenRun, WeakRegistry},
    silence::Silence,
    summary::OnEnd,
    task::TaskGuard,
    tries::Server,
};
