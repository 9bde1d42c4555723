//! `GET /events`: the events of all runs, as server-sent events, and those of the other gateways.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{FutureExt, Stream, StreamExt, future, stream};
use serde_json::{Value, value::RawValue};
use tokio::{sync::watch, task::unconstrained, time::Instant};
use tower_agent::{RunEvent, RunEvents, RunRegistry};

use super::{
    Watched,
    queries::EventsQuery,
    replicas::{EventsAnswer, OtherGateways, RelayedEvent, raw, without_texts},
};

mod relay;
#[cfg(test)]
mod tests;

/// The silence after which a comment is sent: proxies close silent connections.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The number of events that are kept for observers that reconnect.
const KEPT: usize = RunRegistry::EVENTS;

/// The most events, and the most bytes of them, in an answer to another gateway.
const RELAYED: usize = 256;
const RELAYED_BYTES: usize = 1024 * 1024;

/// The source of the events, and the signal that ends their stream.
#[derive(Clone, Debug)]
pub(crate) struct EventFeed {
    registry: RunRegistry,
    log: Arc<Mutex<EventLog>>,
    /// True, or closed, once the server shuts down.
    stopping: watch::Receiver<bool>,
    began: Instant,
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
            began: Instant::now(),
        }
    }

    /// Streams the events after number `last`, or from now on, until a shutdown. Returns the number that
    /// they come after, too.
    ///
    /// The ends of the runs that the shutdown ends come before the end of the stream.
    fn stream(self, last: Option<u64>) -> (u64, impl Stream<Item = RunEvent> + Send + use<>) {
        // The subscription begins before the log is read: an event in between is in both, and
        // `Following` skips the second copy.
        let live = self.registry.subscribe();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = log.catch_up();
        let last = last.map_or(newest, |last| seen(last, newest));
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
        let events = stream::unfold(start, |mut following| async move {
            let event = following.next().await?;
            Some((event, following))
        });
        (last, events)
    }

    /// The events after number `last` that another gateway relays to an observer. Without a number
    /// they begin now, if this gateway is older than the observer has been there, and else with the
    /// first.
    pub(super) fn answer(&self, last: Option<u64>, since_ms: Option<u64>) -> EventsAnswer {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = log.catch_up();
        let is_older = |since| self.began.elapsed() >= Duration::from_millis(since);
        let last = match last {
            Some(last) => seen(last, newest),
            None if since_ms.is_some_and(is_older) => newest,
            None => 0,
        };
        let after = |event: &&RunEvent| number(event) > Some(last);
        let (mut answer, mut bytes) = (EventsAnswer::default(), 0);
        answer.position = last;
        for event in log.kept.iter().filter(after) {
            if answer.events.len() >= RELAYED || bytes >= RELAYED_BYTES {
                break;
            }
            let number = number(event).unwrap_or_default();
            if answer.events.is_empty() {
                answer.lost = number - last - 1;
            }
            let data = shared(event);
            bytes += data.get().len();
            answer.position = number;
            answer.events.push(RelayedEvent {
                number,
                name: name_of(event).to_owned(),
                data,
            });
        }
        answer.more = answer.position < newest;
        answer
    }
}

/// The number of the last event that an observer has seen of those up to `newest`.
const fn seen(last: u64, newest: u64) -> u64 {
    // A greater number comes from a gateway that ran before, so the observer has seen no event of this
    // one.
    if last > newest { 0 } else { last }
}

/// An event as other gateways get it: without what was said in its run, which never goes into the
/// store.
fn shared(event: &RunEvent) -> Box<RawValue> {
    let mut event = serde_json::to_value(event).unwrap_or_default();
    if let Some(fields) = event.as_object_mut() {
        fields.remove("partial");
        if let Some(snapshot) = fields.get_mut("snapshot") {
            without_texts(snapshot);
        }
        let notice = fields.get_mut("notice").and_then(Value::as_object_mut);
        // What a checker says of the run.
        if let Some(notice) = notice.filter(|notice| notice["kind"] == "checked") {
            notice.remove("reason");
        }
    }
    raw(&event)
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

/// Streams the events from now on, or those after the event of the `last-event-id`; with `replicas=all`
/// also those of the other gateways.
pub(crate) async fn events(
    State(watched): State<Watched>,
    query: Result<Query<EventsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let others = watched.others().filter(|_| query.replicas.is_some());
    let last = headers.get("last-event-id").filter(|id| !id.is_empty());
    let last = last.map(|id| id.to_str().unwrap_or_default());
    match others {
        None => own_events(watched.events, last),
        Some(others) => all_events(watched.events, others, last).await,
    }
}

fn own_events(events: EventFeed, last: Option<&str>) -> Response {
    let last = last.map(str::parse);
    match last.transpose() {
        Ok(last) => {
            let (_, events) = events.stream(last);
            respond(events.map(|event| to_event(&event)))
        }
        Err(_) => {
            let message = "last-event-id: an event's id is a number\n";
            (StatusCode::BAD_REQUEST, message).into_response()
        }
    }
}

async fn all_events(events: EventFeed, others: OtherGateways, last: Option<&str>) -> Response {
    let last = last.map(str::parse);
    match last.transpose() {
        Ok(last) => {
            let events = relay::stream(events, others, last).await;
            respond(events.map(|event| {
                let sent = Event::default().event(event.name);
                let sent = sent.data(event.data.to_string());
                match event.id {
                    Some(id) => sent.id(id),
                    None => sent,
                }
            }))
        }
        Err(_) => {
            let message = "last-event-id: with replicas=all it is the id of such an event\n";
            (StatusCode::BAD_REQUEST, message).into_response()
        }
    }
}

fn respond(events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = events.map(Ok::<_, Infallible>);
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

/// The name of the event for observers.
const fn name_of(event: &RunEvent) -> &'static str {
    match event {
        RunEvent::Ended { .. } => "ended",
        RunEvent::Lost { .. } => "lost",
        _ => "notice",
    }
}

fn to_event(event: &RunEvent) -> Event {
    let data = serde_json::to_string(event).unwrap_or_default();
    let sent = Event::default().event(name_of(event)).data(data);
    match number(event) {
        Some(number) => sent.id(number.to_string()),
        // `lost` gets no id: it stands for numbered events.
        None => sent,
    }
}
