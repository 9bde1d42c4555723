//! `GET /events`: the events of all runs, as server-sent events.

use std::{convert::Infallible, pin::pin, time::Duration};

use axum::{
    extract::State,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::{Stream, future, stream};
use tokio::sync::watch;
use tower_agent::{RunEvent, RunRegistry, run::RunEvents};

#[cfg(test)]
mod tests;

/// The silence after which a comment is sent: proxies close silent connections.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The source of the events, and the signal that ends their stream.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    registry: RunRegistry,
    /// True, or closed, once the server shuts down.
    stopping: watch::Receiver<bool>,
}

impl Events {
    pub(crate) const fn new(registry: RunRegistry, stopping: watch::Receiver<bool>) -> Self {
        Self { registry, stopping }
    }

    /// Streams the events from now on; at a shutdown, also those of the runs' ends.
    fn stream(self) -> impl Stream<Item = RunEvent> + Send + 'static {
        let start = (self.registry.subscribe(), self.stopping);
        stream::unfold(start, |(mut events, mut stopping)| async move {
            let event = next(&mut events, &mut stopping).await?;
            Some((event, (events, stopping)))
        })
    }
}

pub(crate) async fn events(State(events): State<Events>) -> Response {
    let events = futures_util::StreamExt::map(events.stream(), |event| {
        Ok::<_, Infallible>(to_event(&event))
    });
    let answer = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    ([("x-accel-buffering", "no")], answer).into_response()
}

/// The next event; `None` at a shutdown. A pending event precedes the shutdown, because it may
/// report a run that the shutdown ended.
async fn next(events: &mut RunEvents, stopping: &mut watch::Receiver<bool>) -> Option<RunEvent> {
    let stopped = pin!(stopping.wait_for(|stopping| *stopping));
    match future::select(pin!(events.next()), stopped).await {
        future::Either::Left((event, _)) => event,
        future::Either::Right(_) => None,
    }
}

fn to_event(event: &RunEvent) -> Event {
    let (name, number) = match event {
        RunEvent::Ended { sequence, .. } => ("ended", Some(sequence)),
        // Without a number of its own: the event stands for numbered ones that were lost.
        RunEvent::Lost { .. } => ("lost", None),
        RunEvent::Notice { sequence, .. } => ("notice", Some(sequence)),
        _ => ("other", None),
    };
    let data = serde_json::to_string(event).unwrap_or_default();
    let event = Event::default().event(name).data(data);
    match number {
        Some(number) => event.id(number.to_string()),
        None => event,
    }
}
