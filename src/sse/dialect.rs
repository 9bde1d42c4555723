use std::fmt;

use bytes::Bytes;

use super::{
    ErrorInfo, Event, Finish, StreamState, Verdict, anthropic::Anthropic, chat::OpenAiChat, frame,
    responses::OpenAiResponses,
};

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
    fn judge(&self, event: &Event<'_>, stream: &mut StreamState) -> Verdict;

    /// What a clean end of the transport means after events of which none was a terminator or an
    /// error. By default the stream is truncated.
    fn finish(&self, stream: &StreamState) -> Finish {
        let _ = stream;
        Finish::Truncated
    }

    /// The bytes that end a stream early. By default one frame that the official SDKs of OpenAI and
    /// Anthropic all raise on.
    fn error_event(&self, error: &ErrorInfo<'_>) -> Bytes {
        frame::common_event(error)
    }

    /// The body of an error answer. By default in the shape of OpenAI.
    fn error_body(&self, error: &ErrorInfo<'_>) -> Bytes {
        frame::openai_body(error)
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
