//! Public reports about other clients and proxies: what this crate makes of the same bytes.
//!
//! Each test names its reports as `owner/repo#number`, and what was expected before its first run.
//! Streams are read at once, byte by byte, and cut in two at each byte.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod failures;
mod splitting;
mod streams;
mod usage;

use tower_agent_llm::{
    dialect::{Dialect, Finish, StreamFailure, Usage},
    sse::Splitter,
    stream::StreamReader,
};

/// All dialects that have a name, and the one that a stream's events decide.
const DIALECTS: [Dialect; 4] = [
    Dialect::OpenAiChat,
    Dialect::OpenAiResponses,
    Dialect::Anthropic,
    Dialect::Any,
];

/// Whole, then byte by byte, then in two parts, cut at each byte.
fn cuts(stream: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    let halves = (1..stream.len()).map(|at| {
        let (before, behind) = stream.split_at(at);
        vec![before, behind]
    });
    [vec![stream], stream.chunks(1).collect()]
        .into_iter()
        .chain(halves)
}

/// The names and data of the events of a stream, which do not depend on how it is cut.
fn events(stream: impl AsRef<[u8]>) -> Vec<(String, String)> {
    let stream = stream.as_ref();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut whole = None;
    for chunks in cuts(stream) {
        let mut splitter = Splitter::new();
        let mut events = Vec::new();
        for chunk in &chunks {
            splitter.push(chunk, |event| {
                events.push((text(event.name), text(event.data)));
            });
        }
        let first = chunks[0].len();
        assert_eq!(
            whole.get_or_insert_with(|| events.clone()),
            &events,
            "{first} bytes of {stream:?}"
        );
    }
    whole.unwrap()
}

/// The data of the events of a stream.
fn data(stream: impl AsRef<[u8]>) -> Vec<String> {
    events(stream).into_iter().map(|(_, data)| data).collect()
}

/// What a reader says of a stream that has ended.
#[derive(Clone, Debug, PartialEq)]
struct Story {
    dialect: Dialect,
    commit: Option<u64>,
    text: Option<u64>,
    progressed: u64,
    terminator: Option<u64>,
    error: Option<u64>,
    failure: Option<StreamFailure>,
    finish: Finish,
    usage: Option<Usage>,
    stop: Option<String>,
    events: u64,
    heartbeats: u64,
    boundary: u64,
    next_sequence: u64,
}

impl Story {
    fn of(dialect: Dialect, chunks: &[&[u8]]) -> Self {
        let mut reader = StreamReader::new(dialect);
        for chunk in chunks {
            reader.push(chunk);
        }
        reader.end();
        Self {
            dialect: reader.dialect(),
            commit: reader.commit(),
            text: reader.text(),
            progressed: reader.progressed(),
            terminator: reader.terminator(),
            error: reader.error(),
            failure: reader.failure().cloned(),
            finish: reader.finish(),
            usage: reader.usage(),
            stop: reader.stop_reason().map(str::to_owned),
            events: reader.events(),
            heartbeats: reader.heartbeats(),
            boundary: reader.boundary(),
            next_sequence: reader.next_sequence(),
        }
    }
}

/// Reads a stream to its clean end; the story does not depend on how the stream is cut.
fn read(dialect: Dialect, stream: impl AsRef<[u8]>) -> Story {
    let stream = stream.as_ref();
    let whole = Story::of(dialect, &[stream]);
    for chunks in cuts(stream) {
        let first = chunks[0].len();
        assert_eq!(Story::of(dialect, &chunks), whole, "{dialect:?}, {first}");
    }
    whole
}

/// The offset behind the first `part` of a stream and the blank line that follows it.
fn behind(stream: &str, part: &str) -> Option<u64> {
    let at = stream.find(part).unwrap();
    let end = stream[at..].find("\n\n").unwrap();
    Some((at + end + 2) as u64)
}

/// Events without names.
fn unnamed<'a>(data: impl IntoIterator<Item = &'a str>) -> String {
    data.into_iter()
        .map(|data| format!("data: {data}\n\n"))
        .collect()
}

/// Events that are named as their `type` says.
fn named<'a>(events: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    events
        .into_iter()
        .map(|(name, data)| format!("event: {name}\ndata: {data}\n\n"))
        .collect()
}
