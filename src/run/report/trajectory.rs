//! Writes lines of JSON about runs that a limit or a clock ended, and about refused work.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Write},
    sync::{Arc, atomic::Ordering},
    thread::{self, ThreadId},
    time::Duration,
};

use super::{snapshot::millis, terminated::Terminated};
use crate::{
    guarded::guarded,
    lock::Lock,
    run::{
        id::RunId,
        reason::{ReasonClass, TerminalReason},
        state::NodeState,
        tree::{End, Node},
    },
};

/// The maximum of refused tools that the trajectory records for one run.
const REFUSALS: u8 = 8;

/// Writes a line of JSON for each run that a limit or a clock ended, and lines for tools and
/// requests that were refused.
///
/// A trajectory is cheap to clone; all clones write to the same writer.
/// [`RunRegistry::trajectory`](crate::RunRegistry::trajectory) sets it for all runs of a
/// registry, [`Run::record_to`](crate::Run::record_to) for one run.
///
/// ```json
/// {"type":"harness_terminate","kind":"harness_terminate","reason":"turn_cap_reached","at_turn":30,"run":"r-1","session":null,"elapsed_ms":190000,"message":"The run was stopped .."}
/// {"type":"harness_refused","kind":"harness_refused","reason":"turn_cap_reached","name":"compaction","run":"r-1","session":null}
/// {"type":"harness_refused","kind":"harness_refused","reason":"turn_cap_reached","cap":"turns_per_hour","limit":600,"refused":1,"owner":"owner-0f5c..","run":null,"session":null}
/// ```
///
/// A line `harness_terminate` is written once for each run that ended by a limit or a clock, alone
/// or with its one call, and not with a node above it. `at_turn` is the number of the run's turns.
///
/// A line `harness_refused` with a `name` says that a tool was not started because its run has
/// ended by a limit or a clock, or is closing for one. The line is written for the first eight such
/// tools of a run.
///
/// A line `harness_refused` with a `cap` says that a cap of [`OwnerCaps`](crate::OwnerCaps) refused
/// requests, of whichever runs. The first refusal is written at once; after that a line comes with
/// a later refusal, at most once a minute for each owner and cap. `refused` counts the refusals
/// since the line before, the present one included. `run` is the run of the refused request, or
/// null if the registry dropped a new run at the refusal. The [`Owner`](crate::Owner) appears as
/// its `Display` prints it. A count without a line for an hour may be forgotten.
///
/// # When a line is written
///
/// The line of a run's end is written once, while the run ends: after the tasks that wait for the
/// end have been woken, and before [`Run::end`](crate::Run::end), or the poll that found the passed
/// clock, returns.
///
/// The writer receives each line in one piece, and is then flushed. One thread at a time holds the
/// writer, under no other lock. So the writer may itself end runs and refuse others: their lines
/// come next. A slow writer blocks the task that ended the run, and every other thread with a line.
/// An error or a panic of the writer is logged, and has no other effect.
#[derive(Clone)]
pub struct Trajectory(Arc<SharedLineWriter<dyn Write + Send>>);

/// The fields with which each kind of line begins. `type` and `kind` are equal: readers of
/// trajectories look for either.
#[derive(serde::Serialize)]
struct TrajectoryRecord<'a, T> {
    r#type: &'static str,
    kind: &'static str,
    reason: &'a TerminalReason,
    #[serde(flatten)]
    rest: T,
}

#[derive(serde::Serialize)]
struct Terminate {
    at_turn: u32,
    run: RunId,
    session: Option<Arc<str>>,
    #[serde(rename = "elapsed_ms", serialize_with = "millis")]
    elapsed: Duration,
    /// Whether a cap on tokens ended the run by an estimate; absent if not.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    estimated: bool,
    message: String,
}

#[derive(serde::Serialize)]
struct RefusedRecord<'a> {
    name: &'a str,
    run: RunId,
    session: Option<Arc<str>>,
}

impl Trajectory {
    /// Makes a trajectory that writes its lines to `writer`.
    #[must_use]
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self(Arc::new(SharedLineWriter::new(writer)))
    }

    /// Writes a line about requests that an owner's cap refused.
    pub(crate) fn refuse_owner(&self, reason: &TerminalReason, refused: &impl serde::Serialize) {
        self.write("harness_refused", reason, refused);
    }

    fn write<T: serde::Serialize>(&self, kind: &'static str, reason: &TerminalReason, rest: T) {
        if let Some(line) = line(kind, reason, rest) {
            self.0.put(line);
        }
    }
}

fn line<T: serde::Serialize>(
    kind: &'static str,
    reason: &TerminalReason,
    rest: T,
) -> Option<Vec<u8>> {
    let event = TrajectoryRecord {
        r#type: kind,
        kind,
        reason,
        rest,
    };
    // Serialization does not fail: the fields are strings and numbers.
    let mut line = serde_json::to_vec(&event).ok()?;
    line.push(b'\n');
    Some(line)
}

impl Node<NodeState> {
    /// Writes a line about a tool that was not started because a limit or a clock has ended the
    /// run, or is closing it.
    pub(crate) fn refuse_tool(&self, name: &str) {
        let run = self.nearest_run();
        let end = run.nearest_end();
        let Some(reason) = end.map(|end| &end.reason).or_else(|| run.refusal()) else {
            return;
        };
        if !is_harness(reason) {
            return;
        }
        let Some(trajectory) = run.trajectory() else {
            return;
        };
        let refusals = &run.run_state().rare().refusals;
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let one_more = |refusals| (refusals < REFUSALS).then_some(refusals + 1);
        if refusals.fetch_update(stored, failed, one_more).is_ok() {
            let refused = RefusedRecord {
                name,
                run: run.run_id(),
                session: run.session(),
            };
            trajectory.write("harness_refused", reason, refused);
        }
    }

    /// The action that writes the line of this run's end. `None` without a trajectory, if the run
    /// ended with a node above it, or if its reason is not a limit or clock.
    pub(in crate::run) fn record_end(&self, end: &End) -> Option<Box<dyn FnOnce()>> {
        if end.origin != self.number() || !is_harness(&end.reason) {
            return None;
        }
        let trajectory = self.trajectory()?;
        let terminated = Terminated::of(self);
        let terminate = Terminate {
            at_turn: self.turns(),
            run: self.run_id(),
            session: self.session(),
            elapsed: end.lasted(),
            estimated: terminated.is_estimated(),
            message: terminated.message(),
        };
        let line = line("harness_terminate", &end.reason, terminate)?;
        Some(Box::new(move || trajectory.0.put(line)))
    }

    /// The trajectory of the nearest run that has its own, at or above this node; else that of the
    /// nearest registry.
    fn trajectory(&self) -> Option<Trajectory> {
        let own = |node: &Self| node.payload.rare_if_any()?.trajectory.get().cloned();
        let of_registry = |node: &Self| node.payload.registration()?.trajectory();
        let nearest_own = self.path().find_map(own);
        nearest_own.or_else(|| self.path().find_map(of_registry))
    }
}

/// Whether a run with this reason was ended by a limit or a clock.
fn is_harness(reason: &TerminalReason) -> bool {
    matches!(reason.class(), ReasonClass::Limit | ReasonClass::Timeout)
}

impl fmt::Debug for Trajectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trajectory(..)")
    }
}

/// A writer that receives lines from many threads, each line whole.
pub(in crate::run) struct SharedLineWriter<W: ?Sized> {
    waiting: Lock<QueuedLines>,
    writer: Lock<W>,
}

#[derive(Default)]
struct QueuedLines {
    lines: VecDeque<Vec<u8>>,
    /// The thread that holds the writer now; `None` if none does.
    writing: Option<ThreadId>,
}

impl<W> SharedLineWriter<W> {
    pub(in crate::run) fn new(writer: W) -> Self {
        Self {
            waiting: Lock::default(),
            writer: Lock::new(writer),
        }
    }
}

impl<W: Write + ?Sized> SharedLineWriter<W> {
    /// Puts a line in the queue, and writes the queue before it returns, unless the writer itself
    /// causes the line.
    ///
    /// If the writer itself causes the line on this thread, the call that holds the writer writes
    /// the line later.
    pub(in crate::run) fn put(&self, line: Vec<u8>) {
        let this = thread::current().id();
        {
            let mut waiting = self.waiting.lock();
            waiting.lines.push_back(line);
            if waiting.writing == Some(this) {
                return;
            }
        }
        let mut writer = self.writer.lock();
        while let Some(line) = self.next(this) {
            write(&mut *writer, &line);
        }
    }

    /// Takes the next line for this thread, which holds the writer. With `None` the queue is empty,
    /// and the thread must release the writer.
    fn next(&self, this: ThreadId) -> Option<Vec<u8>> {
        let mut waiting = self.waiting.lock();
        let line = waiting.lines.pop_front();
        waiting.writing = line.as_ref().map(|_| this);
        line
    }
}

fn write<W: Write + ?Sized>(writer: &mut W, line: &[u8]) {
    let written = guarded(|| -> io::Result<()> {
        writer.write_all(line)?;
        writer.flush()
    });
    match written {
        Some(Ok(())) => {}
        Some(Err(error)) => {
            tracing::error!(target: "tower_agent", %error, "trajectory not written");
        }
        None => tracing::error!(target: "tower_agent", "trajectory panicked"),
    }
}
