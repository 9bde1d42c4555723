//! A receiver: the messages that wait for it, and the task that sends them.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use axum::body::Body;
use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, StatusCode, header};
use jiff::Timestamp;
use tokio::{
    sync::Notify,
    time::{Instant, timeout, timeout_at},
};
use tower::{ServiceExt, util::BoxCloneSyncService};
use tower_agent::{BoxError, ReplayBody};

use super::{
    QUEUE,
    deliveries::{Deliveries, DeliveryOutcome},
};
use crate::{
    config::{Webhook, WebhookKind},
    http_client::{causes, read_at_most},
};

/// The waits before the second try and those after it.
const RETRY_WAITS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
];

/// The longest that a try may take.
const TRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The most requests that are under way to a receiver.
const CONCURRENCY: usize = 16;

/// The most bytes of an answer that are read, and the time for them, so that the connection may serve again.
const MAX_ANSWER: usize = 64 * 1024;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Why messages are lost without a try.
const CLOSED: &str = "the receiver answered 410, or is gone from the configuration";

const USER_AGENT: &str = concat!("tower-agent-gateway/", env!("CARGO_PKG_VERSION"));

/// The client that sends the requests.
pub(crate) type WebhookClient = BoxCloneSyncService<Request<ReplayBody>, Response<Body>, BoxError>;

pub(super) struct Receiver {
    settings: ArcSwap<ReceiverSettings>,
    queue: Mutex<MessageQueue>,
    wake: Notify,
    waiting: Arc<AtomicUsize>,
}

struct ReceiverSettings {
    webhook: Webhook,
    client: WebhookClient,
    /// The most messages that may wait.
    share: usize,
}

#[derive(Default)]
struct MessageQueue {
    /// By the time of the next try, the earliest first.
    messages: BinaryHeap<Reverse<QueuedMessage>>,
    /// How many messages had been queued, or queued again.
    queued: u64,
    /// How many messages are being sent.
    active: usize,
    /// Whether nothing is sent any more.
    is_closed: bool,
}

struct QueuedMessage {
    due: Instant,
    number: u64,
    message: Message,
}

/// A message that waits or is sent. One that is dropped on the way counts as lost.
struct Message {
    id: Arc<str>,
    body: Bytes,
    /// The tries that have failed.
    failed: usize,
    /// Whether it is counted what became of the message.
    is_settled: bool,
    deliveries: Arc<Deliveries>,
    _slots: [QueueSlot; 2],
}

/// A slot of a bounded queue, which is free again at the drop.
struct QueueSlot(Arc<AtomicUsize>);

/// Why a try failed.
enum TryFailure {
    /// The receiver wants no more messages.
    Gone,
    Other(String),
}

impl Receiver {
    pub(super) fn new(webhook: Webhook, client: WebhookClient, share: usize) -> Self {
        Self {
            settings: ArcSwap::from_pointee(ReceiverSettings {
                webhook,
                client,
                share,
            }),
            queue: Mutex::default(),
            wake: Notify::new(),
            waiting: Arc::default(),
        }
    }

    /// Replaces the settings; a receiver that had answered 410 gets messages again.
    pub(super) fn replace(&self, webhook: Webhook, client: WebhookClient, share: usize) {
        self.settings.store(Arc::new(ReceiverSettings {
            webhook,
            client,
            share,
        }));
        self.lock().is_closed = false;
    }

    pub(super) fn wants(&self, kind: WebhookKind, reason: Option<&str>) -> bool {
        self.settings.load().webhook.wants(kind, reason)
    }

    /// Queues a message for its first try, if there is room among those that wait here and among all.
    pub(super) fn queue(
        &self,
        id: &Arc<str>,
        body: &Bytes,
        all: &Arc<AtomicUsize>,
        deliveries: &Arc<Deliveries>,
    ) {
        let share = self.settings.load().share;
        let lost = |outcome, cause| deliveries.count(outcome, &self.host(), cause);
        if self.lock().is_closed {
            return lost(DeliveryOutcome::Closed, CLOSED);
        }
        let own = QueueSlot::take(&self.waiting, share);
        let slots = own.and_then(|own| Some([own, QueueSlot::take(all, QUEUE)?]));
        let Some(_slots) = slots else {
            let cause = "too many messages wait for the receiver";
            return lost(DeliveryOutcome::NoRoom, cause);
        };
        let message = Message {
            id: Arc::clone(id),
            body: body.clone(),
            failed: 0,
            is_settled: false,
            deliveries: Arc::clone(deliveries),
            _slots,
        };
        self.put(Instant::now(), message);
    }

    /// Whether a message is being sent, or should be.
    pub(super) fn is_busy(&self) -> bool {
        let queue = self.lock();
        let first = queue.messages.peek();
        queue.active > 0 || first.is_some_and(|first| first.0.due <= Instant::now())
    }

    /// Sends nothing any more; what waits is lost.
    pub(super) fn close(&self) {
        let mut queue = self.lock();
        queue.is_closed = true;
        let waiting = std::mem::take(&mut queue.messages);
        drop(queue);
        drop(waiting);
    }

    /// Sends each message when it is due, for as long as the task lives.
    pub(super) async fn send_all(self: Arc<Self>) {
        let lanes = (0..CONCURRENCY).map(|_| self.send_each());
        join_all(lanes).await;
    }

    async fn send_each(&self) {
        loop {
            let message = self.next().await;
            let sent = self.send(&message).await;
            self.settle(message, sent);
        }
    }

    /// Waits until a message is due.
    async fn next(&self) -> Message {
        loop {
            let woken = self.wake.notified();
            let next = {
                let mut queue = self.lock();
                let due = queue.messages.peek().map(|first| first.0.due);
                if due.is_some_and(|due| due <= Instant::now()) {
                    let first = queue.messages.pop();
                    if !queue.messages.is_empty() {
                        self.wake.notify_one();
                    }
                    if let Some(Reverse(first)) = first {
                        queue.active += 1;
                        return first.message;
                    }
                }
                due
            };
            match next {
                // It is looked again, whichever it was.
                Some(due) => drop(timeout_at(due, woken).await),
                None => woken.await,
            }
        }
    }

    fn settle(&self, mut message: Message, sent: Result<(), TryFailure>) {
        match sent {
            Ok(()) => message.settle(DeliveryOutcome::Delivered, "", ""),
            Err(TryFailure::Gone) => {
                message.settle(DeliveryOutcome::Closed, &self.host(), CLOSED);
                self.close();
            }
            Err(TryFailure::Other(cause)) => match RETRY_WAITS.get(message.failed) {
                Some(wait) => {
                    message.failed += 1;
                    self.put(Instant::now() + *wait, message);
                }
                None => message.settle(DeliveryOutcome::GaveUp, &self.host(), &cause),
            },
        }
        self.lock().active -= 1;
    }

    fn put(&self, due: Instant, message: Message) {
        let mut queue = self.lock();
        if queue.is_closed {
            // The lock is not held while the message is counted.
            drop(queue);
            drop(message);
            return;
        }
        queue.queued += 1;
        let number = queue.queued;
        queue.messages.push(Reverse(QueuedMessage {
            due,
            number,
            message,
        }));
        drop(queue);
        self.wake.notify_one();
    }

    /// Tries to send a message once.
    async fn send(&self, message: &Message) -> Result<(), TryFailure> {
        let settings = self.settings.load_full();
        let posted = timeout(TRY_TIMEOUT, settings.post(message)).await;
        let (status, body) = match posted {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(TryFailure::Other(causes(&*error))),
            Err(_) => {
                return Err(TryFailure::Other(format!(
                    "no answer within {TRY_TIMEOUT:?}"
                )));
            }
        };
        // A body that is long or late loses its connection, and nothing else.
        let _read = timeout(ANSWER_TIMEOUT, read_at_most(body, MAX_ANSWER)).await;
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::GONE => Err(TryFailure::Gone),
            status => Err(TryFailure::Other(format!("the answer is a {status}"))),
        }
    }

    /// The receiver without its path, which may hold a secret.
    fn host(&self) -> String {
        let settings = self.settings.load();
        let host = settings.webhook.url.authority();
        host.map_or_else(String::new, ToString::to_string)
    }

    fn lock(&self) -> MutexGuard<'_, MessageQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReceiverSettings {
    async fn post(&self, message: &Message) -> Result<(StatusCode, Body), BoxError> {
        // A receiver refuses old signatures, so each try has its own.
        let now = Timestamp::now().as_second();
        let signature = self.webhook.key.sign(&message.id, now, &message.body);
        let request = Request::post(self.webhook.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::USER_AGENT, USER_AGENT)
            .header("webhook-id", &*message.id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", signature)
            .body(ReplayBody::from(message.body.clone()))?;
        let answer = self.client.clone().oneshot(request).await?;
        let (head, body) = answer.into_parts();
        Ok((head.status, body))
    }
}

impl Message {
    fn settle(&mut self, outcome: DeliveryOutcome, receiver: &str, cause: &str) {
        self.is_settled = true;
        self.deliveries.count(outcome, receiver, cause);
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if !self.is_settled {
            self.settle(DeliveryOutcome::Closed, "", CLOSED);
        }
    }
}

impl QueueSlot {
    fn take(slots: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let add = |taken: usize| (taken < most).then_some(taken + 1);
        let (set, load) = (Ordering::AcqRel, Ordering::Acquire);
        slots.fetch_update(set, load, add).ok()?;
        Some(Self(Arc::clone(slots)))
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl PartialEq for QueuedMessage {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for QueuedMessage {}

impl PartialOrd for QueuedMessage {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for QueuedMessage {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
