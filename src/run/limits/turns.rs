//! The turns of a run, and what happens when it has used them up.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::run::{
    handle::Run,
    kinds::NodeKind,
    reason::TerminalReason,
    report::Terminated,
    state::Info,
    tree::{Measure, Node, Passed},
};

/// How many turns a run has had. A lock, so that whatever calls come at the same
/// time no more are admitted than the cap says.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    taken: u32,
    last: LastCall,
}

/// The one call that a run may make after its cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastCall {
    /// The cap was not reached.
    #[default]
    Ahead,
    /// The run is held open for it.
    Held,
    /// It was made, or can be made no more.
    Over,
}

/// How many turns a run may have, as one layer says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimit {
    pub(crate) turns: u32,
    /// How long the run is held open for its last call; none if it may not make
    /// one.
    pub(crate) finaliser: Option<Duration>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a turn, unless `number` says that it was counted before. Answers its
    /// number; `None` if that is beyond the cap, and then it is no turn.
    fn take(&self, cap: u32, number: &AtomicU32) -> Option<u32> {
        let mut counted = self.lock();
        match number.load(Ordering::Acquire) {
            0 if counted.taken < cap => {
                counted.taken += 1;
                number.store(counted.taken, Ordering::Release);
                Some(counted.taken)
            }
            0 => None,
            known if known <= cap => Some(known),
            _ => {
                // Another layer, whose cap is larger, counted it.
                counted.taken -= 1;
                number.store(0, Ordering::Release);
                None
            }
        }
    }
}

impl Run {
    /// How many turns the nearest run has had: requests that had a model write
    /// something, counted where a [`TurnCapLayer`](crate::TurnCapLayer) stands.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.nearest().turns()
    }

    /// Puts the run's last call into the request, once it has reached its cap and
    /// if [`finaliser`](crate::TurnCapLayer::finaliser) allows one: it and its
    /// attempts are admitted, though nothing else starts any more, and the run ends
    /// as [`TurnCap`](TerminalReason::TurnCap) when it has been answered. As for
    /// [`attach`](Self::attach), the first layer settles the call, and it ends as
    /// aborted if none ever sees it.
    ///
    /// `None` if the run is not at its cap, or is over, or was given its last call
    /// before.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use tower_agent::Run;
    ///
    /// let run = Run::open();
    /// assert!(run.finaliser(http::Request::new(())).is_none(), "not at its cap");
    /// # }
    /// ```
    #[must_use = "the call ends when the request is dropped"]
    pub fn finaliser<B>(&self, request: http::Request<B>) -> Option<http::Request<B>> {
        let run = self.run();
        let now = run.now();
        // A limit that has come is stored here.
        run.node().check(now, crate::run::tree::TaskId::NONE).ok()?;
        let turns = &run.node().payload.harness_if_any()?.turns;
        {
            let mut counted = turns.lock();
            if counted.last != LastCall::Held || !run.node().is_closing() {
                return None;
            }
            counted.last = LastCall::Over;
        }
        let call = run.open_last(now);
        // What held the place leaves it to the call.
        run.node().leave_task(now);
        Some(call.carried_by(request))
    }

    /// Admits a turn of the nearest run, of which this is the node that a layer
    /// found. `number` is that of the turn if there is no call to keep it.
    ///
    /// # Errors
    ///
    /// If the run is over, by the clocks first, or closing; one that has used up its
    /// turns is from now on.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub(crate) fn take_turn(&self, cap: TurnLimit, number: &AtomicU32) -> Result<(), Terminated> {
        let call = self.turn_of_call();
        if let Err(end) = self.check() {
            if let Some(call) = call.filter(|call| call.own_end().is_none()) {
                // It was opened before the closing, and has not begun.
                drop(call.end(end.reason.clone(), call.closing_for(), self.now()));
            }
            return Err(end);
        }
        if self.node().is_last() {
            return Ok(());
        }
        let number = call.map_or(number, |call| call.payload.turn());
        let turns = &self.nearest().payload.harness().turns;
        if turns.take(cap.turns, number).is_some() {
            return Ok(());
        }
        let passed = Passed {
            limit: None,
            measure: Measure::Turns(cap.turns),
        };
        let now = self.now();
        let run = self.nearest();
        match cap.finaliser {
            None => drop(run.end(TerminalReason::TurnCap, Some(passed), now)),
            Some(limit) => {
                run.hold_open(passed, now.saturating_add(limit), now);
                if let Some(call) = call {
                    drop(call.end(TerminalReason::TurnCap, Some(passed), now));
                }
            }
        }
        let mut end = self.to_terminated();
        if run.nearest_end().is_none() && run.closing().is_none() {
            // Whoever was first at the cap has yet to close it.
            end.reason = TerminalReason::TurnCap;
            end.measure = passed.measure;
        }
        Err(end)
    }

    /// What was counted while this run was one call is that call's, now that it has
    /// a node of its own.
    pub(crate) fn pass_turn_to(&self, call: &Self) {
        let number = self.node().payload.turn().swap(0, Ordering::AcqRel);
        call.node().payload.turn().store(number, Ordering::Release);
    }

    /// The node that is one call, at or above this one.
    fn turn_of_call(&self) -> Option<&Node<Info>> {
        let call = self.call_node();
        let is_call = match call.kind() {
            NodeKind::Call => true,
            NodeKind::Run => call.payload.is_single(),
            NodeKind::Attempt | NodeKind::Tool => false,
        };
        is_call.then_some(call)
    }
}

impl Node<Info> {
    pub(in crate::run) fn turns(&self) -> u32 {
        let harness = self.nearest_run().payload.harness_if_any();
        harness.map_or(0, |harness| harness.turns.lock().taken)
    }

    /// The run is at its cap, and is closed; it is held open until its last call has
    /// come, or `until`.
    fn hold_open(&self, passed: Passed, until: Duration, now: Duration) {
        {
            let mut counted = self.payload.harness().turns.lock();
            if counted.last != LastCall::Ahead {
                return;
            }
            counted.last = LastCall::Held;
            // Before anybody can take it over. A task is no work of its own.
            self.enter_task();
        }
        self.close_for(&TerminalReason::TurnCap, Some(passed), until, now);
        let ours = self.closing_for().is_some_and(|closing| closing == passed);
        if !ours || self.nearest_end().is_some() {
            self.let_go(now);
        }
    }

    /// Nobody waits for the last call of this run any more.
    pub(crate) fn let_go(&self, now: Duration) {
        let Some(harness) = self.payload.harness_if_any() else {
            return;
        };
        {
            let mut counted = harness.turns.lock();
            if counted.last != LastCall::Held {
                return;
            }
            counted.last = LastCall::Over;
        }
        self.leave_task(now);
    }
}
