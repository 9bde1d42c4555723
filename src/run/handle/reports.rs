//! What a program and the layers observe of a run: snapshots, events, notices, spans, records.

use std::{
    sync::atomic::{Ordering, fence},
    time::Duration,
};

use tokio::sync::broadcast;
use tracing::Span;

use super::Run;
use crate::{
    llm::dialect::Usage,
    registry::Owner,
    run::{
        limits::{ProgressNotices, WorkingNotices},
        report::{RunEvent, RunEvents, RunNotice, RunSnapshot, Spans, Trajectory},
        state::EVENTS,
        step::Step,
        tree::{Nanos, NodeKind, nanos},
    },
};

impl Run {
    /// Takes a snapshot of this node's state now.
    #[must_use]
    pub fn snapshot(&self) -> RunSnapshot {
        RunSnapshot::of(self.node(), self.now(), self.terminated().as_ref())
    }

    /// Takes a snapshot of each call, attempt and tool in flight below this node, the oldest first.
    ///
    /// A layer that repeats attempts inside of another one's has attempts of its own. Work of [child](Self::child) runs is left out.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use tower_agent::{NodeKind, Run};
    ///
    /// let run = Run::open();
    /// let search = run.tool("search").watch(async { run.work() });
    ///
    /// let work = search.await.unwrap();
    /// assert_eq!((work.len(), work[0].kind), (1, NodeKind::Tool));
    /// assert!(run.work().is_empty());
    /// # }
    /// ```
    #[must_use]
    pub fn work(&self) -> Vec<RunSnapshot> {
        let mut work = Vec::new();
        self.node().descend(|node| {
            let is_work = node.kind() != NodeKind::Run;
            if is_work && node.own_end().is_none() {
                work.push((node.opened(), RunSnapshot::of(node, self.now(), None)));
            }
            is_work
        });
        // Of two that opened at once, the one above the other was visited first.
        work.sort_by_key(|(opened, _)| *opened);
        work.into_iter().map(|(_, snapshot)| snapshot).collect()
    }

    /// The owner of the node's run; `None` if the run was never given to a registry.
    #[must_use]
    pub fn owner(&self) -> Option<Owner> {
        self.node().owner()
    }

    /// Takes the snapshot for a watchdog's checker or question, with the task and the last actions.
    pub(crate) fn snapshot_for_check(&self) -> RunSnapshot {
        let (task, actions) = self.actions().shown();
        RunSnapshot {
            task,
            actions,
            ..self.snapshot()
        }
    }

    /// The tokens that upstreams reported at or below this node so far.
    ///
    /// For a call these are the tokens of all its attempts, failed ones included; for a run, the
    /// tokens of all its calls and of its [child](Self::child) runs. The method returns `None` if
    /// no upstream reported any.
    ///
    /// The layer that classifies an answer counts its tokens once, when the answer's body ended or
    /// was dropped. A layer of your own that turns a stream into another answer should keep the
    /// `ResponseMarks` extension, else the new answer is classified, and counted, as a stream of
    /// its own. An answer that costs nothing is marked as [`NotCounted`](crate::run::NotCounted).
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.node().usage()
    }

    /// Keeps the beginning of the text of each streamed answer, at most `max_bytes`.
    ///
    /// If the nearest run or a call ends before its answer does,
    /// [`RunEvent::Ended`](crate::run::RunEvent::Ended) and
    /// [`CallSummary`](crate::run::CallSummary) carry the text. After the end of a node, its
    /// snapshots carry the text of the run's last answer, whole or not. The setting holds for
    /// answers that begin from now on; 0 keeps nothing. The text is that of the text deltas of
    /// OpenAI's and Anthropic's streams; of several choices, the first.
    pub fn keep_partial(&self, max_bytes: usize) {
        let partials = &self.run_state().rare().partials;
        partials.lock().max = Some(max_bytes).filter(|max| *max > 0);
    }

    /// Opens an observer of the events of the nearest run from now on.
    ///
    /// Each observer receives every event, or learns how many it lost. For a run that has ended the
    /// observer receives the end. A sub-agent's run has observers of its own.
    #[must_use]
    pub fn subscribe(&self) -> RunEvents {
        let node = self.nearest();
        let mut observed = node.run_state().rare().observed.lock();
        // This fence pairs with the second one in `publish_end`: this thread sees that the last
        // event is numbered, or the ending thread sees the rare state.
        fence(Ordering::SeqCst);
        // Until the last event is numbered, the ending thread still finds this new observer.
        if node.payload.has_last_event() {
            let sender = broadcast::Sender::new(1);
            let events = RunEvents::new(&sender);
            // `send` cannot fail: the receiver exists.
            let _ = sender.send(RunEvent::ended(node).numbered(node));
            return events;
        }
        let sender = &mut observed.sender;
        let sender = sender.get_or_insert_with(|| broadcast::Sender::new(EVENTS));
        RunEvents::new(sender)
    }

    /// Sends a notice to the observers of the nearest run and of its registry, unless the run is
    /// over.
    pub(crate) fn notify(&self, notice: &RunNotice) {
        self.nearest().publish(notice, false);
    }

    /// Sets when [observers](Self::subscribe) of this run receive notices about its slow tools.
    ///
    /// The setting holds for the tools of [child](Self::child) runs too, unless such a run has its
    /// own. A [`TerminalResponseLayer`](crate::TerminalResponseLayer) with notices sets its own if
    /// the program set none. Tools that are running already are not affected.
    pub fn notices(&self, notices: ProgressNotices) {
        self.run_state().rare().notices.lock().replace(notices);
    }

    /// Sets a layer's notices for the nearest run, unless the program or another layer set some.
    pub(crate) fn suggest_notices(&self, notices: ProgressNotices) {
        if notices.is_on() {
            let mut notices_of_run = self.run_state().rare().notices.lock();
            notices_of_run.get_or_insert(notices);
        }
    }

    /// The notices that are set for the tools of this node, on the nearest run that has some.
    pub(crate) fn asked_notices(&self) -> Option<ProgressNotices> {
        let mut nodes = self.node().path();
        nodes.find_map(|node| *node.payload.rare_if_any()?.notices.lock())
    }

    /// Sends a notice if the running step of this node is due for one. Returns the time at which
    /// the step's next notice is due.
    pub(crate) fn tell_working(
        &self,
        working: &mut WorkingNotices,
        now: Duration,
        step: impl FnOnce() -> Step,
    ) -> Option<Nanos> {
        if let Some(running_for) = working.wait(now) {
            self.notify(&RunNotice::working(step(), running_for));
        }
        working.next().map(nanos)
    }

    /// Sets the trajectory to which lines about the nearest run go.
    ///
    /// The trajectory replaces the registry's, except for lines about caps of owners. Lines about a
    /// [child](Self::child) run go to it too, unless that run has a trajectory, or is in a registry
    /// with one.
    ///
    /// If the method is called after the run's end, only refused tools are written. If it is called
    /// twice, the first trajectory stays.
    pub fn record_to(&self, trajectory: &Trajectory) {
        let rare = self.run_state().rare();
        let _first = rare.trajectory.set(trajectory.clone());
    }

    /// The span of this node, or of the nearest node above it that has one.
    ///
    /// A subscriber that wants `tower_agent` at `INFO` gets a span for each run that the program
    /// opens, each call, attempt and tool: see [the crate's docs](crate#traces). A span closes when
    /// its node has ended and has no work in flight. If no span is open, the result is
    /// [`Span::none`].
    ///
    /// A transport finds the node of its attempt in the request. So it can send the attempt's
    /// `traceparent`, which `tracing-opentelemetry` makes of the span. A clone of a span keeps the
    /// span open.
    ///
    /// ```
    /// use tower_agent::Run;
    ///
    /// fn is_traced<B>(request: &http::Request<B>) -> bool {
    ///     let run = request.extensions().get::<Run>();
    ///     run.is_some_and(|run| !run.span().is_disabled())
    /// }
    /// # assert!(!is_traced(&http::Request::new(())));
    /// ```
    #[must_use]
    pub fn span(&self) -> Span {
        self.spans().nearest()
    }

    /// Names the agent in the span of the nearest run, if there is one; call it once.
    ///
    /// The span then is `invoke_agent NAME`, with the name as `gen_ai.agent.name`.
    ///
    /// ```
    /// # use tower_agent::Run;
    /// let run = Run::open();
    /// run.name_agent("coder");
    /// ```
    pub fn name_agent(&self, name: &str) {
        self.spans().name_agent(name);
    }

    /// The spans of this node, and of the call that it belongs to.
    #[inline]
    pub(crate) fn spans(&self) -> Spans<'_> {
        Spans::of(self.node())
    }
}
