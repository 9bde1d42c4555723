//! The run tree: each node stores its end, and the layers read that end.
//!
//! The failures that this crate prevents share one root: "this attempt failed, try another" and
//! "the run is over, stop" look the same to a layer that sees an error. A [`Run`] is a handle
//! on a node of a tree (run, call, attempt, tool, sub-agent's run). A node ends once, with a
//! [`TerminalReason`]. The end also ends every node below, even one that is opened later, and no
//! node above, except a run that was opened for one call. So a layer that holds an error checks
//! the node that the layer acts on: if that node is live, the attempt failed; if it has ended, the
//! layer stops.
//!
//! # Settlement
//!
//! Once the work is dropped, the opener of a call, an attempt or a tool settles the node: the
//! opener ends the node, unless the node has ended before. A whole answer gives `Completed`; a
//! failed one `Failed`, or the reason by which a layer classified it; a dropped one `Aborted`. A
//! node that was itself closed, other than by a shutdown, ends with the reason of its closing. The
//! first layer that acts on a call from [`Run::attach`] settles that call.
//!
//! A layer that acts on a node, and finds none in its request, opens a run for this one call. The
//! run ends as the call does, unless an inner layer gives the run an id. No layer settles a run
//! of several calls.
//!
//! # Same instant
//!
//! A stored reason wins over a finished answer. Both win over a clock that has passed. Of several
//! nodes with a passed clock the outermost ends; on one node the order is ceiling, step window and
//! floor on speed, timeout or caller's limit, and last the drain time of a closing node.
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

mod call_slot;
mod handle;
mod id;
mod idle_timer;
mod limit_kind;
mod limits;
mod poll_scope;
mod reason;
mod report;
mod request_limits;
mod state;
mod step;
mod tree;

pub use self::{
    handle::{InScope, PauseGuard, Run, RunCompletion, Scope},
    id::{InvalidRunId, RunId},
    limit_kind::TokenMeasure,
    limits::{
        ErrorAllowance, ErrorCounts, ErrorKey, LoopPattern, LoopVerdict, PauseAtCap, Price,
        ProgressNotices, RunAdjustments, RunExtension, ShadowReport, TokenCaps, TokensSpent,
    },
    reason::{CustomReason, ReasonClass, TerminalReason, UnknownReason},
    report::{
        Answer, CallSummary, Deadlines, NotCounted, RunAction, RunCap, RunCheck, RunEvent,
        RunEvents, RunNotice, RunPause, RunPaused, RunProgress, RunSnapshot, Status, Terminated,
        Trajectory, Verdict,
    },
    request_limits::Limits,
    step::{ResetOn, Step, StepKind},
    tree::NodeKind,
};

pub(crate) use self::{
    call_slot::CallSlot,
    handle::{TurnRefused, WeakRun},
    idle_timer::IdleTimer,
    limit_kind::{CapWindow, LimitHit, LimitKind, TokenLimit, TokenRate},
    limits::{
        EndElsewhere, LoopLimits, PartLink, Raised, RunTokenCaps, SharedRun, Spending,
        TokenAccount, TokenMeter, ToolArguments, TurnLimit, TurnNeeded, TurnQuestion, TurnUnderWay,
        TurnsAnswered, TurnsFuture, TurnsGranted, WorkingNotices,
    },
    poll_scope::{PollScope, Role, TaskGuard},
    report::{OnEnd, is_traced},
    state::{
        Admission, AttemptTarget, EventChannel, FailedAttemptList, Failing, HEARTBEAT, HeldBy,
        Identity, NodeState, Place, Registration, RunGuard, Settlement,
    },
    tree::{Announcement, Clock, End, IdleWindow, NEVER, Nanos, Node, TaskId, WindowKind, nanos},
};

#[cfg(feature = "metrics")]
pub(crate) use self::report::StreamChunks;

#[cfg(test)]
pub(crate) use self::tree::gap;
