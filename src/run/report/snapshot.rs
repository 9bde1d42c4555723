use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{paused::RunPause, terminated::Terminated, verdict::Verdict};
use crate::{
    llm::{cut, dialect::Usage},
    registry::Owner,
    run::{
        id::RunId,
        limits::{EXCERPT, ErrorCounts, TokenCaps, TokensSpent},
        reason::TerminalReason,
        state::{HEARTBEAT, NodeState},
        step::{ResetOn, Step, StepKind},
        tree::{Clock, End, Node, NodeKind},
    },
};

/// The state of a node at one instant. Serializes to JSON as it stands.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct RunSnapshot {
    /// The id of the node's run.
    pub run: RunId,
    /// How often its owner has opened the run's id, as far as the registry remembers. This time is
    /// included.
    ///
    /// Of two runs with one owner and id the later one's number is higher, unless the registry
    /// forgot the id in between, or was shut down. The number is 1 if the run was never given to a
    /// registry.
    pub generation: u64,
    /// The number that the store of a shared registry has given to this use of the run's id: equal at
    /// all replicas, and another one once the id is used anew. `None` without a store, or if the store
    /// has not answered about the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// The id of the run above this one, if this is a sub-agent's run.
    pub parent: Option<RunId>,
    /// The session of the run; `None` if the run has none.
    pub session: Option<Arc<str>>,
    /// The owner of the run; `None` if the run was never given to a registry.
    pub owner: Option<Owner>,
    /// The kind of the node: run, call, attempt or tool.
    pub kind: NodeKind,
    /// The reason of the node's end; `None` while the node lives.
    pub reason: Option<TerminalReason>,
    /// The reason for which a live node admits no new work: it will end for this reason when the
    /// work in progress is done. `None` while the node admits work, and after its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closing: Option<TerminalReason>,
    /// The number of the run's end among the events of its registry, as in
    /// [`RunEvent::Ended`](crate::RunEvent::Ended). `None` before that event. It is not serialized.
    ///
    /// An observer that [lost](crate::RunEvent::Lost) events finds the ends among them by it.
    #[serde(skip)]
    pub end_sequence: Option<u64>,
    /// The message about the node's end for people, if the node was cut or failed.
    pub message: Option<String>,
    /// How long the node has been open, or how long it lasted.
    #[serde(rename = "elapsed_ms", serialize_with = "millis")]
    pub elapsed: Duration,
    /// The number of calls, attempts and tools in flight at or below the node.
    ///
    /// Once the node has ended, work that completed or failed by itself no longer counts, such as
    /// the call that ended its run. Work that the end cut counts until it is dropped.
    pub in_flight: usize,
    /// The last step of the run; `None` if no step was reported.
    pub last_step: Option<Step>,
    /// Whether the node lives and gave a sign of life lately: a byte, a heartbeat, a step, or its
    /// opening.
    ///
    /// A sign of life counts for twice the interval of heartbeats, which is 10 s unless
    /// [set](crate::StepTimeoutLayer::heartbeat). Work in flight that has never shown a heartbeat
    /// counts as a sign of life: a tool, a call, or the present attempt of a call.
    pub alive: bool,
    /// Whether the run looks stuck: it repeated one action in a row, or [reported
    /// rounds](crate::Run::heartbeat_at) without progress, too often.
    pub stuck: bool,
    /// The number of turns of the run; 0 if no layer counts them.
    pub turns: u32,
    /// The cap on the turns of the run; `None` if no layer caps them, or none has counted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
    /// The candidate to which the last attempt of the node went; for a run, that of its newest call in
    /// flight. `None` if no layer chose one, and for a run without calls in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Arc<str>>,
    /// The number of attempts of the call, by layers that retry or fall back; for a run, those of its
    /// newest call in flight.
    pub attempts: u32,
    /// The number of errors of the run: failed tools and failed calls. A call that a
    /// [`RetryBudgetLayer`](crate::RetryBudgetLayer) retries counts once, or once per failed
    /// attempt if the layer counts every attempt. A run that ends with its one call does not count
    /// that call's failure.
    pub errors: u32,
    /// The run's signs of life and of progress.
    pub progress: RunProgress,
    /// The time left until the earliest absolute deadline of the node and of its ancestors. `None`
    /// without a deadline, and after the end.
    #[serde(rename = "time_left_ms", serialize_with = "optional_millis")]
    pub time_left: Option<Duration>,
    /// The time left until each limit on the node's time.
    pub deadlines: Deadlines,
    /// The tokens of all answers at or below the node that have ended or were dropped. `None` if no
    /// upstream reported any.
    pub usage: Option<Usage>,
    /// The tokens that the run has used so far, and their cost, answers under way and estimates
    /// included. `None` if no layer counts them: see
    /// [`Run::tokens_spent`](crate::Run::tokens_spent).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spent: Option<TokensSpent>,
    /// The caps on the tokens of the run and on their cost; `None` if no layer caps them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_caps: Option<TokenCaps>,
    /// The pause that holds the run's turns; `None` while they go on. A sub-agent's run is also held
    /// while a run above it is paused, which that run's snapshot says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<RunPause>,
    /// The text of the run's last answer that had text, as far as it came, once the node has
    /// ended.
    ///
    /// The text is there only if the run [keeps](crate::run::Run::keep_partial) texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<Arc<str>>,
    /// The first eight reasons that came after the end of the node that was ended, which may be an
    /// ancestor: oldest first, without duplicates.
    pub also: Vec<TerminalReason>,
    /// The latest check of the run by a [`Watchdog`](crate::Watchdog); `None` before the first.
    pub last_check: Option<RunCheck>,
    /// The task of the run: the text that the program [set](crate::Run::set_task), or the beginning
    /// of the user's message if the program [allows](crate::Run::keep_excerpts) that. Only a
    /// snapshot that a watchdog passes to its checker or its question has the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Arc<str>>,
    /// The last ten actions of the run, oldest first: calls of [tools](crate::Run::tool)
    /// that report their arguments, or that a
    /// [`LoopGuardLayer`](crate::LoopGuardLayer) reads in requests. Only a snapshot that a watchdog
    /// passes to its checker or its question has the actions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<RunAction>,
}

/// The result of a check of a run.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct RunCheck {
    /// The checker's verdict, with at most 1 KiB of its reason.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The time since the verdict came.
    #[serde(rename = "ago_ms", serialize_with = "millis")]
    pub ago: Duration,
}

/// A tool call that a run has finished.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct RunAction {
    /// The name of the tool.
    pub name: Arc<str>,
    /// The digest of name and arguments, equal for equal actions within one process; in JSON a
    /// string of 16 hexadecimal digits.
    #[serde(serialize_with = "hexadecimal")]
    pub digest: u64,
    /// The beginning of the arguments, as many bytes as the program
    /// [allows](crate::Run::keep_excerpts); `None` by default.
    pub excerpt: Option<Arc<str>>,
}

/// The signs of life and of progress of a run.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct RunProgress {
    /// The number of signs of life that are not progress: comments and pings of streams, and
    /// [`Run::heartbeat`](crate::Run::heartbeat).
    pub heartbeats: u64,
    /// The number of signs of progress: steps and state changes.
    pub state_changes: u64,
    /// The last step that was progress; `None` if there was none.
    pub last_change: Option<Step>,
    /// The time from the last progress to now, or to the node's end; `None` without progress.
    #[serde(rename = "last_change_ago_ms", serialize_with = "optional_millis")]
    pub last_change_ago: Option<Duration>,
}

/// The time that a node has left until each of its limits. Limits of its ancestors count too.
///
/// A field is `None` if no such limit is set, or the node has ended; `step` also while no layer
/// waits, and while the node is paused.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Deadlines {
    /// The time left until the absolute limit of the node, or until an attempt has used its share
    /// of the call's time.
    #[serde(rename = "ceiling_ms", serialize_with = "optional_millis")]
    pub ceiling: Option<Duration>,
    /// The time left until the program's timeout or a deadline that the caller announced, whichever
    /// is earlier.
    #[serde(rename = "timeout_ms", serialize_with = "optional_millis")]
    pub timeout: Option<Duration>,
    /// The time left until the step window passes, if no sign of life comes.
    #[serde(rename = "step_ms", serialize_with = "optional_millis")]
    pub step: Option<Duration>,
}

impl Node<NodeState> {
    /// Stores `verdict` as the latest on the nearest run, with at most 1 KiB of its reason.
    pub(crate) fn keep_verdict(&self, verdict: &Verdict) {
        let reason = cut(&verdict.reason, EXCERPT);
        let kept = Verdict::new(verdict.status, reason);
        let last_check = &self.run_state().rare().last_check;
        *last_check.lock() = Some(Box::new((self.now(), kept)));
    }

    /// The owner of the nearest run; `None` if no registry has the run.
    pub(crate) fn owner(&self) -> Option<Owner> {
        let identity = self.nearest_run().payload.identity()?;
        Some(Owner::from_digest(identity.owner))
    }

    /// The session of the nearest run; `None` if the run has none.
    pub(in crate::run) fn session(&self) -> Option<Arc<str>> {
        self.nearest_run().payload.identity()?.session.clone()
    }
}

impl RunSnapshot {
    /// Takes a snapshot of the node at `now`. `terminated` is the node's end, if it has ended.
    pub(in crate::run) fn of(
        node: &Node<NodeState>,
        now: Duration,
        terminated: Option<&Terminated>,
    ) -> Self {
        let run = node.nearest_run();
        // An end that came after `terminated` was read does not count yet.
        let end = node.nearest_end().filter(|_| terminated.is_some());
        let until = end.map_or(now, |end| end.at());
        let last = Duration::from_nanos(node.last(ResetOn::Content));
        let call = node.newest_call();
        let call = call.as_deref().unwrap_or(node);
        Self {
            run: node.run_id(),
            generation: run.payload.identity().map_or(1, |known| known.generation),
            incarnation: run.shared().and_then(|part| part.incarnation()),
            parent: run.parent_id(),
            session: node.session(),
            owner: node.owner(),
            kind: node.kind(),
            reason: end.map(|end| end.reason.clone()),
            closing: node.refusal().filter(|_| end.is_none()).cloned(),
            end_sequence: end.and_then(|_| run.payload.identity()?.end_event()),
            message: terminated
                .filter(|end| end.reason != TerminalReason::Completed)
                .map(Terminated::message),
            elapsed: end.map_or_else(
                || until.saturating_sub(node.opened()),
                |_| node.elapsed(until),
            ),
            in_flight: match end {
                Some(_) => node.in_flight_after_end(),
                None => node.active(),
            },
            last_step: run.run_state().step(),
            alive: end.is_none() && node.is_alive(now),
            stuck: run.is_stuck(),
            turns: run.turns(),
            max_turns: run.max_turns(),
            candidate: call.candidate(),
            attempts: call.payload.attempt_count(),
            errors: run.run_state().errors_if_any().map_or(0, ErrorCounts::all),
            progress: RunProgress {
                heartbeats: run.run_state().heartbeats.load(Ordering::Acquire),
                state_changes: run.run_state().changes.load(Ordering::Acquire),
                last_change: (!last.is_zero()).then(|| node.last_change()).flatten(),
                last_change_ago: (!last.is_zero()).then(|| until.saturating_sub(last)),
            },
            time_left: node
                .next_deadline()
                .filter(|_| end.is_none())
                .map(|at| Duration::from_nanos(at).saturating_sub(now)),
            deadlines: end.map_or_else(|| Deadlines::of(node, now), |_| Deadlines::default()),
            usage: node.usage(),
            spent: node.tokens_spent(),
            token_caps: run.token_caps(),
            paused: run.run_pause(now).filter(|_| end.is_none()),
            text: end.and_then(|_| node.last_text()),
            also: terminated.map_or_else(Vec::new, |terminated| terminated.also.clone()),
            last_check: run.last_check(until),
            task: None,
            actions: Vec::new(),
        }
    }
}

impl Deadlines {
    fn of(node: &Node<NodeState>, now: Duration) -> Self {
        let left = |at: Duration| at.saturating_sub(now);
        let next = |clocks: [Clock; 2]| {
            let clocks = clocks.into_iter();
            clocks.filter_map(|clock| node.left_until(clock, now)).min()
        };
        Self {
            ceiling: next([Clock::Ceiling, Clock::Share]),
            timeout: next([Clock::Timeout, Clock::Announced]),
            step: node.next_window().map(Duration::from_nanos).map(left),
        }
    }
}

impl Node<NodeState> {
    /// The newest call in flight below this run; `None` if there is none, or this is not a run.
    fn newest_call(&self) -> Option<Arc<Self>> {
        if self.kind() != NodeKind::Run {
            return None;
        }
        let calls = self.children().into_iter();
        calls
            .filter(|node| node.kind() == NodeKind::Call && node.active() > 0)
            .max_by_key(|node| (node.opened(), node.number()))
    }

    fn candidate(&self) -> Option<Arc<str>> {
        match self.kind() {
            NodeKind::Attempt => self.attempts().target_label(),
            _ => self.payload.last_target(),
        }
    }

    fn is_alive(&self, now: Duration) -> bool {
        let last = Duration::from_nanos(self.last(ResetOn::AnyByte)).max(self.opened());
        let rare = self.run_state().rare_if_any();
        let interval = rare.map_or(HEARTBEAT, |rare| rare.heartbeat());
        let silent = now.saturating_sub(last);
        // Work that has never shown a heartbeat is not expected to: its silence is not a sign that
        // the run hangs.
        silent < interval.saturating_mul(2)
            || self.has_leaf(|work| !work.pings.load(Ordering::Acquire))
    }

    /// The work at or below this ended node that the end cut, and that is not yet dropped.
    ///
    /// The work that ended its node by itself is uncounted only after that node's hooks, which may
    /// take a snapshot.
    fn in_flight_after_end(&self) -> usize {
        let active = self.active();
        if active == 0 {
            return 0;
        }
        let mut finished = self.finished_work();
        self.descend(|node| {
            finished += node.finished_work();
            node.active() > 0
        });
        active.saturating_sub(finished)
    }

    /// The work of this node itself that completed or failed, and is still counted.
    fn finished_work(&self) -> usize {
        let is_finished = |end: &End| end.origin == self.number() && !end.reason.is_cut();
        if !self.own_end().is_some_and(is_finished) {
            return 0;
        }
        let is_below = |child: &Arc<Self>| {
            let parent = child.parent();
            parent.is_some_and(|parent| parent.number() == self.number())
        };
        let children = self.children().into_iter().filter(is_below);
        let below: usize = children.map(|child| child.active()).sum();
        self.active().saturating_sub(below)
    }

    fn last_check(&self, now: Duration) -> Option<RunCheck> {
        let rare = self.payload.rare_if_any()?;
        let last = rare.last_check.lock();
        let (at, verdict) = last.as_deref()?;
        Some(RunCheck {
            verdict: verdict.clone(),
            ago: now.saturating_sub(*at),
        })
    }

    fn last_change(&self) -> Option<Step> {
        if self.last(ResetOn::Content) > self.last(ResetOn::Step) {
            return Some(Step::new(StepKind::ContentDelta));
        }
        self.run_state().change()
    }
}

fn hexadecimal<S: serde::Serializer>(digest: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{digest:016x}"))
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
