//! The limits that a program sets on a run beside those of the layers, and their counts.
//!
//! What the layers do with loops, errors and tokens is in the views of them: [`RunActions`],
//! [`RunErrors`] and [`RunTokens`].

use std::{num::NonZeroU32, time::Duration};

use super::{Run, actions::RunActions, error_counts::RunErrors, tokens::RunTokens};
use crate::run::{
    limits::{LoopLimits, TokensSpent},
    step::ResetOn,
    tree::TaskId,
};

impl Run {
    /// Moves the deadlines of the nearest run by `by`, once: its ceiling and its timeout.
    ///
    /// Call the method for work that must not be cut, such as the compaction of a context. Returns
    /// whether the deadlines were moved: false if one of them has passed, if they were moved
    /// before, if `by` is zero, or if the run is over, closing, or without such a deadline. A
    /// deadline that a layer sets on the run later is moved as well.
    ///
    /// Deadlines of calls, attempts and tools stay, and so do those that a caller announced. An
    /// operator moves the run's deadlines as often as need be with [`extend`](Self::extend).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use std::time::Duration;
    /// use tower_agent::Run;
    ///
    /// let run = Run::open();
    /// assert!(!run.extend_once(Duration::from_secs(60)), "there is no deadline to move");
    /// # }
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "the work goes on with either answer"
    )]
    pub fn extend_once(&self, by: Duration) -> bool {
        let run = self.nearest();
        !by.is_zero() && run.check(self.now(), TaskId::NONE).is_ok() && run.extend_once(by)
    }

    /// Sets the longest time that a [tool](Self::tool) at or below this node may take, if the tool
    /// has no window of its own.
    ///
    /// Of several nodes above a tool the nearest for which the method was called decides. Zero
    /// stands for no such window: then the step window of the run applies to the tool. The value
    /// holds for tools that are called from now on.
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
        let windows = &self.run_state().rare().windows;
        windows.add(window, resets_on, observes);
    }

    /// The step windows of the nearest run at or above this node that has some, each with the flag
    /// of shadow mode.
    pub(crate) fn windows(&self) -> Vec<(Duration, ResetOn, bool)> {
        let mut nodes = self.node().path();
        let found = nodes.find_map(|node| {
            let windows: Vec<_> = node.payload.rare_if_any()?.windows.all().collect();
            (!windows.is_empty()).then_some(windows)
        });
        found.unwrap_or_default()
    }

    /// The number of turns that the nearest run has had; 0 if no
    /// [`TurnCapLayer`](crate::TurnCapLayer) counts them. The layer counts a turn when it admits the
    /// request: with a cap, or if it [always counts](crate::TurnCapLayer::always_count). The turns of
    /// other replicas are those of which the store of a shared registry told when it was asked last.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.nearest().turns()
    }

    /// The tokens of the nearest run and of its [child](Self::child) runs, and their cost.
    ///
    /// The result is `None` if neither a [`TokenCapLayer`](crate::TokenCapLayer) nor an
    /// [`OwnerCapLayer`](crate::OwnerCapLayer) counts them: both do with caps on tokens, and the
    /// former also if it [always counts](crate::TokenCapLayer::always_count). Unlike
    /// [`usage`](Self::usage) it includes answers that still stream, and estimates where an
    /// upstream has not stated its usage. What other replicas have spent is what the store of a shared
    /// registry told last.
    #[must_use]
    pub fn tokens_spent(&self) -> Option<TokensSpent> {
        self.nearest().tokens_spent()
    }

    /// Allows the nearest run its caps on tokens and cost once more, such as 20,000 tokens in
    /// place of 10,000. [`extend`](Self::extend) adds a number of tokens.
    ///
    /// The method is for the program, for example when a person has agreed. A run that has ended
    /// stays ended.
    pub fn extend_tokens(&self) {
        let tokens = self.nearest().run_state().rare().tokens();
        tokens.extend_once_more();
        self.nearest().go_on_below_caps();
    }

    /// Makes the nearest run end as [`LoopDetected`](crate::TerminalReason::LoopDetected) once its
    /// tools loop.
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
        self.actions().limit(LoopLimits::DEFAULT, true);
    }

    /// Names tools of the nearest run that poll, such as one that waits for a process.
    ///
    /// A loop with such a tool is reported and ends the run at three times as many calls, and
    /// another result of the same call restarts every count of that call. Calls of such a tool are
    /// no [sign of being stuck](Self::end_when_stuck). The names hold for calls that end from now
    /// on, and add to those of a [layer](crate::LoopGuardLayer::polls).
    pub fn polls<T: Into<Box<str>>>(&self, tools: impl IntoIterator<Item = T>) {
        self.actions()
            .add_polls(&tools.into_iter().map(Into::into).collect());
    }

    /// Forgets the run's tool calls so far, because the program has compacted its context.
    ///
    /// A model that has lost its context may make the same calls again. The counts of loops and of
    /// [equal actions](Self::end_when_stuck) begin anew, as at a new message of the user. Turns and
    /// errors count on.
    pub fn compacted(&self) {
        self.actions().forget();
    }

    /// Makes the nearest run end as [`Stuck`](crate::TerminalReason::Stuck) after `repeats` equal
    /// actions in a row.
    ///
    /// The first of the equal actions counts. Rounds of [`heartbeat_at`](Self::heartbeat_at)
    /// without progress count like equal actions. If `repeats` is more than five,
    /// [observers](Self::subscribe) receive a notice at five, and again after each further five
    /// before the end.
    ///
    /// Two actions are equal if their names and arguments are, whatever their results. Of two
    /// limits the smaller holds.
    pub fn end_when_stuck(&self, repeats: NonZeroU32) {
        self.actions().end_when_stuck(repeats);
    }

    /// Records the start of a round of the agent's loop, as a sign of life.
    ///
    /// A round is not progress, like [`heartbeat`](Self::heartbeat). Five rounds look stuck if no
    /// layer or tool reports actions of the agent between them, and the program no
    /// [`state_change`](Self::state_change). A smaller limit of
    /// [`end_when_stuck`](Self::end_when_stuck) lowers that number.
    pub fn heartbeat_at(&self, iteration: u64, phase: &str) {
        tracing::trace!(target: "tower_agent", run = %self.id(), iteration, phase, "heartbeat");
        self.heartbeat();
        self.actions().count_round();
    }

    /// Sets the run's task in the program's words, for the checker of a
    /// [`Watchdog`](crate::Watchdog).
    ///
    /// At most 1 KiB of the text is kept, as long as the run is live.
    pub fn set_task(&self, task: impl AsRef<str>) {
        self.actions().set_task(task.as_ref());
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

    /// The actions of the nearest run.
    #[inline]
    pub(crate) fn actions(&self) -> RunActions<'_> {
        RunActions::of(self.node())
    }

    /// The errors of the nearest run, and the failure as which this node counts.
    #[inline]
    pub(crate) fn errors(&self) -> RunErrors<'_> {
        RunErrors::of(self.node())
    }

    /// The tokens of the nearest run, and of the runs above it.
    #[inline]
    pub(crate) const fn tokens(&self) -> RunTokens<'_> {
        RunTokens::of(self)
    }
}
