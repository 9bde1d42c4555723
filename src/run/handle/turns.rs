//! The turns of a run: their count, and the last call of a run at its cap on turns.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::Run;
use crate::run::{
    limit_kind::{LimitHit, LimitKind},
    limits::{LastCall, TurnLimit},
    reason::TerminalReason,
    report::Terminated,
    state::NodeState,
    tree::{Node, NodeKind, TaskId},
};

impl Run {
    /// The number of turns that the nearest run has had; 0 if no
    /// [`TurnCapLayer`](crate::TurnCapLayer) counts them. The layer counts a turn when it admits the
    /// request: with a cap, or if it [always counts](crate::TurnCapLayer::always_count).
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.nearest().turns()
    }

    /// Opens the run's last call and puts it into the request. A turn beyond the run's cap must
    /// have been refused before.
    ///
    /// The [`finaliser`](crate::TurnCapLayer::finaliser) of the layer must allow a last call. The
    /// call and its attempts are admitted, though nothing else starts any more. The run ends as
    /// [`TurnCap`](TerminalReason::TurnCap) when the call and all other work are done, or when the
    /// time that the layer allows has passed. As for [`attach`](Self::attach), the first layer that
    /// acts on the call settles it; the call ends as aborted if none does.
    ///
    /// The method returns `None` if no turn beyond the cap was refused, if the run is over or has
    /// had its last call, or if it was closed for another reason.
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
        // The check ends the run, or a node above it, if a deadline has passed.
        run.node().check(now, TaskId::NONE).ok()?;
        let turns = &run.node().payload.rare_if_any()?.turns;
        {
            let mut counted = turns.lock();
            if counted.last != LastCall::Held || !run.node().refuses_work() {
                return None;
            }
            counted.last = LastCall::Over;
        }
        let call = run.open_last(now);
        // The call counts as work of the run now, so the placeholder task is not needed any more.
        run.node().leave_task(now);
        Some(call.carried_by(request))
    }

    /// Admits a turn of the nearest run; `self` is the node that the layer found.
    ///
    /// `number` stores the turn's number if no call node can hold it. The run's last call is
    /// admitted, and is no turn.
    ///
    /// # Errors
    ///
    /// The method fails if this node is over or closing; passed deadlines are checked first. It
    /// also fails if the run has used up its turns: then the method closes the run, or ends it if
    /// no other call or tool is in progress.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub(crate) fn take_turn(&self, cap: TurnLimit, number: &AtomicU32) -> Result<(), Terminated> {
        let call = self.turn_of_call();
        if let Err(end) = self.check() {
            if let Some(call) = call.filter(|call| call.own_end().is_none()) {
                // The call was opened before the run was closed, and has not begun.
                drop(call.end(end.reason.clone(), call.refusal_limit(), self.now()));
            }
            return Err(end);
        }
        if self.node().is_last() {
            return Ok(());
        }
        let of_call = call.and_then(|call| Some(&call.payload.call()?.turn));
        if let Some(of_call) = of_call {
            // The call may have been opened further in than the layer that counted the turn.
            let counted = number.load(Ordering::Acquire);
            let _known = of_call.compare_exchange(0, counted, Ordering::AcqRel, Ordering::Acquire);
        }
        let number = of_call.unwrap_or(number);
        let turns = &self.run_state().rare().turns;
        if turns.lock().take(cap.turns, number) {
            return Ok(());
        }
        let passed = LimitHit {
            limit: None,
            measure: LimitKind::Turns(cap.turns),
        };
        self.refuse_turn(call, passed, cap.finaliser);
        let mut end = self.to_terminated();
        let run = self.nearest();
        if run.nearest_end().is_none() && run.refusal().is_none() {
            // The thread that reached the cap before this one has not closed the run yet.
            end.reason = TerminalReason::TurnCap;
            end.measure = passed.measure;
        }
        Err(end)
    }

    /// Refuses the turn of `call`, which is beyond the cap `passed`, and closes the nearest run.
    ///
    /// The calls of the run that were admitted go on, their repeats and fallbacks included; the run
    /// ends when the last one has ended. Without other work it ends at once. With a `finaliser` it
    /// waits for the run's last call, too, at most for that time.
    fn refuse_turn(
        &self,
        call: Option<&Node<NodeState>>,
        passed: LimitHit,
        finaliser: Option<Duration>,
    ) {
        let (run, now) = (self.nearest(), self.now());
        let reason = TerminalReason::TurnCap;
        let works_on = call.map_or(!run.is_idle(), |call| run.works_beside(call));
        match finaliser {
            Some(limit) => run.hold_open(passed, now.saturating_add(limit), now),
            None if works_on => run.close_at_cap(&reason, passed, None, now),
            None => {
                drop(run.end(reason, Some(passed), now));
                return;
            }
        }
        if let Some(call) = call {
            drop(call.end(reason, Some(passed), now));
        }
    }

    /// Moves this node's turn number to the node of `call`, which was just opened below this node.
    pub(crate) fn pass_turn_to(&self, call: &Self) {
        if let (Some(ours), Some(theirs)) = (self.node().payload.call(), call.node().payload.call())
        {
            let number = ours.turn.swap(0, Ordering::AcqRel);
            theirs.turn.store(number, Ordering::Release);
        }
    }

    /// The node, at or above this one, that counts as one call: a call, or a run of one call.
    fn turn_of_call(&self) -> Option<&Node<NodeState>> {
        let call = self.node().call_node();
        let is_call = match call.kind() {
            NodeKind::Call => true,
            NodeKind::Run => call.payload.settlement.ends_with_call(),
            NodeKind::Attempt | NodeKind::Tool => false,
        };
        is_call.then_some(call)
    }
}

impl Node<NodeState> {
    pub(in crate::run) fn turns(&self) -> u32 {
        let rare = self.run_state().rare_if_any();
        rare.map_or(0, |rare| rare.turns.lock().taken)
    }

    /// Closes this run at its cap, and delays its end for its last call, at the latest to `until`.
    /// Does nothing if the run was held open before.
    fn hold_open(&self, passed: LimitHit, until: Duration, now: Duration) {
        {
            let mut counted = self.run_state().rare().turns.lock();
            if counted.last != LastCall::Ahead {
                return;
            }
            counted.last = LastCall::Held;
            // The placeholder task is counted under the lock, before `finaliser` can remove it. A
            // task delays the end of a closing run, and is not counted as work in flight.
            self.enter_task();
        }
        self.close_at_cap(&TerminalReason::TurnCap, passed, Some(until), now);
        let ours = self
            .refusal_limit()
            .is_some_and(|closing| closing == passed);
        if !ours || self.nearest_end().is_some() {
            self.release(now);
        }
    }

    /// Ends the wait of a closing run for its last call, so that the run can end without that call.
    /// Does nothing if the run does not wait for one.
    pub(crate) fn release(&self, now: Duration) {
        let Some(rare) = self.payload.rare_if_any() else {
            return;
        };
        {
            let mut counted = rare.turns.lock();
            if counted.last != LastCall::Held {
                return;
            }
            counted.last = LastCall::Over;
        }
        self.leave_task(now);
    }
}
