//! The events and notices of a run.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::sync::broadcast::{self, error::RecvError};

use super::{
    paused::RunCap,
    snapshot::{RunSnapshot, millis, optional_millis},
    terminated::Terminated,
    verdict::{Answer, Status},
};
use crate::{
    registry::Owner,
    run::{
        id::RunId,
        limits::{LoopPattern, LoopVerdict},
        reason::TerminalReason,
        state::{Identity, NodeState},
        step::Step,
        tree::Node,
    },
};

/// An event of a run, for observers. Serializes to JSON as it stands.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum RunEvent {
    /// A notice about a run, which observers receive before the run's end.
    Notice {
        /// The id of the run that the event is about.
        run: RunId,
        /// The session of the run; `None` if the run has none.
        session: Option<Arc<str>>,
        /// The owner of the run; `None` if the run is in no registry. It is not serialized.
        #[serde(skip)]
        owner: Option<Owner>,
        /// The number of the event among the run's events, from 1: one more than the event before.
        sequence: u64,
        /// The number of the event among the events of all runs of the registry, from 1. `None` if
        /// the run is in no registry.
        registry_sequence: Option<u64>,
        /// The news of the run.
        notice: RunNotice,
    },
    /// A run ended. Each observer receives this event at most once per run, as the run's last
    /// event.
    Ended {
        /// The id of the run that ended.
        run: RunId,
        /// The session of the run; `None` if the run has none.
        session: Option<Arc<str>>,
        /// The number of the event among the run's events, from 1: one more than the event before.
        sequence: u64,
        /// The number of the event among the events of all runs of the registry, from 1. `None` if
        /// the run was in no registry.
        registry_sequence: Option<u64>,
        /// The reason of the run's end.
        reason: TerminalReason,
        /// The message about the end, for people.
        message: String,
        /// The state of the run at its end.
        snapshot: Arc<RunSnapshot>,
        /// The streamed text of the run's last answer, if that was cut.
        ///
        /// The text is there only if the run [keeps](crate::run::Run::keep_partial) texts.
        #[serde(skip_serializing_if = "Option::is_none")]
        partial: Option<Arc<str>>,
    },
    /// The observer was too slow for this many events, and does not receive them.
    Lost {
        /// The number of events that the observer lost.
        events: u64,
    },
}

/// News of a run, which observers receive before the run's end.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunNotice {
    /// The run was opened in a registry, or added to one.
    Opened,
    /// The run is alive and makes no progress: it repeated one action, or [reported
    /// rounds](crate::Run::heartbeat_at), `repeats` times in a row.
    ///
    /// The notice is sent at five repeats, and again after each further five. At the repeats that
    /// end the run, the end takes the place of the notice.
    LooksStuck {
        /// The number of equal actions in a row, the first included, or of rounds if these are
        /// more.
        repeats: u32,
    },
    /// A limit in shadow mode passed: it would have ended the run, or a node below the run. The
    /// notice is sent once per node, reason and limit.
    WouldHaveEnded {
        /// The reason that the end would have had.
        reason: TerminalReason,
        /// The length of the limit; `None` if the limit is not a time.
        #[serde(rename = "limit_ms", serialize_with = "optional_millis")]
        limit: Option<Duration>,
    },
    /// A node that a limit in shadow mode would have ended has completed: the limit is too
    /// short.
    FalsePositive {
        /// The reason with which the limit would have ended the node.
        reason: TerminalReason,
        /// How long the node had lasted when the limit in shadow mode passed.
        #[serde(rename = "after_ms", serialize_with = "millis")]
        after: Duration,
        /// How long the node had lasted when it completed.
        #[serde(rename = "took_ms", serialize_with = "millis")]
        took: Duration,
    },
    /// The run repeats its tool calls, or calls unknown tools: see
    /// [`LoopGuardLayer`](crate::LoopGuardLayer).
    Loop {
        /// The pattern of the loop.
        pattern: LoopPattern,
        /// The effect of the loop on the run.
        verdict: LoopVerdict,
        /// The name of the tool that was called last. A name from a request is cut at 64
        /// characters.
        tool: Arc<str>,
        /// The number of calls in the loop so far.
        times: u32,
    },
    /// The run has used a set part of one of its caps on tokens or cost: see
    /// [`TokenCapLayer::ask_at`](crate::TokenCapLayer::ask_at).
    NearTokenCap {
        /// The text of the notice for people, which names the cap and calls the run "it".
        message: String,
        /// Whether some of the tokens are an estimate.
        estimated: bool,
    },
    /// The run has used a set part of a cap: see
    /// [`TurnCapLayer::near_at`](crate::TurnCapLayer::near_at) and
    /// [`TokenCapLayer::near_at`](crate::TokenCapLayer::near_at). The notice is sent once for each cap, and
    /// once more after an [extension](crate::Run::extend).
    NearCap {
        /// The cap.
        cap: RunCap,
        /// The text of the notice for people, which names the cap and calls the run "it".
        message: String,
    },
    /// The run is paused: its turns are held until an operator [extends](crate::Run::extend) or
    /// [resumes](crate::Run::resume) it.
    Paused {
        /// The cap at which the run is paused; `None` if an operator has
        /// [suspended](crate::Run::suspend) it.
        cap: Option<RunCap>,
        /// The text of the notice for people, which names the cap and calls the run "it".
        message: String,
    },
    /// The turns of a paused run go on.
    Resumed,
    /// A step of the run takes long: see [`ProgressNotices`](crate::run::ProgressNotices).
    Working {
        /// The step that takes long.
        step: Step,
        /// How long the step has been running.
        #[serde(rename = "running_for_ms", serialize_with = "millis")]
        running_for: Duration,
        /// The text of the notice for people, in one sentence without a full stop.
        message: String,
    },
    /// The checker of a [`Watchdog`](crate::Watchdog) has given its verdict on the run.
    Checked {
        /// The state of the run, in the checker's judgment.
        status: Status,
        /// The reason of the judgment, in the checker's words; the error if the check failed.
        reason: String,
    },
    /// A person is asked whether the run shall go on.
    Asked,
    /// A person would be asked now whether the run shall go on, but for shadow mode.
    WouldHaveAsked,
    /// A person has answered whether the run shall go on, or no answer will come.
    Answered {
        /// The person's answer; `None` if none came in time, or if the question failed.
        answer: Option<Answer>,
    },
}

impl RunNotice {
    /// The name of the kind of notice in logs; in JSON it is the `kind`.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::LooksStuck { .. } => "looks_stuck",
            Self::WouldHaveEnded { .. } => "would_have_ended",
            Self::FalsePositive { .. } => "false_positive",
            Self::Loop { .. } => "loop",
            Self::NearTokenCap { .. } => "near_token_cap",
            Self::NearCap { .. } => "near_cap",
            Self::Paused { .. } => "paused",
            Self::Resumed => "resumed",
            Self::Working { .. } => "working",
            Self::Checked { .. } => "checked",
            Self::Asked => "asked",
            Self::WouldHaveAsked => "would_have_asked",
            Self::Answered { .. } => "answered",
        }
    }
}

impl RunEvent {
    pub(crate) fn notice(
        node: &Node<NodeState>,
        notice: &RunNotice,
        sequence: u64,
        registry_sequence: Option<u64>,
    ) -> Self {
        Self::Notice {
            run: node.run_id(),
            session: node.session(),
            owner: node.owner(),
            sequence,
            registry_sequence,
            notice: notice.clone(),
        }
    }

    /// The end of the run, without its sequence numbers.
    pub(crate) fn ended(node: &Node<NodeState>) -> Self {
        let end = Terminated::of(node);
        let at = node.nearest_end().map(|end| end.at()).unwrap_or_default();
        let snapshot = Arc::new(RunSnapshot::of(node, at, Some(&end)));
        Self::Ended {
            // A snapshot has no message for a run that completed.
            message: snapshot.message.clone().unwrap_or_else(|| end.message()),
            run: end.run,
            session: snapshot.session.clone(),
            sequence: 0,
            registry_sequence: None,
            partial: node
                .partial()
                .filter(|_| end.reason != TerminalReason::Completed),
            reason: end.reason,
            snapshot,
        }
    }

    /// Writes the numbers of the run's end into an `Ended` event; any other event stays as it is.
    pub(crate) fn numbered(mut self, node: &Node<NodeState>) -> Self {
        if let Self::Ended {
            sequence,
            registry_sequence,
            ..
        } = &mut self
        {
            *sequence = node.payload.last_event();
            *registry_sequence = node.payload.identity().and_then(Identity::end_event);
        }
        self
    }
}

/// An observer of the events of one run or of a registry.
///
/// [`Run::subscribe`](crate::run::Run::subscribe) opens one for a run,
/// [`RunRegistry::subscribe`](crate::RunRegistry::subscribe) one for all runs of a
/// registry. [`next`](Self::next) waits for an event. The observer is also a [`Stream`], which
/// costs one more allocation for each event; both may be used in turn.
pub struct RunEvents {
    channel: broadcast::WeakSender<RunEvent>,
    /// `None` while `received` has the receiver.
    receiver: Option<broadcast::Receiver<RunEvent>>,
    /// The pending receive, if the stream was polled: it holds the waker.
    received: Option<Pin<Box<dyn Future<Output = Received> + Send + Sync>>>,
}

/// The next event, and the receiver for those after it.
type Received = (Option<RunEvent>, broadcast::Receiver<RunEvent>);

impl fmt::Debug for RunEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunEvents").finish_non_exhaustive()
    }
}

/// The clone receives the events from now on.
impl Clone for RunEvents {
    fn clone(&self) -> Self {
        // Without its sender the channel is closed, and so is the clone's.
        let channel = self.channel.upgrade();
        Self::new(&channel.unwrap_or_else(|| broadcast::Sender::new(1)))
    }
}

impl RunEvents {
    pub(crate) fn new(channel: &broadcast::Sender<RunEvent>) -> Self {
        Self {
            channel: channel.downgrade(),
            receiver: Some(channel.subscribe()),
            received: None,
        }
    }

    /// Waits for the next event. An observer of one run gets `None` after the run's end, and any
    /// observer once the observed run or registry is gone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no event is lost.
    pub async fn next(&mut self) -> Option<RunEvent> {
        match &mut self.receiver {
            Some(receiver) => receive(receiver).await,
            None => poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await,
        }
    }
}

/// The stream of one run ends after the run's end. Any stream ends once the observed run or
/// registry is gone.
impl Stream for RunEvents {
    type Item = RunEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<RunEvent>> {
        if let Some(mut receiver) = self.receiver.take() {
            self.received = Some(Box::pin(
                async move { (receive(&mut receiver).await, receiver) },
            ));
        }
        let Some(received) = &mut self.received else {
            return Poll::Ready(None);
        };
        let (event, receiver) = ready!(received.as_mut().poll(cx));
        self.received = None;
        self.receiver = Some(receiver);
        Poll::Ready(event)
    }
}

async fn receive(receiver: &mut broadcast::Receiver<RunEvent>) -> Option<RunEvent> {
    match receiver.recv().await {
        Ok(event) => Some(event),
        Err(RecvError::Lagged(events)) => Some(RunEvent::Lost { events }),
        Err(RecvError::Closed) => None,
    }
}
