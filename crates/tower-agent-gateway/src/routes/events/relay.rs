//! `GET /events?replicas=all`: the events of all gateways as one stream.
//!
//! Each gateway keeps its last events with their numbers, for observers that come back. So this one asks
//! the others again and again for those behind what it has, as such an observer would: no event is
//! missed without a `lost`, whatever happens in between, and nothing is kept for the observer elsewhere.

use std::{collections::VecDeque, time::Duration};

use futures_util::{Stream, StreamExt, future::ready, stream};
use serde_json::{Value, json, value::RawValue};
use tokio::time::{Instant, sleep_until};

use super::{EventFeed, name_of, number};
use crate::routes::replicas::{
    AnswersElsewhere, ControlAnswer, ControlQuestion, EventsAnswer, OtherGateways, Positions,
    Reached, at_replica,
};

/// How often the others are asked.
const INTERVAL: Duration = Duration::from_millis(250);

/// Beyond so many gateways the positions of those that are gone are forgotten.
const MANY: usize = 64;

/// An event for the observer.
#[derive(Debug, PartialEq)]
pub(super) struct Relayed {
    /// The positions behind it; `None` for what stands for no numbered event.
    pub(super) id: Option<String>,
    pub(super) name: String,
    pub(super) data: Value,
}

/// What one of the streams has for the other's positions.
enum StreamStep {
    /// An event of the gateway of this id, with its number.
    Event {
        gateway: String,
        number: Option<u64>,
        name: String,
        data: Value,
    },
    /// The position in the events of the gateway of this id, from which the stream begins.
    Begins(String, u64),
    /// Which gateways the stream covers from now on.
    Covers(Value),
}

/// Streams the events of all gateways behind these positions, or from now on, until a shutdown.
///
/// Resolves once the others have said where they stand, so that nothing which follows is missed.
pub(super) async fn stream(
    events: EventFeed,
    others: OtherGateways,
    last: Option<Positions>,
) -> impl Stream<Item = Relayed> + Send + 'static {
    let mut relay = Relay::new(others, last.clone());
    let mut stopping = events.stopping.clone();
    let gateway = relay.others.own_id().to_owned();
    // What happens here while the others are asked comes, too.
    let from = last.as_ref().map(|last| last.of(&gateway).unwrap_or(0));
    let (from, own) = events.stream(from);
    relay.ask().await;

    let name = relay.own.clone();
    let begins = StreamStep::Begins(gateway.clone(), from);
    let own = own.map(move |event| StreamStep::Event {
        gateway: gateway.clone(),
        number: number(&event),
        name: name_of(&event).to_owned(),
        data: at_replica(serde_json::to_value(&event).unwrap_or_default(), &name),
    });
    let theirs = stream::unfold(relay, |mut relay| async move {
        let item = relay.next().await;
        Some((item, relay))
    });
    let stopped = async move {
        let _ = stopping.wait_for(|stopping| *stopping).await;
    };
    let theirs = theirs.take_until(Box::pin(stopped));
    let items = stream::once(ready(begins)).chain(stream::select(own, theirs));
    let mut positions = last.unwrap_or_default();
    items.filter_map(move |item| ready(relayed(item, &mut positions)))
}

fn relayed(item: StreamStep, positions: &mut Positions) -> Option<Relayed> {
    match item {
        StreamStep::Begins(gateway, position) => {
            positions.set(&gateway, position);
            None
        }
        StreamStep::Covers(data) => Some(Relayed {
            id: None,
            name: "replicas".into(),
            data,
        }),
        StreamStep::Event {
            gateway,
            number,
            name,
            data,
        } => {
            let id = number.map(|number| {
                positions.set(&gateway, number);
                positions.to_string()
            });
            Some(Relayed { id, name, data })
        }
    }
}

/// The events of the other gateways.
struct Relay {
    others: OtherGateways,
    /// The name of this gateway among the others.
    own: String,
    /// The positions behind the events that came.
    positions: Positions,
    /// When an observer came that has no positions; `None` for one that has come back.
    began: Option<Instant>,
    asked: Instant,
    /// Whether some gateway has more events.
    has_more: bool,
    items: VecDeque<StreamStep>,
    covers: Option<Reached>,
}

impl Relay {
    fn new(others: OtherGateways, last: Option<Positions>) -> Self {
        let now = Instant::now();
        Self {
            others,
            own: String::new(),
            began: last.is_none().then_some(now),
            positions: last.unwrap_or_default(),
            asked: now,
            has_more: false,
            items: VecDeque::new(),
            covers: None,
        }
    }

    async fn next(&mut self) -> StreamStep {
        loop {
            if let Some(item) = self.items.pop_front() {
                return item;
            }
            if !self.has_more {
                sleep_until(self.asked + INTERVAL).await;
            }
            self.ask().await;
        }
    }

    /// Asks the others for the events behind what came.
    async fn ask(&mut self) {
        self.asked = Instant::now();
        let millis =
            |since: Instant| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let question = ControlQuestion::Events {
            after: self.positions.clone(),
            since_ms: self.began.map(millis),
        };
        let is_it = |answer| match answer {
            ControlAnswer::Events(events) => Some(events),
            _ => None,
        };
        let asked = self.others.ask(&question, is_it).await;
        self.hear(asked);
    }

    fn hear(&mut self, asked: AnswersElsewhere<EventsAnswer>) {
        self.own = asked.own;
        if self.covers.as_ref() != Some(&asked.reached) {
            let mut covers = json!({ "event": "replicas" });
            asked.reached.tell_operator(&mut covers);
            self.items.push_back(StreamStep::Covers(covers));
            self.covers = Some(asked.reached);
        }
        self.has_more = false;
        if self.positions.len() > MANY {
            let is_here = |id: &str| asked.answers.iter().any(|answer| answer.id == id);
            self.positions.retain(is_here);
        }
        for answer in asked.answers {
            let (gateway, events) = (answer.id, answer.answer);
            if self.positions.of(&gateway).is_none() {
                let first = events
                    .events
                    .first()
                    .map_or(events.position, |it| it.number - 1);
                let begins = first.saturating_sub(events.lost);
                self.items
                    .push_back(StreamStep::Begins(gateway.clone(), begins));
            }
            self.positions.set(&gateway, events.position);
            self.has_more |= events.more;
            if events.lost > 0 {
                let lost = json!({ "event": "lost", "events": events.lost });
                self.items.push_back(StreamStep::Event {
                    gateway: gateway.clone(),
                    number: None,
                    name: "lost".into(),
                    data: at_replica(lost, &answer.replica),
                });
            }
            for event in events.events {
                let data = |data: &RawValue| serde_json::from_str(data.get()).unwrap_or_default();
                self.items.push_back(StreamStep::Event {
                    gateway: gateway.clone(),
                    number: Some(event.number),
                    name: event.name,
                    data: at_replica(data(&event.data), &answer.replica),
                });
            }
        }
    }
}
