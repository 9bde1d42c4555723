use std::fmt;

use bytes::Bytes;

use super::{
    anthropic::Anthropic, chat::OpenAiChat, responses::OpenAiResponses, state::StreamState,
};
use crate::llm::sse::{ErrorInfo, Event, EventVerdict, common_event, openai_body};

/// Which API's events a stream carries.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default)]
pub enum Dialect {
    /// Not known yet: the first event that only one dialect has decides.
    #[default]
    Any,
    /// OpenAI's `chat/completions`, and what imitates it.
    OpenAiChat,
    /// OpenAI's `responses`.
    OpenAiResponses,
    /// Anthropic's `messages`.
    Anthropic,
    /// Another API.
    Custom(&'static dyn Grammar),
}

/// How one API's events are read, and how it is told of an error: the seam for further dialects.
///
/// A grammar has no state; what it must remember of a stream it keeps in [`StreamState`].
pub trait Grammar: fmt::Debug + Send + Sync {
    /// A short name for messages. Dialects of the same name count as the same.
    fn name(&self) -> &'static str;

    /// Judges one event. Called once per event, in order, but not for one that is named `error`,
    /// which is a failure in every dialect. A failure that the grammar itself finds should be given
    /// to [`StreamState::report_failure`]; else the event's data is read for the known shapes.
    ///
    /// An event that is [`oversized`](Event::oversized) has only its name.
    fn judge(&self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict;

    /// What a clean end of the transport means after events of which none was a terminator or an
    /// error. By default the stream is truncated.
    fn finish(&self, stream: &StreamState) -> Finish {
        let _ = stream;
        Finish::Truncated
    }

    /// The bytes that end a stream early. By default one frame that the official SDKs of OpenAI and
    /// Anthropic all raise on.
    fn error_event(&self, error: &ErrorInfo<'_>) -> Bytes {
        common_event(error)
    }

    /// The body of an error answer. By default in the shape of OpenAI.
    fn error_body(&self, error: &ErrorInfo<'_>) -> Bytes {
        openai_body(error)
    }
}

impl Dialect {
    /// The dialect of an operation, by the last segments of the request's path.
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

    /// A short name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.grammar().map_or("any", Grammar::name)
    }

    /// How its events are read, if it is known.
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

/// The bytes that end a stream early, to be put at a [`boundary`](crate::llm::stream::StreamReader::boundary) as the
/// last of the body, without a terminator.
///
/// One frame makes the official SDKs of OpenAI and Anthropic raise an error. In the Responses
/// dialect a `response.failed` event comes first, if the answer's id is known, and takes `sequence`;
/// the frame has the next. OpenAI's SDKs compare the ids: one of another answer would make them
/// raise that, and not the reason.
#[must_use]
pub fn error_event(dialect: Dialect, info: &ErrorInfo<'_>) -> Bytes {
    match dialect.grammar() {
        Some(grammar) => grammar.error_event(info),
        None => common_event(info),
    }
}

/// The JSON body that answers a request before any of its stream was sent.
#[must_use]
pub fn error_body(dialect: Dialect, info: &ErrorInfo<'_>) -> Bytes {
    match dialect.grammar() {
        Some(grammar) => grammar.error_body(info),
        None => openai_body(info),
    }
}

/// What it means that the transport ended cleanly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The terminator was seen.
    Complete,
    /// All of the answer was seen but not the terminator: in chat, every choice has finished and
    /// none with an error.
    Finished,
    /// Upstream reported an error before any terminator.
    Failed,
    /// The dialect's terminator is missing.
    Truncated,
    /// The dialect is not known, so neither is its terminator.
    Unknown,
}
