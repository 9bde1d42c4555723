//! An event of a stream and its meaning.

use super::heartbeat::is_heartbeat;

/// One event of a stream, from a [`Splitter`](crate::sse::Splitter).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The name of the event: the value of its last `event` line, cut at 256 bytes, or
    /// empty.
    pub name: &'a [u8],
    /// The data of the event: the values of its `data` lines, joined with `\n`.
    ///
    /// If the event is `oversized`, these are its data without the bulk of its long texts and
    /// lists, as valid JSON; empty if the data is not a JSON object.
    pub data: &'a [u8],
    /// The offset in the stream directly behind the blank line that ended the event; of JSON without
    /// a field, behind the line on which it was whole.
    ///
    /// If the blank line ends in CRLF, the offset is the one behind the CR, where the
    /// event is complete.
    pub end: u64,
    /// Whether the event's data was longer than
    /// [`MAX_EVENT`](crate::sse::MAX_EVENT), and most of it was dropped.
    pub oversized: bool,
    pub(crate) unusual: Option<Unusual>,
}

/// What few events have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusual {
    /// The event is oversized; so many bytes of the model's text were dropped.
    Elided(u64),
    /// The event stands in the stream in a form that SDKs ignore: as a field `error`, or as JSON
    /// without a field.
    Bare,
}

impl<'a> Event<'a> {
    /// Creates an event, for tests of a [`Grammar`](crate::dialect::Grammar).
    #[must_use]
    pub const fn new(name: &'a [u8], data: &'a [u8]) -> Self {
        Self {
            name,
            data,
            end: 0,
            oversized: false,
            unusual: None,
        }
    }

    /// Whether the event stands in the stream in a form that SDKs ignore.
    pub(crate) fn is_bare(&self) -> bool {
        self.unusual == Some(Unusual::Bare)
    }

    /// The bytes of the model's text that were dropped from an oversized event.
    pub(crate) const fn elided(&self) -> u64 {
        match self.unusual {
            Some(Unusual::Elided(bytes)) => bytes,
            _ => 0,
        }
    }

    /// The kind of an event with data that is not a JSON object; `None` if its name decides.
    ///
    /// Data that is not blank is progress. An event with neither data nor name is a sign of life,
    /// unless its data was dropped.
    pub(crate) fn kind_of_unreadable(&self) -> Option<EventKind> {
        if !self.is_blank() {
            Some(if is_heartbeat(self.name) {
                EventKind::Life
            } else if self.is_error_text() {
                EventKind::Error
            } else {
                EventKind::Progress
            })
        } else if self.name.is_empty() && !self.oversized {
            Some(EventKind::Life)
        } else {
            None
        }
    }

    /// Whether the event's data is a text that says that it is an error.
    pub(crate) fn is_error_text(&self) -> bool {
        let data = self.data.trim_ascii();
        let starts = |start: &[u8]| {
            let head = data.get(..start.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(start))
        };
        starts(b"error:") || starts(b"[error")
    }

    /// Whether the event's data is blank, so that only the name identifies the event.
    pub(crate) fn is_blank(&self) -> bool {
        self.data.trim_ascii().is_empty()
    }
}

/// The meaning that one event of a stream has for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// The event is a part of the answer: it commits the attempt, and is progress.
    Content,
    /// The event shows that the model works, but does not commit the attempt. An event of an
    /// unknown type is progress too.
    Progress,
    /// The event comes before the answer, or has no part of it, such as an empty delta. It
    /// neither commits the attempt nor is progress.
    Prelude,
    /// The event only shows that the connection is alive, such as a ping, which is not progress.
    Life,
    /// The event reports a failure of the upstream.
    Error,
    /// The event is the upstream's report that the answer is complete.
    Terminator,
}

/// The classification of one event by a [`Grammar`](crate::dialect::Grammar).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventVerdict {
    /// The meaning of the event.
    pub kind: EventKind,
    /// Whether the content of the event is reasoning only.
    pub reasoning: bool,
}

impl EventVerdict {
    /// Creates a classification of this kind, with `reasoning` set to `false`.
    #[must_use]
    pub const fn new(kind: EventKind) -> Self {
        Self {
            kind,
            reasoning: false,
        }
    }

    /// Creates a classification of kind [`Content`](EventKind::Content); `reasoning` says that
    /// the content is reasoning only.
    #[must_use]
    pub const fn content(reasoning: bool) -> Self {
        Self {
            kind: EventKind::Content,
            reasoning,
        }
    }
}

impl From<EventKind> for EventVerdict {
    fn from(kind: EventKind) -> Self {
        Self::new(kind)
    }
}

/// The most data bytes of one event that are kept: 1 MiB.
///
/// Of a longer event only the shorter values are kept: see [`oversized`](Event::oversized).
pub const MAX_EVENT: usize = 1024 * 1024;

/// The terminator: the bytes of the event after which an OpenAI chat stream is complete.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// The terminator of an Anthropic stream.
pub const MESSAGE_STOP: &[u8] = b"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// A comment line, without the blank line that would end an event.
pub(crate) const COMMENT: &[u8] = b": keep-alive\n";

/// Anthropic's event that only says that the connection lives.
pub(crate) const PING: &[u8] = b"event: ping\ndata: {\"type\": \"ping\"}\n\n";
