//! What bounds a run beside its clocks: turns, loops of tool calls, repetition.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::Run;
use crate::{
    llm::{Called, History, HistoryPlace, digest},
    run::{
        kinds::NodeKind,
        limits::{
            Action, Actions, Effect, LastCall, LoopLimits, LoopVerdict, Repetition, TurnLimit,
        },
        reason::TerminalReason,
        report::{RunNotice, Terminated},
        state::NodeState,
        tree::{LimitHit, LimitKind, Node},
    },
};

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
        let passed = LimitHit {
            limit: None,
            measure: LimitKind::Turns(cap.turns),
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
    fn turn_of_call(&self) -> Option<&Node<NodeState>> {
        let call = self.call_node();
        let is_call = match call.kind() {
            NodeKind::Call => true,
            NodeKind::Run => call.payload.is_single(),
            NodeKind::Attempt | NodeKind::Tool => false,
        };
        is_call.then_some(call)
    }
}

impl Node<NodeState> {
    pub(in crate::run) fn turns(&self) -> u32 {
        let harness = self.nearest_run().payload.harness_if_any();
        harness.map_or(0, |harness| harness.turns.lock().taken)
    }

    /// The run is at its cap, and is closed; it is held open until its last call has
    /// come, or `until`.
    fn hold_open(&self, passed: LimitHit, until: Duration, now: Duration) {
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
            self.release(now);
        }
    }

    /// Nobody waits for the last call of this run any more.
    pub(crate) fn release(&self, now: Duration) {
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

impl Run {
    /// Limits how far the nearest run may go in circles, or only tells when it would
    /// have ended. Limits that are there only tighten.
    pub(crate) fn limit_loops(&self, limits: LoopLimits, ends: bool) {
        let effects = self.actions().with(|state| state.limit(limits, ends));
        self.take(effects);
    }

    /// Ends the nearest run as [`LoopDetected`](TerminalReason::LoopDetected) once its
    /// tools go in circles, by the usual limits: those of
    /// [`LoopGuardLayer::new`](crate::LoopGuardLayer::new). For a run whose tools say
    /// their [arguments](crate::tool::Tool::arguments), and whose model calls pass no such
    /// layer; one of both is enough, and of two limits the smaller stays.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use tower_agent::{Run, TerminalReason};
    ///
    /// let run = Run::open();
    /// run.end_when_looping();
    /// for _ in 0..20 {
    ///     let tool = run.tool("job_status").arguments(&7);
    ///     tool.call(async { Err::<(), _>("no such job") }).await.ok();
    /// }
    /// assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
    /// # }
    /// ```
    pub fn end_when_looping(&self) {
        self.limit_loops(LoopLimits::DEFAULT, true);
    }

    /// Where the messages of the last request ended.
    pub(crate) fn places(&self) -> VecDeque<HistoryPlace> {
        self.actions().with(|state| state.places().clone())
    }

    /// A request says this of what the run did.
    pub(crate) fn follow(&self, history: &History<'_>) {
        let effects = self.actions().with(|state| state.follow(history));
        self.take(effects);
    }

    /// An answer made these calls; a request that does not repeat them may bring
    /// their results.
    pub(crate) fn expect(&self, calls: Vec<Called>) {
        if !calls.is_empty() {
            self.actions().with(|state| state.expect(calls));
        }
    }

    /// A tool of the program's ran; `arguments` and `result` are digests.
    pub(crate) fn ran(&self, name: &str, arguments: u64, result: Option<u64>) {
        let action = Action {
            name: name.into(),
            call: digest((name.as_bytes(), arguments)),
            result,
            told: true,
        };
        let effects = self.actions().with(|state| state.ran(action));
        self.take(effects);
    }

    pub(in crate::run) fn actions(&self) -> &Actions {
        &self.nearest().payload.harness().actions
    }

    /// Outside of the lock: an end goes far.
    fn take(&self, effects: Vec<Effect>) {
        let acted = effects.iter().filter_map(|effect| match effect {
            Effect::Acted(action) => Some(Some(*action)),
            Effect::Turned => Some(None),
            Effect::Found(_) => None,
        });
        self.acted(acted);
        for effect in effects {
            match effect {
                Effect::Acted(_) | Effect::Turned => {}
                Effect::Found(found) => {
                    let ends = found.verdict == LoopVerdict::Stopped;
                    if ends {
                        let _ = self.actions().cause.set(found.to_string().into());
                    }
                    self.notify(&RunNotice::from(found));
                    if ends {
                        self.run().end(TerminalReason::LoopDetected);
                    }
                }
            }
        }
    }
}

impl Run {
    /// The run did these, one after the other; the same digest means the same again,
    /// and none that it moved. However many they are, one streak that looked stuck is
    /// told, the last.
    pub(crate) fn acted(&self, actions: impl Iterator<Item = Option<u64>>) {
        let standstill = &self.nearest().payload.harness().standstill;
        let mut told = Repetition::Moving;
        for action in actions {
            let Some(action) = action else {
                standstill.moved();
                continue;
            };
            let standing = standstill.repeat(action);
            match standing {
                Repetition::Stuck { ends: true, .. } => {
                    told = standing;
                    break;
                }
                Repetition::Stuck { now: true, .. } => told = standing,
                Repetition::Moving | Repetition::Stuck { .. } => {}
            }
        }
        self.stands(told);
    }

    /// A round of the agent's loop began: a sign of life that is no progress, as
    /// [`heartbeat`](Self::heartbeat). Where nobody sees what the agent does, five
    /// of them without a [`state_change`](Self::state_change) between them look
    /// stuck.
    pub fn heartbeat_at(&self, iteration: u64, phase: &str) {
        tracing::trace!(target: "tower_agent", run = %self.id(), iteration, phase, "heartbeat");
        self.heartbeat();
        self.stands(self.nearest().payload.harness().standstill.beat());
    }

    /// Ends the nearest run as [`Stuck`](TerminalReason::Stuck) once it has done
    /// the same thing `repeats` times in a row, the first time included. It looks
    /// stuck after five in any case, or after as many as these if they are fewer:
    /// [observers](Self::subscribe) are told then, and after every as many more.
    ///
    /// The same is an action of the same name and arguments, whatever came of it.
    /// Of two limits the smaller stays.
    pub fn end_when_stuck(&self, repeats: NonZeroU32) {
        let standstill = &self.nearest().payload.harness().standstill;
        standstill.end_at(repeats);
    }

    /// Whether the nearest run has done the same thing too often in a row.
    pub(crate) fn is_stuck(&self) -> bool {
        self.nearest().is_stuck()
    }

    /// In which row of the same the nearest run is stuck, if it is: another one says
    /// that it has moved in between.
    pub(crate) fn stuck_in(&self) -> Option<u64> {
        let harness = self.nearest().payload.harness_if_any()?;
        harness.standstill.row()
    }

    fn stands(&self, standing: Repetition) {
        match standing {
            Repetition::Stuck { ends: true, .. } => {
                self.run().end(TerminalReason::Stuck);
            }
            Repetition::Stuck {
                now: true, repeats, ..
            } => {
                self.notify(&RunNotice::LooksStuck { repeats });
            }
            Repetition::Moving | Repetition::Stuck { .. } => {}
        }
    }
}

impl Node<NodeState> {
    /// Whether the run has done the same thing too often in a row.
    pub(in crate::run) fn is_stuck(&self) -> bool {
        let harness = self.payload.harness_if_any();
        harness.is_some_and(|harness| harness.standstill.standing() != Repetition::Moving)
    }
}
