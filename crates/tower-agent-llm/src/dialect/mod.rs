//! The event formats of each API, and the error events for its clients.
//!
//! A [`Dialect`] names the API of the [`Grammar`] that reads a stream. The dialect is taken from a
//! request's path or extensions, or detected from a stream's events.

mod anthropic;
mod chat;
mod faulty_stops;
pub(crate) mod gen_ai_operation;
mod grammar;
mod responses;
mod stream_failure;
mod stream_state;
mod usage;
pub(crate) mod whole_answer;

pub use self::{
    grammar::{Finish, Grammar},
    stream_failure::{StreamFailure, Truncated},
    stream_state::StreamState,
    usage::Usage,
};

pub(crate) use self::{
    anthropic::Anthropic,
    chat::{OpenAiChat, is_done},
    faulty_stops::FaultyStop,
    responses::{OpenAiResponses, report_sequence},
    stream_failure::error_in,
};

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use crate::{
    json_scanner::{Scanner, Text},
    sse::{
        COMMENT, ErrorInfo, Event, EventKind, common_event, is_empty_object, is_heartbeat,
        openai_body,
    },
};

/// The event format of a stream, named for its API.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default)]
pub enum Dialect {
    /// The dialect is not known yet: the first event that shows a dialect decides it.
    #[default]
    Any,
    /// The dialect of OpenAI's `chat/completions`, and of compatible APIs.
    OpenAiChat,
    /// The dialect of OpenAI's `responses`.
    OpenAiResponses,
    /// The dialect of Anthropic's `messages`.
    Anthropic,
    /// The dialect of another API, as this grammar reads it.
    Custom(&'static dyn Grammar),
}

impl Dialect {
    /// Returns the dialect of a request by the last segments of its path, or
    /// [`Any`](Self::Any).
    #[must_use]
    pub fn from_path(path: &str) -> Self {
        let path = path.strip_suffix('/').unwrap_or(path);
        let is = |operation| {
            path.strip_suffix(operation)
                .is_some_and(|base| base.is_empty() || base.ends_with('/'))
        };
        if is("chat/completions") {
            Self::OpenAiChat
        } else if is("responses") {
            Self::OpenAiResponses
        } else if is("messages") || is("messages/count_tokens") {
            Self::Anthropic
        } else {
            Self::Any
        }
    }

    /// A short name of the dialect for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.grammar().map_or("any", Grammar::name)
    }

    /// The grammar that reads the dialect, if the dialect is known.
    #[must_use]
    pub const fn grammar(self) -> Option<&'static dyn Grammar> {
        match self {
            Self::Any => None,
            Self::OpenAiChat => Some(&OpenAiChat),
            Self::OpenAiResponses => Some(&OpenAiResponses),
            Self::Anthropic => Some(&Anthropic),
            Self::Custom(grammar) => Some(grammar),
        }
    }

    /// Whether the SDKs of this dialect raise an error for the event that reported this
    /// failure.
    ///
    /// An SDK ignores an error event in the format of another dialect, and takes the answer so
    /// far for complete.
    #[doc(hidden)]
    pub fn raises(self, failure: &StreamFailure) -> bool {
        if failure.is_bare {
            return false;
        }
        // The event was too long for its data to be kept; most likely the data has an `error` key.
        let is_long = failure.body.is_empty();
        let event = serde_json::from_slice::<Value>(&failure.body);
        match self {
            _ if !is_long && event.is_err() => false,
            Self::Anthropic => failure.is_named,
            Self::OpenAiChat => is_long || event.is_ok_and(|event| !event["error"].is_null()),
            _ => true,
        }
    }
}

impl PartialEq for Dialect {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Dialect {}

/// Returns the error event, as bytes, that ends a stream early.
///
/// Append the bytes at a [`boundary`](crate::stream::StreamReader::boundary) as the
/// last ones of the body, without a terminator.
///
/// The bytes hold one frame that makes the official SDKs of OpenAI and Anthropic raise an error. A
/// custom grammar may write its own bytes. In the Responses dialect a `response.failed` event comes
/// before the frame, if the answer's id is known, and takes `sequence`; the frame has the next
/// number. OpenAI's SDKs compare the ids: with the id of another answer they would raise a
/// mismatch, and not the reason.
#[must_use]
pub fn error_event(dialect: Dialect, info: &ErrorInfo<'_>) -> Bytes {
    match dialect.grammar() {
        Some(grammar) => grammar.error_event(info),
        None => common_event(info),
    }
}

/// Returns the bytes that keep a silent stream alive: a ping of the dialect, else a comment line.
///
/// Insert the bytes at a [`boundary`](crate::stream::StreamReader::boundary), or before the
/// first event. No SDK sees an event in them. The comment is one line without a blank line: a
/// blank line ends an event, and some clients then parse an event without data.
#[must_use]
pub fn keep_alive(dialect: Dialect) -> Bytes {
    match dialect.grammar() {
        Some(grammar) => grammar.keep_alive(),
        None => Bytes::from_static(COMMENT),
    }
}

/// Returns the JSON body of an error response, for an error before any byte of a stream
/// was sent.
#[must_use]
pub fn error_body(dialect: Dialect, info: &ErrorInfo<'_>) -> Bytes {
    match dialect.grammar() {
        Some(grammar) => grammar.error_body(info),
        None => openai_body(info),
    }
}

/// The result of detecting a stream's dialect from one event.
pub(crate) enum Detected {
    /// The event shows this dialect.
    As(Dialect),
    /// The event shows no dialect, and has this kind.
    Undecided(EventKind),
}

/// Detects the dialect of one event, in a stream without a known dialect.
pub(crate) fn detect(event: &Event<'_>) -> Detected {
    let mut kind = None;
    let mut has_choices = false;
    let mut object = None;
    let mut is_error = false;
    let read = Scanner::document(event.data, |json, key| {
        match key {
            b"type" => kind = json.text()?,
            b"choices" => has_choices = json.array(Scanner::skip)?,
            b"object" => object = json.text()?,
            b"error" => is_error = json.is_error()?,
            _ => json.skip()?,
        }
        Ok(())
    });
    if read.is_err() {
        if chat::is_done(event.data) {
            return Detected::As(Dialect::OpenAiChat);
        }
        if let Some(kind) = event.kind_of_unreadable() {
            return Detected::Undecided(kind);
        }
    }
    let kind = &*kind.map_or(Cow::Borrowed(event.name), Text::decoded);
    let is_chunk = |object: Text<'_>| object.is(b"chat.completion.chunk");
    if has_choices || object.is_some_and(is_chunk) {
        Detected::As(Dialect::OpenAiChat)
    } else if let Some(dialect) = by_type(kind) {
        Detected::As(dialect)
    } else if is_heartbeat(kind) || kind.is_empty() && is_empty_object(event.data) {
        Detected::Undecided(EventKind::Life)
    } else if is_error || kind == b"error" {
        Detected::Undecided(EventKind::Error)
    } else {
        Detected::Undecided(EventKind::Progress)
    }
}

fn by_type(kind: &[u8]) -> Option<Dialect> {
    match kind {
        b"message_start" | b"message_delta" | b"message_stop" => Some(Dialect::Anthropic),
        _ if kind.starts_with(b"content_block_") => Some(Dialect::Anthropic),
        _ if kind.starts_with(b"response.") => Some(Dialect::OpenAiResponses),
        _ => None,
    }
}
