//! `[[webhooks]]`: posts to receivers what ended and what needs a person, by the Standard Webhooks
//! specification.
//!
//! An [`event_reader`] reads the events of the registry in a task of its own, so that no call waits; hooks
//! report cooldowns and freezes. The [`Dispatcher`] makes a [`message`] of each for the [`receiver`]s that
//! want it, and the task of a receiver signs and sends it. The queues are bounded, and what is lost is
//! counted in [`deliveries`].

mod deliveries;
mod event_reader;
mod message;
mod receiver;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use http::Uri;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower_agent::{Owner, RunRegistry, RunSnapshot, llm::failure::ActiveCooldown};

pub(crate) use self::receiver::WebhookClient;
use self::{
    deliveries::Deliveries,
    event_reader::read_events,
    message::{MessageIds, body},
    receiver::Receiver,
};
use crate::{
    background::BackgroundTask,
    config::{Webhook, WebhookKind},
    journal::Journal,
};

/// The most messages that wait for their receivers.
const QUEUE: usize = 10_000;

/// The time between two looks at whether the last messages are sent.
const SETTLE_INTERVAL: Duration = Duration::from_millis(5);

/// Shows an owner as the operator knows it.
pub(crate) type ShowOwner = Arc<dyn Fn(Owner) -> String + Send + Sync>;

/// The webhooks of a gateway; clones are the same. Its tasks end with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct Webhooks {
    dispatcher: Dispatcher,
    tasks: Arc<Mutex<WebhookTasks>>,
}

#[derive(Debug, Default)]
struct WebhookTasks {
    reading: Option<BackgroundTask>,
    sending: HashMap<Uri, (Arc<Receiver>, BackgroundTask)>,
}

/// Makes messages of events, and queues them for the receivers that want them; clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Dispatcher(Arc<DispatcherState>);

struct DispatcherState {
    receivers: ArcSwap<Receivers>,
    ids: MessageIds,
    journal: Journal,
    /// The messages that wait for any receiver.
    waiting: Arc<AtomicUsize>,
    deliveries: Arc<Deliveries>,
    /// The number of the last event of the registry that was read.
    read: AtomicU64,
}

/// The receivers of the present configuration, and how it names owners.
struct Receivers {
    all: Vec<Arc<Receiver>>,
    show: ShowOwner,
}

impl std::fmt::Debug for DispatcherState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DispatcherState").finish_non_exhaustive()
    }
}

impl Webhooks {
    /// Webhooks without receivers. `store` identifies the store of runs that other gateways share.
    pub(crate) fn new(store: Option<u128>, journal: Journal) -> Self {
        let state = DispatcherState {
            receivers: ArcSwap::from_pointee(Receivers {
                all: Vec::new(),
                show: Arc::new(|owner| owner.to_string()),
            }),
            ids: MessageIds::new(store),
            journal,
            waiting: Arc::default(),
            deliveries: Arc::default(),
            read: AtomicU64::new(0),
        };
        Self {
            dispatcher: Dispatcher(Arc::new(state)),
            tasks: Arc::default(),
        }
    }

    pub(crate) const fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// The number of messages that wait for a try.
    pub(crate) fn waiting(&self) -> usize {
        self.dispatcher.0.waiting.load(Ordering::Acquire)
    }

    /// Replaces the receivers. One whose URL stays keeps the messages that wait for it; those of others
    /// are lost.
    ///
    /// # Panics
    ///
    /// The method panics outside of a tokio runtime if there is a receiver.
    pub(crate) fn replace(
        &self,
        webhooks: &[Webhook],
        client: Option<&WebhookClient>,
        show: ShowOwner,
        registry: &RunRegistry,
    ) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut earlier = std::mem::take(&mut tasks.sending);
        let share = QUEUE / webhooks.len().max(1);
        let mut receivers = Vec::new();
        for (webhook, client) in webhooks.iter().zip(client.into_iter().cycle()) {
            let (receiver, task) = match earlier.remove(&webhook.url) {
                Some((receiver, task)) => {
                    receiver.replace(webhook.clone(), client.clone(), share);
                    (receiver, task)
                }
                None => {
                    let receiver = Receiver::new(webhook.clone(), client.clone(), share);
                    let receiver = Arc::new(receiver);
                    let sending = BackgroundTask::spawn(Arc::clone(&receiver).send_all());
                    (receiver, sending)
                }
            };
            receivers.push(Arc::clone(&receiver));
            tasks.sending.insert(webhook.url.clone(), (receiver, task));
        }
        let state = &self.dispatcher.0;
        let all = receivers;
        state.receivers.store(Arc::new(Receivers { all, show }));
        for (receiver, task) in earlier.into_values() {
            drop(task);
            receiver.close();
        }
        if webhooks.is_empty() {
            tasks.reading = None;
        } else if tasks.reading.is_none() {
            state.read.store(registry.last_event(), Ordering::Release);
            let reading = read_events(self.dispatcher.clone(), registry.clone());
            tasks.reading = Some(BackgroundTask::spawn(reading));
        }
    }

    /// Waits until what happened so far has had its first try, for at most `limit`, and says in the log
    /// how many messages are lost with the process.
    pub(crate) async fn settle(&self, limit: Duration, registry: &RunRegistry) {
        let is_busy = || {
            let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            let is_behind =
                || self.dispatcher.0.read.load(Ordering::Acquire) < registry.last_event();
            tasks.reading.is_some() && is_behind()
                || tasks
                    .sending
                    .values()
                    .any(|(receiver, _)| receiver.is_busy())
        };
        let settled = async {
            while is_busy() {
                sleep(SETTLE_INTERVAL).await;
            }
        };
        let is_settled = timeout(limit, settled).await.is_ok();
        let waiting = self.waiting();
        if waiting > 0 || !is_settled {
            tracing::warn!(
                waiting,
                "webhooks are lost: the process ends before they were delivered"
            );
        }
    }
}

impl Dispatcher {
    /// Reports a cooldown that begins.
    pub(crate) fn candidate_down(&self, cooling: &ActiveCooldown) {
        let kind = WebhookKind::CandidateDown;
        self.dispatch(kind, None, |_| {
            let (candidate, class) = (&cooling.candidate, cooling.class.as_str());
            let left = u64::try_from(cooling.left.as_millis()).unwrap_or(u64::MAX);
            let message =
                format!("The candidate {candidate} gets no calls for {left} ms: {class}.");
            let data = json!({
                "candidate": candidate,
                "class": class,
                "left_ms": left,
                "message": message,
            });
            (self.0.ids.once(kind), data)
        });
    }

    /// Reports that the operator keeps new runs out: those of this owner, or of all with `None`.
    pub(crate) fn frozen(&self, owner: Option<Owner>) {
        let kind = WebhookKind::Frozen;
        self.dispatch(kind, None, |show| {
            let owner = owner.map(|owner| show(owner));
            let whose = owner.as_deref().unwrap_or("all owners");
            let message = format!("New runs of {whose} are refused: the operator froze them.");
            let data = json!({ "owner": owner, "all": owner.is_none(), "message": message });
            (self.0.ids.once(kind), data)
        });
    }

    fn has_read(&self, event: u64) {
        self.0.read.store(event, Ordering::Release);
    }

    /// The candidate of the run's last attempt that is over.
    fn last_candidate(&self, run: &RunSnapshot) -> Option<Arc<str>> {
        self.0.journal.candidate(run.owner?, &run.run)
    }

    fn has_receiver(&self, kind: WebhookKind) -> bool {
        let receivers = self.0.receivers.load();
        receivers.all.iter().any(|it| it.wants(kind, None))
    }

    /// Queues a message for the receivers that want it. It is made only if there is one.
    fn dispatch(
        &self,
        kind: WebhookKind,
        reason: Option<&str>,
        make: impl FnOnce(&ShowOwner) -> (String, Value),
    ) {
        let receivers = self.0.receivers.load();
        let all = receivers.all.iter();
        let mut wanting = all.filter(|it| it.wants(kind, reason)).peekable();
        if wanting.peek().is_none() {
            return;
        }
        let (id, data) = make(&receivers.show);
        let (id, body) = (Arc::from(id), body(kind, data));
        for receiver in wanting {
            receiver.queue(&id, &body, &self.0.waiting, &self.0.deliveries);
        }
    }
}
