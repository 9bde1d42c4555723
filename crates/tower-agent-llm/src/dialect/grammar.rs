//! The trait that reads an API's events and writes its errors, and how complete a stream is.

use std::fmt;

use bytes::Bytes;

use super::stream_state::StreamState;
use crate::sse::{COMMENT, ErrorInfo, Event, EventVerdict, common_event, openai_body};

/// Reads one API's events, and writes its errors; implement it for APIs without a dialect here.
///
/// A grammar serves all streams at once. So it keeps the state of each in a [`StreamState`].
pub trait Grammar: fmt::Debug + Send + Sync {
    /// A short name of the API for messages. Two dialects with the same name are equal.
    fn name(&self) -> &'static str;

    /// Classifies one event of a stream.
    ///
    /// The stream's reader calls this method of a [custom](super::Dialect::Custom) grammar for each
    /// event, once and in order. It does not for events named `error`, which are failures in every
    /// dialect, nor for JSON without a field and for what follows an error. A grammar that returns [`EventKind::Error`](crate::sse::EventKind::Error)
    /// should pass the failure to [`StreamState::report_failure`]; if it does not, the reader looks
    /// for known error formats in the event's data.
    ///
    /// An [`oversized`](Event::oversized) event has only the shorter values of its data.
    fn judge(&self, event: &Event<'_>, stream: &mut StreamState) -> EventVerdict;

    /// Decides whether a stream is complete that ended cleanly without a terminator or error
    /// event.
    ///
    /// By default a stream without a terminator is [`Finish::Truncated`].
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

    /// Returns the bytes that keep a silent stream alive, between two events or before the first.
    ///
    /// By default they are a comment line. An API with a ping of its own may send that.
    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(COMMENT)
    }

    /// Returns the body of an error response, by default in OpenAI's format.
    fn error_body(&self, error: &ErrorInfo<'_>) -> Bytes {
        openai_body(error)
    }
}

/// The completeness of a stream after a clean end of its transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finish {
    /// The stream is complete: it had its terminator.
    Complete,
    /// The stream had no terminator, but its answer is complete.
    ///
    /// A chat answer is complete if every choice has finished, and none with an error; an answer of
    /// Anthropic's API if it has a stop reason.
    Finished,
    /// The stream failed: the upstream reported an error before any terminator.
    Failed,
    /// The stream is truncated: the terminator of its dialect is missing.
    Truncated,
    /// The stream's completeness is unknown: its dialect, and so its terminator, is not
    /// known. An error event in it is known all the same.
    Unknown,
}
