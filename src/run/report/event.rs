use std::{sync::Arc, time::Duration};

use tokio::sync::broadcast::{self, error::RecvError};

use super::{
    snapshot::{RunSnapshot, millis, optional_millis},
    terminated::Terminated,
};
use crate::run::{
    id::RunId,
    kinds::Step,
    limits::{LoopPattern, LoopVerdict},
    reason::TerminalReason,
    state::NodeState,
    tree::Node,
    verdict::{Answer, Status},
};

/// Something that happened to a run. Serialises to JSON as it stands.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// Something that people may want to know of a run that goes on.
    Notice {
        /// Its id.
        run: RunId,
        /// Its session.
        session: Option<Arc<str>>,
        /// One more than that of the event before: the registry's, or the run's
        /// if it is in none.
        sequence: u64,
        /// What happened.
        notice: RunNotice,
    },
    /// A run ended. There is exactly one for each, and nothing after it.
    Ended {
        /// Its id.
        run: RunId,
        /// Its session.
        session: Option<Arc<str>>,
        /// One more than that of the event before.
        sequence: u64,
        /// Why.
        reason: TerminalReason,
        /// The message for people.
        message: String,
        /// All that was known at the end.
        snapshot: Arc<RunSnapshot>,
        /// The text that was streamed of the run's last answer, if that did not
        /// come to its end and is [kept](crate::run::Run::keep_partial).
        #[serde(skip_serializing_if = "Option::is_none")]
        partial: Option<Arc<str>>,
    },
    /// The observer was too slow for this many events.
    Lost {
        /// How many.
        events: u64,
    },
}

/// What happened to a run that goes on.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunNotice {
    /// It was opened.
    Opened,
    /// It is alive and gets nowhere: it did the same thing this often in a row. Told
    /// after five, or as many as it may, and again after as many more.
    LooksStuck {
        /// How often, the first time included.
        repeats: u32,
    },
    /// A limit in shadow mode passed: it would have ended the run, or something of
    /// it. Once for each that would have ended, and limit.
    WouldHaveEnded {
        /// As what.
        reason: TerminalReason,
        /// The limit, if it is one that is measured in time.
        #[serde(rename = "limit_ms", serialize_with = "optional_millis")]
        limit: Option<Duration>,
    },
    /// What a limit in shadow mode would have ended has completed: the limit is too
    /// short for it.
    FalsePositive {
        /// As what it would have been ended.
        reason: TerminalReason,
        /// After how long it would have been ended.
        #[serde(rename = "after_ms", serialize_with = "millis")]
        after: Duration,
        /// How long it took to complete.
        #[serde(rename = "took_ms", serialize_with = "millis")]
        took: Duration,
    },
    /// It goes in circles: see [`LoopGuardLayer`](crate::LoopGuardLayer).
    Loop {
        /// In which.
        pattern: LoopPattern,
        /// What was done about it.
        verdict: LoopVerdict,
        /// The tool that was called last, its name cut at 64 characters.
        tool: Arc<str>,
        /// How many calls it has been so far.
        times: u32,
    },
    /// One of its steps takes long: see [`ProgressNotices`](crate::run::ProgressNotices).
    Working {
        /// The step that is under way.
        step: Step,
        /// For how long, until now.
        #[serde(rename = "running_for_ms", serialize_with = "millis")]
        running_for: Duration,
        /// The same for people, in one sentence without a full stop.
        message: String,
    },
    /// A checker has looked at a run that looks stuck.
    Checked {
        /// How it is, by the checker.
        status: Status,
        /// Why, in the checker's words.
        reason: String,
    },
    /// A person is asked whether the run shall go on.
    Asked,
    /// In shadow mode, a person would be asked now.
    WouldHaveAsked,
    /// The question has been answered.
    Answered {
        /// How; `None` if nobody did in time.
        answer: Option<Answer>,
    },
}

impl RunNotice {
    /// The name in logs; in JSON it is the `kind`.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::LooksStuck { .. } => "looks_stuck",
            Self::WouldHaveEnded { .. } => "would_have_ended",
            Self::FalsePositive { .. } => "false_positive",
            Self::Loop { .. } => "loop",
            Self::Working { .. } => "working",
            Self::Checked { .. } => "checked",
            Self::Asked => "asked",
            Self::WouldHaveAsked => "would_have_asked",
            Self::Answered { .. } => "answered",
        }
    }
}

impl RunEvent {
    pub(crate) fn notice(node: &Node<NodeState>, notice: &RunNotice, sequence: u64) -> Self {
        let identity = node.nearest_run().payload.identity();
        Self::Notice {
            run: node.run_id(),
            session: identity.and_then(|known| known.session.clone()),
            sequence,
            notice: notice.clone(),
        }
    }

    pub(crate) fn ended(node: &Node<NodeState>, sequence: u64) -> Self {
        let end = Terminated::of(node);
        let at = node.nearest_end().map(|end| end.at).unwrap_or_default();
        let snapshot = Arc::new(RunSnapshot::of(node, at));
        Self::Ended {
            message: end.message(),
            run: end.run,
            session: snapshot.session.clone(),
            sequence,
            partial: node
                .partial()
                .filter(|_| end.reason != TerminalReason::Completed),
            reason: end.reason,
            snapshot,
        }
    }
}

/// An observer of one run, [`Run::subscribe`](crate::run::Run::subscribe), or of all
/// in a registry, [`RunRegistry::subscribe`](crate::registry::RunRegistry::subscribe).
#[derive(Debug)]
pub struct RunEvents {
    receiver: broadcast::Receiver<RunEvent>,
}

impl RunEvents {
    pub(crate) const fn new(receiver: broadcast::Receiver<RunEvent>) -> Self {
        Self { receiver }
    }

    /// The next event; `None` once there can be none: the run has ended, or the
    /// registry is gone.
    ///
    /// # Cancel safety
    ///
    /// No event is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<RunEvent> {
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(events)) => Some(RunEvent::Lost { events }),
            Err(RecvError::Closed) => None,
        }
    }
}
