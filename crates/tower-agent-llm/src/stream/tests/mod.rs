mod anthropic;
mod any;
mod chat;
mod custom;
mod ends;
mod frame;
mod generated;
mod heartbeats;
mod json;
mod reference;
mod responses;
mod shapes;
mod splitter;
mod streams;

use super::reader::StreamReader;
use crate::{
    dialect::{Dialect, StreamState},
    sse::{Event, EventKind, EventVerdict, Splitter},
};

/// The verdict on one event of a known dialect.
fn verdict(dialect: Dialect, name: &str, data: &str) -> EventVerdict {
    let event = Event::new(name.as_bytes(), data.as_bytes());
    let grammar = dialect.grammar().expect("a known dialect");
    grammar.judge(&event, &mut StreamState::default())
}

fn kind(dialect: Dialect, name: &str, data: &str) -> EventKind {
    verdict(dialect, name, data).kind
}

/// A stream reader that has read events with these data.
fn judged(dialect: Dialect, events: &[&str]) -> StreamReader {
    let mut judge = StreamReader::new(dialect);
    for data in events {
        judge.push(format!("data: {data}\n\n").as_bytes());
    }
    judge
}

#[derive(Clone, Debug, PartialEq)]
struct Owned {
    name: Vec<u8>,
    data: Vec<u8>,
    end: u64,
    oversized: bool,
}

fn split<'a>(splitter: &mut Splitter, chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<Owned> {
    let mut events = Vec::new();
    for chunk in chunks {
        splitter.push(chunk, |event| {
            events.push(Owned {
                name: event.name.to_vec(),
                data: event.data.to_vec(),
                end: event.end,
                oversized: event.oversized,
            });
        });
    }
    events
}
