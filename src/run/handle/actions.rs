//! The actions of a run: their report, and the limits on loops of tool calls and on repetition.

use std::{collections::VecDeque, num::NonZeroU32, sync::Arc};

use super::Run;
use crate::{
    llm::{Called, History, HistoryPlace, digest, excerpt},
    run::{
        limits::{
            Action, Actions, EXCERPT, Effect, LoopLimits, LoopVerdict, Repetition, ToolArguments,
        },
        reason::TerminalReason,
        report::RunNotice,
        state::NodeState,
        tree::Node,
    },
};

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

    /// The places in the nearest run's history at which its last few messages ended, oldest first.
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
    /// each of the run's last ten actions: of [tools](Self::tool) that report them, and of calls
    /// that a [`LoopGuardLayer`](crate::LoopGuardLayer) reads in requests. If the program does not
    /// [set](Self::set_task) a task, the checker also gets the beginning of the user's message that
    /// such a layer reads first.
    ///
    /// The limit is 1 KiB at most, holds for actions from now on, and 0, the default, keeps
    /// nothing. The texts are kept as long as the run is live.
    pub fn keep_excerpts(&self, max_bytes: usize) {
        self.actions().keep_excerpts(max_bytes);
    }

    /// The most bytes of an action's arguments that the nearest run keeps.
    pub(crate) fn excerpt(&self) -> usize {
        let rare = self.run_state().rare_if_any();
        rare.map_or(0, |rare| rare.actions.excerpt())
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
        &self.run_state().rare().actions
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
    /// Equal digests are the same action; `None` counts as progress. The run ends at the first
    /// action that reaches its limit. Else at most one notice is sent for the series, for the last
    /// action that is due for one.
    pub(crate) fn acted(&self, actions: impl Iterator<Item = Option<u64>>) {
        let detector = &self.run_state().rare().repeat_detector;
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
    /// A round is no progress, like [`heartbeat`](Self::heartbeat). Five rounds look stuck if no
    /// layer or tool reports actions of the agent between them, and the program no
    /// [`state_change`](Self::state_change). A smaller limit of
    /// [`end_when_stuck`](Self::end_when_stuck) lowers that number.
    pub fn heartbeat_at(&self, iteration: u64, phase: &str) {
        tracing::trace!(target: "tower_agent", run = %self.id(), iteration, phase, "heartbeat");
        self.heartbeat();
        self.report_repetition(self.run_state().rare().repeat_detector.beat());
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
        let detector = &self.run_state().rare().repeat_detector;
        detector.end_at(repeats);
    }

    /// Whether the nearest run looks stuck: too many equal actions, or rounds without progress.
    pub(crate) fn is_stuck(&self) -> bool {
        self.nearest().is_stuck()
    }

    /// The number of the series of equal actions in which the nearest run is stuck; `None` if it is
    /// not stuck. A different number later means that the run made progress, or did another action,
    /// in between.
    pub(crate) fn stuck_series(&self) -> Option<u64> {
        let rare = self.run_state().rare_if_any()?;
        rare.repeat_detector.series()
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
    /// Whether this run looks stuck: too many equal actions, or rounds without progress.
    pub(in crate::run) fn is_stuck(&self) -> bool {
        let rare = self.payload.rare_if_any();
        rare.is_some_and(|rare| rare.repeat_detector.repetition() != Repetition::Moving)
    }
}
