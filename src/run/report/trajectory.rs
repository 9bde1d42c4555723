//! What the harness did to runs, written down for whoever reads it later.

use std::{
    collections::VecDeque,
    fmt,
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread::{self, ThreadId},
    time::Duration,
};

use super::{snapshot::millis, terminated::Terminated};
use crate::run::{
    handle::Run,
    id::RunId,
    kinds::NodeKind,
    reason::{ReasonClass, TerminalReason},
    state::NodeState,
    tree::{End, Node},
};

/// How many tools that were refused are written down for one run.
const REFUSALS: u8 = 8;

/// A file, or anything else that can be written to, which is told of each run that
/// the harness ended: one line of JSON each. Cheap to clone; all clones write to
/// the same.
///
/// Set for all runs of a registry, [`RunRegistry::trajectory`](crate::registry::RunRegistry::trajectory),
/// or for one, [`Run::record_to`].
///
/// ```json
/// {"type":"event","kind":"harness_terminate","reason":"turn_cap_reached","at_turn":30,"run":"r-1","session":null,"elapsed_ms":190000,"message":"The run was stopped .."}
/// {"type":"event","kind":"harness_refused","reason":"turn_cap_reached","name":"compaction","run":"r-1","session":null}
/// {"type":"event","kind":"harness_refused","reason":"turn_cap_reached","cap":"turns_per_hour","limit":600,"refused":1,"owner":"owner-0f5c..","run":null,"session":null}
/// ```
///
/// The first kind is there once for each run that ended by a limit or a clock of its
/// own, whatever its calls ended by; `at_turn` is how many turns it had. The second
/// says that a tool was not started because of that, for the first eight of a run. The
/// third, which has a `cap` and no `name`, says that a cap of
/// [`OwnerCaps`](crate::registry::OwnerCaps) refused requests, whatever runs they were of: at once
/// for the first, then at most once a minute for each owner and cap, with the next that
/// is refused; `refused` is how many were since the line before, this one included, and
/// `run` that of this one, null if none was opened. The [`Owner`](crate::registry::Owner) is shown
/// as it shows itself. A count that no line followed for an hour may be forgotten.
///
/// # When it is written
///
/// Where the run ends, once, after all who wait for that have been woken, and before
/// [`Run::end`] returns, or the poll that saw the clock. The writer is given a line in
/// one piece, and is then flushed; it is held by one thread at a time and else under no
/// lock, so what it does may end runs and refuse others: their lines come next. A slow
/// one holds up who ended the run, and whoever has a line to write meanwhile. If it
/// fails or panics that is logged, and disturbs nothing.
#[derive(Clone)]
pub struct Trajectory(Arc<Lines<dyn Write + Send>>);

/// What all kinds of lines begin with.
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
    message: String,
}

#[derive(serde::Serialize)]
struct RefusedRecord<'a> {
    name: &'a str,
    run: RunId,
    session: Option<Arc<str>>,
}

impl Trajectory {
    /// Writes to `writer`.
    #[must_use]
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Lines::new(writer)))
    }

    /// An owner is at its cap.
    pub(crate) fn refuse_owner(&self, refused: &impl serde::Serialize) {
        self.write("harness_refused", &TerminalReason::TurnCap, refused);
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
        r#type: "event",
        kind,
        reason,
        rest,
    };
    // Strings and numbers do not fail.
    let mut line = serde_json::to_vec(&event).ok()?;
    line.push(b'\n');
    Some(line)
}

impl Run {
    /// Writes what the harness does to the nearest run, and to the sub-agents below
    /// it, to `trajectory`, in place of the registry's. Of a run that has ended
    /// nothing more is written but what was refused. Of two the first stays.
    pub fn record_to(&self, trajectory: &Trajectory) {
        let harness = self.nearest().payload.harness();
        let _first = harness.trajectory.set(trajectory.clone());
    }

    /// A tool of this name was not started, for the run is over.
    pub(crate) fn refuse_tool(&self, name: &str) {
        let run = self.nearest();
        let end = run.nearest_end();
        let Some(reason) = end.map(|end| &end.reason).or_else(|| run.closing()) else {
            return;
        };
        if !is_harness(reason) {
            return;
        }
        let Some(trajectory) = run.trajectory() else {
            return;
        };
        let refusals = &run.payload.harness().refusals;
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
}

impl Node<NodeState> {
    /// The run has ended: answers what writes that down, if it was a limit of its own.
    pub(in crate::run) fn record_end(&self, end: &End) -> Option<Box<dyn FnOnce()>> {
        if end.origin != self.number() || !is_harness(&end.reason) {
            return None;
        }
        let trajectory = self.trajectory()?;
        let terminate = Terminate {
            at_turn: self.turns(),
            run: self.run_id(),
            session: self.session(),
            elapsed: end.lasted,
            message: Terminated::of(self).message(),
        };
        let line = line("harness_terminate", &end.reason, terminate)?;
        Some(Box::new(move || trajectory.0.put(line)))
    }

    /// Where it is written: as the nearest run says that says anything.
    fn trajectory(&self) -> Option<Trajectory> {
        let nodes = std::iter::once(self).chain(self.ancestors());
        let mut runs = nodes.filter(|node| node.kind() == NodeKind::Run);
        runs.find_map(|run| {
            let harness = run.payload.harness_if_any();
            let own = harness.and_then(|harness| harness.trajectory.get().cloned());
            own.or_else(|| run.payload.registration()?.trajectory())
        })
    }

    fn session(&self) -> Option<Arc<str>> {
        let identity = self.nearest_run().payload.identity();
        identity.and_then(|known| known.session.clone())
    }
}

/// Whether a run ends so because it was not let go on.
fn is_harness(reason: &TerminalReason) -> bool {
    matches!(reason.class(), ReasonClass::Limit | ReasonClass::Timeout)
}

impl fmt::Debug for Trajectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trajectory(..)")
    }
}

/// A writer that is given whole lines, one after the other.
pub(in crate::run) struct Lines<W: ?Sized> {
    waiting: Mutex<QueuedLines>,
    writer: Mutex<W>,
}

#[derive(Default)]
struct QueuedLines {
    lines: VecDeque<Vec<u8>>,
    /// Who is in the writer now.
    writing: Option<ThreadId>,
}

impl<W> Lines<W> {
    pub(in crate::run) fn new(writer: W) -> Self {
        Self {
            waiting: Mutex::default(),
            writer: Mutex::new(writer),
        }
    }
}

impl<W: Write + ?Sized> Lines<W> {
    /// The line is written when this returns, unless it is the writer itself that
    /// brought it about: then it comes next.
    pub(in crate::run) fn put(&self, line: Vec<u8>) {
        let this = thread::current().id();
        {
            let mut waiting = self.lock();
            waiting.lines.push_back(line);
            if waiting.writing == Some(this) {
                return;
            }
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(line) = self.next(this) {
            write(&mut *writer, &line);
        }
    }

    /// The next line that is to be written by this thread, which has the writer.
    fn next(&self, this: ThreadId) -> Option<Vec<u8>> {
        let mut waiting = self.lock();
        let line = waiting.lines.pop_front();
        waiting.writing = line.as_ref().map(|_| this);
        line
    }

    fn lock(&self) -> MutexGuard<'_, QueuedLines> {
        // Nothing that may panic runs under the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write<W: Write + ?Sized>(writer: &mut W, line: &[u8]) {
    let written = catch_unwind(AssertUnwindSafe(|| -> io::Result<()> {
        writer.write_all(line)?;
        writer.flush()
    }));
    match written {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!(target: "tower_agent", %error, "trajectory not written");
        }
        Err(_) => tracing::error!(target: "tower_agent", "trajectory panicked"),
    }
}
