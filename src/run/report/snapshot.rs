use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use crate::{
    llm::dialect::Usage,
    run::{
        handle::Run,
        id::RunId,
        kinds::{NodeKind, ResetOn, Step, StepKind},
        limits::ErrorCounts,
        reason::TerminalReason,
        state::{HEARTBEAT, NodeState},
        tree::{Clock, Node},
    },
};

/// What is known of a node at one instant; serialises to JSON as it stands.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct RunSnapshot {
    /// The run's id.
    pub run: RunId,
    /// How often its id was opened, this time included: of two runs that had the
    /// same id the later one's is higher. 1 if it is in no registry.
    pub generation: u64,
    /// The run that it is a sub-agent of.
    pub parent: Option<RunId>,
    /// Its session.
    pub session: Option<Arc<str>>,
    /// What kind of node this is.
    pub kind: NodeKind,
    /// Why it ended; `None` while it lives.
    pub reason: Option<TerminalReason>,
    /// The message for people, if it was cut or failed.
    pub message: Option<String>,
    /// How long it has lasted, or did.
    #[serde(rename = "elapsed_ms", serialize_with = "millis")]
    pub elapsed: Duration,
    /// Calls, attempts and tools under way.
    pub in_flight: usize,
    /// What it did last, if anybody said.
    pub last_step: Option<Step>,
    /// Whether it gave a sign of life lately: any byte or heartbeat within twice the
    /// interval of heartbeats, which is 10 s unless
    /// [set](crate::StepTimeoutLayer::heartbeat). While a call or a tool of it is
    /// under way that has shown no heartbeat, its being open is one.
    pub alive: bool,
    /// Whether it did the same thing too often in a row.
    pub stuck: bool,
    /// How many turns the run has had, where they are counted.
    pub turns: u32,
    /// How many errors it has had: calls that failed, after all their tries, and
    /// tools.
    pub errors: u32,
    /// Signs of life and of work.
    pub progress: RunProgress,
    /// Time left until the earliest absolute deadline.
    #[serde(rename = "time_left_ms", serialize_with = "optional_millis")]
    pub time_left: Option<Duration>,
    /// The same by clock.
    pub deadlines: Deadlines,
    /// The tokens of all answers at or below the node that are over, if an
    /// upstream said.
    pub usage: Option<Usage>,
    /// Reasons that came too late.
    pub also: Vec<TerminalReason>,
}

/// Signs of life and of work of a run.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct RunProgress {
    /// Signs of life that are no progress: comments and pings of streams, and
    /// [`Run::heartbeat`].
    pub heartbeats: u64,
    /// Steps and state changes.
    pub state_changes: u64,
    /// What the last progress was; `None` if there was none.
    pub last_change: Option<Step>,
    /// How long ago the last progress was; `None` if there was none.
    #[serde(rename = "last_change_ago_ms", serialize_with = "optional_millis")]
    pub last_change_ago: Option<Duration>,
}

/// How much time a node has left, by clock; `None` where nothing is set, or
/// nothing is waited for. Those of the nodes above it count.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Deadlines {
    /// Until the absolute limit.
    #[serde(rename = "ceiling_ms", serialize_with = "optional_millis")]
    pub ceiling: Option<Duration>,
    /// Until the total that the program or the caller allowed.
    #[serde(rename = "timeout_ms", serialize_with = "optional_millis")]
    pub timeout: Option<Duration>,
    /// Until the step window passes, if nothing happens.
    #[serde(rename = "step_ms", serialize_with = "optional_millis")]
    pub step: Option<Duration>,
}

impl Run {
    /// What is known of this node now.
    #[must_use]
    pub fn snapshot(&self) -> RunSnapshot {
        RunSnapshot::of(self.node(), self.now())
    }
}

impl Node<NodeState> {
    fn errors(&self) -> u32 {
        let limited = self.payload.errors().map_or(0, ErrorCounts::all);
        let harness = self.payload.harness_if_any();
        limited.saturating_add(harness.map_or(0, crate::run::state::RunState::errors))
    }
}

impl RunSnapshot {
    pub(in crate::run) fn of(node: &Node<NodeState>, now: Duration) -> Self {
        let run = node.nearest_run();
        let end = node.nearest_end();
        let until = end.map_or(now, |end| end.at);
        let last = Duration::from_nanos(node.last(ResetOn::Content));
        let terminated = end.map(|_| super::terminated::Terminated::of(node));
        Self {
            run: node.run_id(),
            generation: run.payload.identity().map_or(1, |known| known.generation),
            parent: run.parent_id(),
            session: run
                .payload
                .identity()
                .and_then(|known| known.session.clone()),
            kind: node.kind(),
            reason: end.map(|end| end.reason.clone()),
            message: terminated
                .as_ref()
                .filter(|end| end.reason != TerminalReason::Completed)
                .map(super::terminated::Terminated::message),
            elapsed: until.saturating_sub(node.opened()),
            in_flight: node.active(),
            last_step: run.payload.step(),
            alive: end.is_none() && node.is_alive(now),
            stuck: run.is_stuck(),
            turns: run.turns(),
            errors: run.errors(),
            progress: RunProgress {
                heartbeats: run.payload.heartbeats.load(Ordering::Acquire),
                state_changes: run.payload.changes.load(Ordering::Acquire),
                last_change: (!last.is_zero()).then(|| node.last_change()).flatten(),
                last_change_ago: (!last.is_zero()).then(|| until.saturating_sub(last)),
            },
            time_left: match end {
                Some(_) => None,
                None => node
                    .next_deadline()
                    .map(|at| Duration::from_nanos(at).saturating_sub(now)),
            },
            deadlines: end.map_or_else(|| Deadlines::of(node, now), |_| Deadlines::default()),
            usage: node.usage(),
            also: terminated
                .map(|terminated| terminated.also)
                .unwrap_or_default(),
        }
    }
}

impl Deadlines {
    fn of(node: &Node<NodeState>, now: Duration) -> Self {
        let left = |at: Duration| at.saturating_sub(now);
        let next = |clocks: [Clock; 2]| {
            let set = clocks.into_iter().filter_map(|clock| node.deadline(clock));
            set.min().map(left)
        };
        Self {
            ceiling: next([Clock::Ceiling, Clock::Share]),
            timeout: next([Clock::Timeout, Clock::Announced]),
            step: node.next_window().map(Duration::from_nanos).map(left),
        }
    }
}

impl Node<NodeState> {
    fn is_alive(&self, now: Duration) -> bool {
        let last = Duration::from_nanos(self.last(ResetOn::AnyByte)).max(self.opened());
        let harness = self.nearest_run().payload.harness_if_any();
        let interval = harness.map_or(HEARTBEAT, |harness| harness.heartbeat());
        let silent = now.saturating_sub(last);
        // What has shown no heartbeat yet promised none.
        silent < interval.saturating_mul(2)
            || self.has_leaf(&|work| !work.pings().load(Ordering::Acquire))
    }

    fn last_change(&self) -> Option<Step> {
        if self.last(ResetOn::Content) > self.last(ResetOn::Step) {
            return Some(Step::new(StepKind::ContentDelta));
        }
        self.nearest_run().payload.change()
    }
}

pub(in crate::run) fn millis<S: serde::Serializer>(
    span: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
}

#[allow(clippy::ref_option, reason = "the signature is serde's")]
pub(in crate::run) fn optional_millis<S: serde::Serializer>(
    span: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match span {
        Some(span) => millis(span, serializer),
        None => serializer.serialize_none(),
    }
}
