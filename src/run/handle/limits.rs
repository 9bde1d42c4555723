//! The limits of a run other than its clocks: turns, loops of tool calls, repetition.

use std::{
    collections::VecDeque,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::Run;
use crate::{
    llm::{Called, History, HistoryPlace, digest, excerpt},
    run::{
        limit_kind::{LimitHit, LimitKind},
        limits::{
            Action, Actions, EXCERPT, Effect, LastCall, LoopLimits, LoopVerdict, Repetition,
            ToolArguments, TurnLimit,
        },
        reason::TerminalReason,
        report::{RunNotice, Terminated},
        state::NodeState,
        step::ResetOn,
        tree::{Node, NodeKind, TaskId},
    },
};

impl Run {
    /// Sets the longest time that a [tool](Self::tool) at or below this node may take, if the tool
    /// has no window of its own.
    ///
    /// Of several nodes above a tool the nearest with such a window decides. Zero sets no window:
    /// then the step window of the run applies to the tool, as without this method. The value holds
    /// for tools that are made from now on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
    /// use std::{future::pending, time::Duration};
    /// use tower_agent::{NodeKind, Run};
    ///
    /// let run = Run::open();
    /// run.tool_window(Duration::from_secs(300));
    /// let hung = run.tool("hung").watch(pending::<()>()).await.unwrap_err();
    /// assert_eq!(hung.kind, NodeKind::Tool);
    /// # }
    /// ```
    pub fn tool_window(&self, window: Duration) {
        self.node().clocks.set_tool_window(window);
    }

    /// Adds a step window of the nearest run, which also measures the tools of the run.
    pub(crate) fn add_window(&self, window: Duration, resets_on: ResetOn, observes: bool) {
        let windows = &self.run_state().features().windows;
        windows.add(window, resets_on, observes);
    }

    /// The step windows of the nearest run at or above this node that has some, each with the flag
    /// of shadow mode.
    pub(crate) fn windows(&self) -> Vec<(Duration, ResetOn, bool)> {
        let mut nodes = self.node().path();
        let found = nodes.find_map(|node| {
            let windows: Vec<_> = node.payload.features_if_any()?.windows.all().collect();
            (!windows.is_empty()).then_some(windows)
        });
        found.unwrap_or_default()
    }

    /// The number of turns that the nearest run has had. A turn is a request that made a model
    /// write something; a [`TurnCapLayer`](crate::TurnCapLayer) counts it.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.nearest().turns()
    }

    /// Opens the run's last call and puts it into the request, once the run is at its cap.
    ///
    /// The [`finaliser`](crate::TurnCapLayer::finaliser) of the layer must allow it. The call
    /// and its attempts are admitted, though nothing else starts any more. The run ends as
    /// [`TurnCap`](TerminalReason::TurnCap) when the call and all other work are done, or when the
    /// time that the layer allows has passed. As for [`attach`](Self::attach), the first layer
    /// settles the call; the call ends as aborted if no layer ever sees it.
    ///
    /// The method returns `None` if the run is not at its cap, is over, or has had its last call.
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
        let turns = &run.node().payload.features_if_any()?.turns;
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
    /// If this node is over or closing; passed deadlines are checked first. A run that has used up
    /// its turns ends or closes in this method.
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
        let number = of_call.unwrap_or(number);
        let turns = &self.run_state().features().turns;
        if turns.lock().take(cap.turns, number) {
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
        if run.nearest_end().is_none() && run.refusal().is_none() {
            // The thread that reached the cap before this one has not closed the run yet.
            end.reason = TerminalReason::TurnCap;
            end.measure = passed.measure;
        }
        Err(end)
    }

    /// Moves the number of the turn from this node to `call`, which has its own node now.
    pub(crate) fn pass_turn_to(&self, call: &Self) {
        if let (Some(ours), Some(theirs)) = (self.node().payload.call(), call.node().payload.call())
        {
            let number = ours.turn.swap(0, Ordering::AcqRel);
            theirs.turn.store(number, Ordering::Release);
        }
    }

    /// The node, at or above this one, that counts as one call: a call, or a run of one call.
    fn turn_of_call(&self) -> Option<&Node<NodeState>> {
        let call = self.call_node();
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
        let features = self.run_state().features_if_any();
        features.map_or(0, |features| features.turns.lock().taken)
    }

    /// Closes this run at its cap, and delays its end for its last call, at the latest to `until`.
    /// Does nothing if the run was held open before.
    fn hold_open(&self, passed: LimitHit, until: Duration, now: Duration) {
        {
            let mut counted = self.run_state().features().turns.lock();
            if counted.last != LastCall::Ahead {
                return;
            }
            counted.last = LastCall::Held;
            // The placeholder task is counted under the lock, before `finaliser` can remove it. A
            // task delays the end of a closing run, and is not counted as work in flight.
            self.enter_task();
        }
        self.close_for(&TerminalReason::TurnCap, Some(passed), until, now);
        let ours = self
            .refusal_limit()
            .is_some_and(|closing| closing == passed);
        if !ours || self.nearest_end().is_some() {
            self.release(now);
        }
    }

    /// Ends the wait of a closing run for its last call, so that the run can end without that call.
    pub(crate) fn release(&self, now: Duration) {
        let Some(features) = self.payload.features_if_any() else {
            return;
        };
        {
            let mut counted = features.turns.lock();
            if counted.last != LastCall::Held {
                return;
            }
            counted.last = LastCall::Over;
        }
        self.leave_task(now);
    }
}

impl Run {
    /// Limits the loops of the nearest run. Without `ends` a loop is only reported. New limits only
    /// tighten those that are set already.
    pub(crate) fn limit_loops(&self, limits: LoopLimits, ends: bool) {
        let effects = self.actions().with(|state| state.limit(limits, ends));
        self.apply(effects);
    }

    /// Makes the nearest run end as [`LoopDetected`](TerminalReason::LoopDetected) once its tools
    /// loop.
    ///
    /// The limits are those of [`LoopGuardLayer::new`](crate::LoopGuardLayer::new). The method is
    /// for a run with [tools](Self::tool) that report their arguments, and with model calls that
    /// pass no such layer. Either the method or a layer is enough; of two limits the smaller holds.
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

    /// Names tools of the nearest run that poll, such as one that waits for a process.
    ///
    /// A loop with such a tool is reported and ends the run at three times as many calls, and
    /// another result of the same call restarts every count of that call. Calls of such a tool are
    /// no [sign of being stuck](Self::end_when_stuck). The names hold for calls that end from now
    /// on, and add to those of a [layer](crate::LoopGuardLayer::polls).
    pub fn polls<T: Into<Box<str>>>(&self, tools: impl IntoIterator<Item = T>) {
        self.add_polls(&tools.into_iter().map(Into::into).collect());
    }

    pub(crate) fn add_polls(&self, tools: &Arc<[Box<str>]>) {
        self.actions().with(|state| state.add_polls(tools));
    }

    /// Forgets the run's tool calls so far, because the program has compacted its context.
    ///
    /// A model that has lost its context may make the same calls again. The counts of loops and of
    /// [equal actions](Self::end_when_stuck) begin anew, as at a new message of the user. Turns and
    /// errors count on.
    pub fn compacted(&self) {
        let effects = self.actions().with(|state| state.compacted());
        self.apply(effects);
    }

    /// The places at which the histories of the nearest run's last requests ended.
    pub(crate) fn places(&self) -> VecDeque<HistoryPlace> {
        self.actions().with(|state| state.places().clone())
    }

    /// Reads the new actions of the nearest run from the history in a request.
    pub(crate) fn read_history(&self, history: &History<'_>, exact: bool) {
        let actions = self.actions();
        let most = actions.excerpt();
        let effects = actions.with(|state| state.read_history(history, exact, most));
        self.apply(effects);
    }

    /// Records the tool calls that an answer made. A later request may carry their results
    /// without the calls.
    pub(crate) fn expect(&self, calls: Vec<Called>) {
        if !calls.is_empty() {
            self.actions().with(|state| state.expect(calls));
        }
    }

    /// Sets the run's task in the program's words, for the checker of a
    /// [`Watchdog`](crate::Watchdog).
    ///
    /// At most 1 KiB of the text is kept, as long as the run is live.
    pub fn set_task(&self, task: impl AsRef<str>) {
        let task = excerpt(task.as_ref().as_bytes(), EXCERPT);
        self.actions().with(|state| state.set_task(task));
    }

    /// Keeps the beginnings of the nearest run's last actions and of its task, for a checker.
    ///
    /// The checker of a [`Watchdog`](crate::Watchdog) gets up to `max_bytes` of the arguments of
    /// each of the run's last actions, and of its task. The arguments are those of
    /// [tools](Self::tool) that report them, and of the calls that a
    /// [`LoopGuardLayer`](crate::LoopGuardLayer) reads in requests. The task is the message of the
    /// user with which the run begins, if such a layer reads it and the program does not
    /// [set](Self::set_task) one. The limit is 1 KiB at most, holds for actions from now on, and 0,
    /// the default, keeps nothing. The texts are kept as long as the run is live.
    pub fn keep_excerpts(&self, max_bytes: usize) {
        self.actions().keep_excerpts(max_bytes);
    }

    /// The most bytes of an action's arguments that the nearest run keeps.
    pub(crate) fn excerpt(&self) -> usize {
        let features = self.run_state().features_if_any();
        features.map_or(0, |features| features.actions.excerpt())
    }

    /// Records that a tool of the program ran; `result` is a digest.
    pub(crate) fn ran(&self, name: Arc<str>, arguments: ToolArguments, result: Option<u64>) {
        let action = Action {
            call: digest((name.as_bytes(), arguments.digest)),
            name,
            result,
            from_tool: true,
            polls: false,
            excerpt: arguments.excerpt,
        };
        let effects = self.actions().with(|state| state.ran(action));
        self.apply(effects);
    }

    pub(in crate::run) fn actions(&self) -> &Actions {
        &self.run_state().features().actions
    }

    /// Applies the effects of new actions without the lock, because an end calls hooks and wakers.
    fn apply(&self, effects: Vec<Effect>) {
        let acted = effects.iter().filter_map(|effect| match effect {
            Effect::Acted(action) => Some(Some(*action)),
            Effect::Moved => Some(None),
            Effect::Found(_) => None,
        });
        self.acted(acted);
        for effect in effects {
            let Effect::Found(found) = effect else {
                continue;
            };
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

impl Run {
    /// Passes a series of the nearest run's actions to its detector of repetition.
    ///
    /// Equal digests are the same action; `None` means that the run made progress. The run ends at
    /// the first action that reaches its limit. Else at most one notice is sent for the series, for
    /// the last streak that looked stuck.
    pub(crate) fn acted(&self, actions: impl Iterator<Item = Option<u64>>) {
        let detector = &self.run_state().features().repeat_detector;
        let mut result = Repetition::Moving;
        for action in actions {
            let Some(action) = action else {
                detector.moved();
                continue;
            };
            let repetition = detector.repeat(action);
            if let Repetition::Stuck { now, ends, .. } = repetition {
                if now || ends {
                    result = repetition;
                }
                if ends {
                    break;
                }
            }
        }
        self.report_repetition(result);
    }

    /// Records the start of a round of the agent's loop, as a sign of life.
    ///
    /// A round is no progress, like [`heartbeat`](Self::heartbeat). If no layer or tool reports the
    /// agent's actions, five rounds without a [`state_change`](Self::state_change) between them
    /// look stuck.
    pub fn heartbeat_at(&self, iteration: u64, phase: &str) {
        tracing::trace!(target: "tower_agent", run = %self.id(), iteration, phase, "heartbeat");
        self.heartbeat();
        self.report_repetition(self.run_state().features().repeat_detector.beat());
    }

    /// Makes the nearest run end as [`Stuck`](TerminalReason::Stuck) after `repeats` equal actions
    /// in a row.
    ///
    /// The first of the equal actions counts. Rounds of [`heartbeat_at`](Self::heartbeat_at)
    /// without progress count like equal actions. If `repeats` is more than five,
    /// [observers](Self::subscribe) receive a notice at five, and again after each further five
    /// before the end.
    ///
    /// Two actions are equal if their names and arguments are, whatever their results. Of two
    /// limits the smaller holds.
    pub fn end_when_stuck(&self, repeats: NonZeroU32) {
        let detector = &self.run_state().features().repeat_detector;
        detector.end_at(repeats);
    }

    /// Whether the nearest run looks stuck: too many equal actions, or heartbeats without progress.
    pub(crate) fn is_stuck(&self) -> bool {
        self.nearest().is_stuck()
    }

    /// The number of the series of equal actions in which the nearest run is stuck; `None` if it is
    /// not stuck. A different number later means that the run made progress in between.
    pub(crate) fn stuck_series(&self) -> Option<u64> {
        let features = self.run_state().features_if_any()?;
        features.repeat_detector.series()
    }

    fn report_repetition(&self, repetition: Repetition) {
        if let Repetition::Stuck { repeats, now, ends } = repetition {
            if ends {
                self.run().end(TerminalReason::Stuck);
            } else if now {
                self.notify(&RunNotice::LooksStuck { repeats });
            }
        }
    }
}

impl Node<NodeState> {
    /// Whether this run looks stuck: too many equal actions, or heartbeats without progress.
    pub(in crate::run) fn is_stuck(&self) -> bool {
        let features = self.payload.features_if_any();
        features.is_some_and(|features| features.repeat_detector.repetition() != Repetition::Moving)
    }
}
