//! The turns of a run: their count, and the last call of a run at its cap on turns.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{Run, TurnRefused};
use crate::run::{
    limit_kind::{LimitHit, LimitKind},
    limits::{EndElsewhere, LastCall, SharedRun, TurnLimit, TurnQuestion, TurnUnderWay},
    reason::TerminalReason,
    report::{Hold, RunCap, RunNotice, Terminated},
    state::{HeldBy, NodeState, RareRunState},
    tree::{Node, NodeKind},
};

impl Run {
    /// Asks the store for a turn of the nearest run under this cap; `None` if it has none.
    pub(crate) fn ask_for_turn(&self, cap: TurnLimit) -> Option<TurnQuestion> {
        let run = self.nearest();
        if cap.turns == TurnLimit::NONE.turns {
            return None;
        }
        let (most, added) = (run.extended_turns(cap.turns), run.added_turns());
        Some(run.shared()?.ask_for_turn(most, added))
    }
}

impl TurnLimit {
    /// Admits a turn of the nearest run; `found` is the node that the layer found.
    ///
    /// `asked` is the turn for which a store was asked; without it, the run has what the other
    /// replicas have left. `number` stores the turn's number if no call node can hold it. The run's last call is
    /// admitted, and is not a turn.
    ///
    /// # Errors
    ///
    /// The method fails if `found` is over or closing; passed deadlines are checked first. It
    /// also fails if the run has used up its turns: then the method closes the run, or ends it if
    /// no other call or tool is in progress, or pauses it. `ticket` is that of a turn which is held
    /// already.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub(crate) fn take_turn(
        self,
        found: &Run,
        number: &AtomicU32,
        asked: Option<TurnUnderWay>,
        ticket: Option<u64>,
    ) -> Result<(), TurnRefused> {
        let call = found.node().turn_of_call();
        found.check_turn()?;
        if found.node().is_last() {
            return Ok(());
        }
        let of_call = call.and_then(|call| Some(&call.payload.call()?.turn));
        if let Some(of_call) = of_call {
            // The call may have been opened further in than the layer that counted the turn.
            let counted = number.load(Ordering::Acquire);
            let _known = of_call.compare_exchange(0, counted, Ordering::AcqRel, Ordering::Acquire);
        }
        let number = of_call.unwrap_or(number);
        // A turn that is counted has passed the layer which holds it.
        if number.load(Ordering::Acquire) == 0 {
            if let Some(hold) = found.holds_turn(HeldBy::TurnCap, ticket) {
                return Err(TurnRefused::Held(hold));
            }
        }
        let rare = found.run_state().rare();
        let Err(cap) = self.take(rare, number, asked) else {
            if rare.pauses.any() {
                found.nearest().go_on_with_turns();
            }
            if let Some(part) = self.near_at {
                found.nearest().tell_near_turns(self.turns, part);
            }
            return Ok(());
        };
        let passed = LimitHit {
            limit: None,
            kind: LimitKind::Turns(cap),
        };
        if let Some(pause) = self.pause.filter(|_| found.nearest().is_of_many()) {
            let (run, reason) = (found.nearest(), TerminalReason::TurnCap);
            let is_new = run.pause_at_cap(&reason, passed, pause.limit, found.now());
            // The cap may have been raised before this pause.
            if is_new && self.take(rare, number, None).is_ok() {
                run.go_on_with_turns();
                return Ok(());
            }
            return Err(TurnRefused::Held(Hold::at(passed)));
        }
        self.refuse_turn(found, call, passed);
        let mut end = found.to_terminated();
        let run = found.nearest();
        if run.nearest_end().is_none() && run.refusal().is_none() {
            // The thread that reached the cap before this one has not closed the run yet.
            end.reason = TerminalReason::TurnCap;
            end.limit_kind = passed.kind;
        }
        Err(end.into())
    }

    /// Takes a turn of the run, of which this replica may have a part only.
    ///
    /// # Errors
    ///
    /// The cap that the run has reached.
    fn take(
        self,
        run: &RareRunState,
        number: &AtomicU32,
        asked: Option<TurnUnderWay>,
    ) -> Result<(), u32> {
        // A turn of another run is given back, which tells the store, before this run is locked.
        let shared = run.shared();
        let asked = asked.filter(|asked| shared.is_some_and(|shared| asked.is_of(shared)));
        let mut turns = run.turns.lock();
        turns.cap = if self.turns == Self::NONE.turns {
            0
        } else {
            self.turns
        };
        let cap = turns.most(self.turns);
        let is_taken = match shared {
            None => turns.take(cap, number),
            Some(shared) => {
                let most = match cap {
                    uncapped if uncapped == Self::NONE.turns => uncapped,
                    cap => shared.most(cap, asked.is_some()),
                };
                let is_taken = turns.take(most, number);
                shared.record_taken(turns.taken, asked);
                is_taken
            }
        };
        if is_taken { Ok(()) } else { Err(cap) }
    }

    /// Refuses the turn of `call`, which is beyond the cap `passed`, and closes the nearest run.
    ///
    /// The calls of the run that were admitted go on, their repeats and fallbacks included; the run
    /// ends when the last one has ended. Without other work it ends at once. With a last call it
    /// waits for the run's last call, too, at most for that time.
    fn refuse_turn(self, found: &Run, call: Option<&Node<NodeState>>, passed: LimitHit) {
        let (run, now) = (found.nearest(), found.now());
        let reason = TerminalReason::TurnCap;
        let works_on = call.map_or(!run.is_idle(), |call| run.works_beside(call));
        match self.final_call {
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
}

impl Run {
    /// Gives the turn back that was counted for this request, which an inner layer refuses.
    /// `number` is the turn's number, if no call node holds it.
    pub(crate) fn give_turn_back(&self, number: u32) {
        let call = self.node().turn_of_call();
        let of_call = call.and_then(|call| Some(&call.payload.call()?.turn));
        let number = of_call.map_or(number, |turn| turn.swap(0, Ordering::AcqRel));
        let rare = self.run_state().rare_if_any().filter(|_| number > 0);
        let Some(rare) = rare else { return };
        let mut turns = rare.turns.lock();
        turns.taken = turns.taken.saturating_sub(1);
        let shared = rare.shared();
        let kept = shared.map(|shared| (shared, shared.return_taken(turns.taken)));
        drop(turns);
        if let Some((shared, kept)) = kept {
            shared.tell_given_back(kept);
        }
    }

    /// Gives back the turn of the run's owner that this call was counted as, if it was.
    pub(crate) fn give_owners_turn_back(&self) {
        let call = self.node().call_node();
        let is_owners = call.payload.call().map(|call| &call.is_owners_turn);
        if !is_owners.is_some_and(|is_owners| is_owners.swap(false, Ordering::AcqRel)) {
            return;
        }
        let run = self.nearest();
        if let (Some(registry), Some(counted)) =
            (run.payload.registration(), self.instant(call.opened()))
        {
            registry.give_turn_back(run, counted);
        }
    }

    /// Checks the node of a turn, and ends the call of a turn that its run refuses.
    ///
    /// # Errors
    ///
    /// The node is over or closing.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    #[inline]
    fn check_turn(&self) -> Result<(), Terminated> {
        let Err(end) = self.check() else {
            return Ok(());
        };
        let call = self.node().turn_of_call();
        if let Some(call) = call.filter(|call| call.own_end().is_none()) {
            // The call was opened before the run was closed, and has not begun.
            drop(call.end(end.reason.clone(), call.refusal_limit(), self.now()));
        }
        Err(end)
    }

    /// Ends this replica's part of the nearest run, which has ended elsewhere.
    ///
    /// At a cap the calls that were admitted here go on, and the part ends after them, or closes once the
    /// turns under way are known.
    pub(crate) fn end_as_told(&self, end: &EndElsewhere) {
        let (run, now) = (self.nearest(), self.now());
        if let Some(part) = run.shared() {
            if !part.is_of(end.incarnation) {
                return;
            }
            part.set_ended_elsewhere();
        }
        if end.at_cap {
            let passed = end.passed.unwrap_or(LimitHit {
                limit: None,
                kind: LimitKind::Set,
            });
            let part = run.shared();
            if part.is_some_and(|part| part.defer_closing(&end.reason, passed)) {
                return;
            }
            if !run.is_idle() {
                return run.close_at_cap(&end.reason, passed, None, now);
            }
        }
        drop(run.end(end.reason.clone(), end.passed, now));
    }

    /// Refuses a turn that was held, as its run has ended elsewhere, and ends the run here as well. The
    /// turn asks the store no more.
    pub(crate) fn refuse_as_told(&self, told: &EndElsewhere) -> Terminated {
        self.end_as_told(told);
        if let Err(end) = self.check_turn() {
            return end;
        }
        // Other turns are under way, for which the run waits; or the id is another run's by now.
        let call = self.node().turn_of_call();
        if let Some(call) = call {
            drop(call.end(told.reason.clone(), told.passed, self.now()));
        }
        let mut end = self.to_terminated();
        if call.is_none() {
            end.reason = told.reason.clone();
            if let Some(passed) = told.passed {
                (end.limit, end.limit_kind) = (passed.limit, passed.kind);
            }
        }
        end
    }

    /// Closes the run at a cap that was reached elsewhere, if that waited for the turns which were
    /// under way here.
    pub(crate) fn close_as_deferred(&self) {
        let run = self.nearest();
        let deferred = run.shared().and_then(|part| part.take_deferred_closing());
        if let Some((reason, passed)) = deferred {
            run.close_at_cap(&reason, passed, None, self.now());
        }
    }
}

impl Node<NodeState> {
    /// This replica's part of the run, if a store was asked about it.
    pub(crate) fn shared(&self) -> Option<&Arc<SharedRun>> {
        self.run_state().rare_if_any()?.shared()
    }

    pub(in crate::run) fn turns(&self) -> u32 {
        let rare = self.run_state().rare_if_any();
        rare.map_or(0, |rare| {
            let elsewhere = rare.shared().map_or(0, |shared| shared.turns_elsewhere());
            rare.turns.lock().taken.saturating_add(elsewhere)
        })
    }

    /// Sends a notice if this run has taken this part of its `cap`, once for each cap.
    fn tell_near_turns(&self, cap: u32, part: f64) {
        let rare = self.run_state().rare();
        let elsewhere = rare.shared().map_or(0, |shared| shared.turns_elsewhere());
        let near = {
            let mut turns = rare.turns.lock();
            let (taken, cap) = (turns.taken.saturating_add(elsewhere), turns.most(cap));
            turns.claim_near(cap, part, taken).then_some((taken, cap))
        };
        if let Some((taken, cap)) = near {
            let message = format!("it has taken {taken} of its {cap} turns");
            let cap = RunCap::Turns;
            self.publish(&RunNotice::NearCap { cap, message }, false);
        }
    }

    /// The cap on the run's turns; `None` if no layer caps them, or none has counted one.
    pub(in crate::run) fn max_turns(&self) -> Option<u32> {
        let rare = self.run_state().rare_if_any()?;
        let turns = rare.turns.lock();
        (turns.cap > 0).then(|| turns.most(turns.cap))
    }

    /// The turns that the nearest run may take under a layer's `cap`, with those that were added.
    pub(crate) fn extended_turns(&self, cap: u32) -> u32 {
        let rare = self.run_state().rare_if_any();
        rare.map_or(cap, |rare| rare.turns.lock().most(cap))
    }

    /// Records that this call is counted as a turn of its run's owner.
    pub(crate) fn set_owners_turn(&self) {
        if let Some(call) = self.payload.call() {
            call.is_owners_turn.store(true, Ordering::Release);
        }
    }

    /// Moves this node's turn number to the node of `call`, which was just opened below this node.
    pub(crate) fn pass_turn_to(&self, call: &Self) {
        if let (Some(ours), Some(theirs)) = (self.payload.call(), call.payload.call()) {
            let number = ours.turn.swap(0, Ordering::AcqRel);
            theirs.turn.store(number, Ordering::Release);
        }
    }

    /// The node, at or above this one, that counts as one call: a call, or a run of one call.
    fn turn_of_call(&self) -> Option<&Self> {
        let call = self.call_node();
        let is_call = match call.kind() {
            NodeKind::Call => true,
            NodeKind::Run => call.payload.settlement.ends_with_call(),
            NodeKind::Attempt | NodeKind::Tool => false,
        };
        is_call.then_some(call)
    }

    /// Takes the last call of this run, which is held open for it. Returns false if the run is not
    /// held open, or was closed for another reason.
    pub(super) fn take_last_call(&self) -> bool {
        let Some(rare) = self.payload.rare_if_any() else {
            return false;
        };
        let mut counted = rare.turns.lock();
        let is_held = counted.last == LastCall::Held && self.refuses_work();
        if is_held {
            counted.last = LastCall::Over;
        }
        is_held
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
            // The placeholder task is counted under the lock, before `final_call` can remove it. A
            // task delays the end of a closing run, and is not counted as work in flight.
            self.begin_task();
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
        self.end_task(now);
    }
}
