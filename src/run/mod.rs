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

mod handle;
mod hook;
mod id;
mod idle_timer;
mod kinds;
mod limits;
mod poll_scope;
mod reason;
mod report;
mod state;
mod tree;
mod verdict;

pub use self::{
    handle::{Ended, PauseGuard, Run, RunWait, Settled},
    id::{InvalidRunId, RunId},
    kinds::{Limits, NodeKind, ResetOn, Scope, Step, StepKind},
    limits::{
        ErrorAllowance, ErrorCounts, ErrorKey, LoopPattern, LoopVerdict, ProgressNotices,
        ShadowReport,
    },
    reason::{CustomReason, ReasonClass, TerminalReason},
    report::{
        CallSummary, Deadlines, NotCounted, RunEvent, RunEvents, RunNotice, RunProgress,
        RunSnapshot, Terminated, Trajectory,
    },
    verdict::{Answer, Status, Verdict},
};

pub(crate) use self::{
    handle::WeakRun,
    idle_timer::IdleTimer,
    limits::{LoopLimits, TurnLimit, WorkingNotices},
    poll_scope::{PollScope, TaskGuard, TreeTime},
    report::{AttemptTarget, OnEnd},
    state::{
        EntryLocation, Failing, HEARTBEAT, Identity, Membership, NodeState, Place, Registration,
        RunGuard,
    },
    tree::{Announcement, Clock, End, IdleWindow, LimitHit, LimitKind, Nanos, Node, TaskId, nanos},
};

#[cfg(test)]
pub(crate) use self::tree::gap;
