use std::fmt;

use bytes::Bytes;

use super::{
    anthropic::Anthropic, chat::OpenAiChat, responses::OpenAiResponses, state::StreamState,
};
use crate::llm::sse::{ErrorInfo, Event, EventVerdict, common_event, openai_body};

/// The event format of a stream, named for its API.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default)]
pub enum Dialect {
    /// The dialect is not known yet: the first event that only one dialect has decides
    /// it.
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

/// The reader of one API's events and writer of its errors; implement it for other APIs.
///
/// A grammar has no state of its own; it keeps the state of a stream in [`StreamState`].
pub trait Grammar: fmt::Debug + Send + Sync {
    /// A short name of the API for messages. Dialects of the same name count as the same.
    fn name(&self) -> &'static str;

    /// Judges the meaning of one event of a stream.
    ///
    /// The stream's reader judges each event once, in order, but not events named
    /// `error`, which are failures in every dialect. A failure that the grammar itself
    /// detects should go to [`StreamState::report_failure`]; else the event's data is
    /// read for the known shapes.
    ///
    /// An [`oversized`](Event::oversized) event has only its name, and no data.
    fn judge(&self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict;

    /// Judges a clean end of the transport without a terminator and without an error
    /// event.
    ///
    /// By default such a stream is truncated.
    fn finish(&self, stream: &StreamState) -> Finish {
        let _ = stream;
        Finish::Truncated
    }

    /// Returns the error event, as bytes, that ends a stream early.
    ///
    /// By default the event is one frame that the official SDKs of OpenAI and Anthropic
    /// all raise.
    fn error_event(&self, error: &ErrorInfo<'_>) -> Bytes {
        common_event(error)
    }

    /// Returns the body of an error response, by default in OpenAI's format.
    fn error_body(&self, error: &ErrorInfo<'_>) -> Bytes {
        openai_body(error)
    }
}

impl Dialect {
    /// Returns the dialect of a request, by the last segments of its path.
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
}

impl PartialEq for Dialect {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Dialect {}

/// Returns the error event, as bytes, that ends a stream early.
///
/// Append the bytes at a [`boundary`](crate::llm::stream::StreamReader::boundary) as the
/// last ones of the body, without a terminator.
///
/// The bytes hold one frame that makes the official SDKs of OpenAI and Anthropic raise an
/// error. In the Responses dialect a `response.failed` event comes before the frame, if
/// the answer's id is known, and takes `sequence`; the frame has the next number.
/// OpenAI's SDKs compare the ids: with the id of another answer they would raise a
/// mismatch, and not the reason.
#[must_use]
pub fn error_event(dialect: Dialect, info: &ErrorInfo<'_>) -> Bytes {
    match dialect.grammar() {
        Some(grammar) => grammar.error_event(info),
        None => common_event(info),
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

/// The completeness of a stream whose transport has ended cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The stream is complete: it had its terminator.
    Complete,
    /// The stream had no terminator, but the answer in it is complete.
    ///
    /// A chat answer is complete if every choice has finished, and none with an error.
    Finished,
    /// The stream failed: the upstream reported an error before any terminator.
    Failed,
    /// The stream is truncated: the terminator of its dialect is missing.
    Truncated,
    /// The stream's completeness is unknown: its dialect, and so its terminator, is not
    /// known.
    Unknown,
}
