//! `GET /events`: the events of all runs, as server-sent events.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{FutureExt, Stream, StreamExt, future, stream};
use tokio::{sync::watch, task::unconstrained};
use tower_agent::{RunEvent, RunEvents, RunRegistry};

#[cfg(test)]
mod tests;

/// The silence after which a comment is sent: proxies close silent connections.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The number of events that are kept for observers that reconnect.
const KEPT: usize = RunRegistry::EVENTS;

/// The source of the events, and the signal that ends their stream.
#[derive(Clone, Debug)]
pub(crate) struct EventFeed {
    registry: RunRegistry,
    log: Arc<Mutex<EventLog>>,
    /// True, or closed, once the server shuts down.
    stopping: watch::Receiver<bool>,
}

/// The last events of the registry, oldest first and without a gap in their numbers.
///
/// Each observer that connects moves the new events from the subscription to the list. The
/// subscription can hold as many events as the list, so no task has to move them in between.
#[derive(Debug)]
struct EventLog {
    events: RunEvents,
    kept: VecDeque<RunEvent>,
}

impl EventLog {
    /// Moves all events that were sent so far to the list, and returns the newest one's number; 0
    /// if the list is empty.
    fn catch_up(&mut self) -> u64 {
        // The read is outside of tokio's coop budget: without budget, it finds no event.
        while let Some(Some(event)) = unconstrained(self.events.next()).now_or_never() {
            if number(&event).is_none() {
                // Events were lost here, and at least `KEPT` newer ones follow.
                self.kept.clear();
                continue;
            }
            if self.kept.len() == KEPT {
                self.kept.pop_front();
            }
            self.kept.push_back(event);
        }
        self.kept.back().and_then(number).unwrap_or(0)
    }
}

impl EventFeed {
    pub(crate) fn new(registry: RunRegistry, stopping: watch::Receiver<bool>) -> Self {
        let log = EventLog {
            events: registry.subscribe(),
            kept: VecDeque::new(),
        };
        Self {
            registry,
            log: Arc::new(Mutex::new(log)),
            stopping,
        }
    }

    /// Streams the events after number `last`, or from now on, until a shutdown.
    ///
    /// The ends of the runs that the shutdown ends come before the end of the stream.
    fn stream(self, last: Option<u64>) -> impl Stream<Item = RunEvent> + Send + 'static {
        // The subscription begins before the log is read: an event in between is in both, and
        // `Following` skips the second copy.
        let live = self.registry.subscribe();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = log.catch_up();
        // A greater number comes from a gateway that ran before, so the observer has seen no event
        // of this one.
        let last = last.map_or(newest, |last| if last > newest { 0 } else { last });
        let kept = log.kept.iter();
        let missed = kept.filter(|event| number(event) > Some(last));
        let missed = missed.cloned().collect();
        drop(log);
        let start = Following {
            missed,
            live,
            last,
            stopping: self.stopping,
        };
        stream::unfold(start, |mut following| async move {
            let event = following.next().await?;
            Some((event, following))
        })
    }
}

/// The position of one observer in the events.
struct Following {
    /// The events that come before the live ones.
    missed: VecDeque<RunEvent>,
    live: RunEvents,
    /// The number of the last event that the observer saw, or that it lost.
    last: u64,
    stopping: watch::Receiver<bool>,
}

impl Following {
    /// The next event, or the count of those that were lost before it; `None` at a shutdown.
    async fn next(&mut self) -> Option<RunEvent> {
        loop {
            let event = match self.missed.pop_front() {
                Some(event) => event,
                None => next(&mut self.live, &mut self.stopping).await?,
            };
            // The subscription's `Lost` has no number, and is skipped: its count includes events
            // that the log had. The gap in the numbers gives the right count.
            let Some(number) = number(&event).filter(|number| *number > self.last) else {
                continue;
            };
            let events = number - self.last - 1;
            if events > 0 {
                self.last = number - 1;
                self.missed.push_front(event);
                return Some(RunEvent::Lost { events });
            }
            self.last = number;
            return Some(event);
        }
    }
}

/// Streams the events from now on, or those after the event of the `last-event-id`.
pub(crate) async fn events(State(events): State<EventFeed>, headers: HeaderMap) -> Response {
    let last = headers.get("last-event-id").filter(|id| !id.is_empty());
    let number = last.map(|id| id.to_str().ok().and_then(|id| id.parse().ok()));
    if number == Some(None) {
        let message = "last-event-id: an event's id is a number\n";
        return (StatusCode::BAD_REQUEST, message).into_response();
    }
    let events = events.stream(number.flatten());
    let events = events.map(|event| Ok::<_, Infallible>(to_event(&event)));
    let answer = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    ([("x-accel-buffering", "no")], answer).into_response()
}

/// The next event; `None` at a shutdown. An event that is ready comes before the shutdown, because
/// it may report a run that the shutdown ended.
async fn next(events: &mut RunEvents, stopping: &mut watch::Receiver<bool>) -> Option<RunEvent> {
    let stopped = pin!(stopping.wait_for(|stopping| *stopping));
    match future::select(pin!(events.next()), stopped).await {
        future::Either::Left((event, _)) => return event,
        future::Either::Right(_) => {}
    }
    // Another thread may have sent events, and then the shutdown, after the look at the events.
    unconstrained(events.next()).now_or_never().flatten()
}

/// The registry's number of the event; `None` for lost events.
const fn number(event: &RunEvent) -> Option<u64> {
    match event {
        RunEvent::Notice {
            registry_sequence, ..
        }
        | RunEvent::Ended {
            registry_sequence, ..
        } => *registry_sequence,
        _ => None,
    }
}

fn to_event(event: &RunEvent) -> Event {
    let name = match event {
        RunEvent::Ended { .. } => "ended",
        RunEvent::Lost { .. } => "lost",
        _ => "notice",
    };
    let data = serde_json::to_string(event).unwrap_or_default();
    let sent = Event::default().event(name).data(data);
    match number(event) {
        Some(number) => sent.id(number.to_string()),
        // `lost` gets no id: it stands for numbered events.
        None => sent,
    }
}
