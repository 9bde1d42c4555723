//! The actions of a run: their report, and the limits on loops of tool calls and on repetition.

use std::{collections::VecDeque, num::NonZeroU32, sync::Arc};

use crate::{
    llm::{Called, History, HistoryPlace, digest, excerpt},
    run::{
        limits::{
            Action, Actions, EXCERPT, Effect, LoopLimits, LoopVerdict, RepeatDetector, Repetition,
            ToolArguments,
        },
        reason::TerminalReason,
        report::{RunAction, RunNotice},
        state::NodeState,
        tree::Node,
    },
};

/// The actions of the run at or above a node, its tool calls above all, and the limits on them.
#[derive(Clone, Copy)]
pub(crate) struct RunActions<'a>(&'a Node<NodeState>);

impl<'a> RunActions<'a> {
    #[inline]
    pub(super) const fn of(node: &'a Node<NodeState>) -> Self {
        Self(node)
    }

    fn state(self) -> &'a Actions {
        &self.0.run_state().rare().actions
    }

    fn repeat_detector(self) -> &'a RepeatDetector {
        &self.0.run_state().rare().repeat_detector
    }

    /// Limits the loops of the nearest run. Without `ends` a loop is only reported. New limits only
    /// tighten those that are set already.
    pub(crate) fn limit(self, limits: LoopLimits, ends: bool) {
        let effects = self.state().with(|state| state.limit(limits, ends));
        self.apply(effects);
    }

    /// Names tools of the run that poll, in addition to those that are named already.
    pub(crate) fn add_polls(self, tools: &Arc<[Box<str>]>) {
        self.state().with(|state| state.add_polls(tools));
    }

    /// Forgets the run's tool calls so far, because the program has compacted its context.
    pub(super) fn forget(self) {
        let effects = self.state().with(|state| state.compacted());
        self.apply(effects);
    }

    /// The places in the nearest run's history at which its last few messages ended, oldest first.
    pub(crate) fn places(self) -> VecDeque<HistoryPlace> {
        self.state().with(|state| state.places().clone())
    }

    /// Reads the new actions of the nearest run from the history in a request.
    pub(crate) fn read_history(self, history: &History<'_>, exact: bool) {
        let actions = self.state();
        let most = actions.excerpt();
        let effects = actions.with(|state| state.read_history(history, exact, most));
        self.apply(effects);
    }

    /// Records the tool calls that an answer made. A later request may carry their results
    /// without the calls.
    pub(crate) fn expect(self, calls: Vec<Called>) {
        if !calls.is_empty() {
            self.state().with(|state| state.expect(calls));
        }
    }

    /// Sets the run's task in the program's words.
    pub(super) fn set_task(self, task: &str) {
        let task = excerpt(task.as_bytes(), EXCERPT);
        self.state().with(|state| state.set_task(task));
    }

    /// Keeps up to `max_bytes` of the arguments of each action from now on, and of the task.
    pub(super) fn keep_excerpts(self, max_bytes: usize) {
        self.state().keep_excerpts(max_bytes);
    }

    /// The run's task and last actions, for a checker or a question.
    pub(super) fn shown(self) -> (Option<Arc<str>>, Vec<RunAction>) {
        self.state().with(|state| state.shown())
    }

    /// The most bytes of an action's arguments that the nearest run keeps.
    pub(crate) fn excerpt(self) -> usize {
        let rare = self.0.run_state().rare_if_any();
        rare.map_or(0, |rare| rare.actions.excerpt())
    }

    /// Records that a tool of the program ran; `result` is a digest.
    pub(crate) fn ran(self, name: Arc<str>, arguments: ToolArguments, result: Option<u64>) {
        let action = Action {
            call: digest((name.as_bytes(), arguments.digest)),
            name,
            result,
            from_tool: true,
            polls: false,
            excerpt: arguments.excerpt,
        };
        let effects = self.state().with(|state| state.ran(action));
        self.apply(effects);
    }

    /// Applies the effects of new actions without the lock, because an end calls hooks and wakers.
    fn apply(self, effects: Vec<Effect>) {
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
                let _ = self.state().cause.set(found.to_string().into());
            }
            let run = self.0.nearest_run();
            run.publish(&RunNotice::from(found), false);
            if ends {
                run.end_from_outside(TerminalReason::LoopDetected);
            }
        }
    }

    /// Passes a series of the nearest run's actions to its detector of repetition.
    ///
    /// Equal digests are the same action; `None` counts as progress. The run ends at the first
    /// action that reaches its limit. Else at most one notice is sent for the series, for the last
    /// action that is due for one.
    fn acted(self, actions: impl Iterator<Item = Option<u64>>) {
        let detector = self.repeat_detector();
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

    /// Counts a round of the agent's loop, which is not progress.
    pub(super) fn count_round(self) {
        self.report_repetition(self.repeat_detector().beat());
    }

    /// Makes the run end after `repeats` equal actions in a row; of two limits the smaller holds.
    pub(super) fn end_when_stuck(self, repeats: NonZeroU32) {
        self.repeat_detector().end_at(repeats);
    }

    /// The number of the series of equal actions in which the nearest run is stuck; `None` if it is
    /// not stuck. A different number later means that the run made progress, or did another action,
    /// in between.
    pub(crate) fn stuck_series(self) -> Option<u64> {
        let rare = self.0.run_state().rare_if_any()?;
        rare.repeat_detector.series()
    }

    fn report_repetition(self, repetition: Repetition) {
        if let Repetition::Stuck { repeats, now, ends } = repetition {
            let run = self.0.nearest_run();
            if ends {
                run.end_from_outside(TerminalReason::Stuck);
            } else if now {
                run.publish(&RunNotice::LooksStuck { repeats }, false);
            }
        }
    }
}

impl Node<NodeState> {
    /// Whether this run looks stuck: too many equal actions, or rounds without progress.
    pub(crate) fn is_stuck(&self) -> bool {
        let rare = self.payload.rare_if_any();
        rare.is_some_and(|rare| rare.repeat_detector.repetition() != Repetition::Moving)
    }
}
