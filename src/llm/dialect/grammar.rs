//! What the reader of an API's events implements, and how it judges the end of a stream.

use std::fmt;

use bytes::Bytes;

use super::state::StreamState;
use crate::llm::sse::{ErrorInfo, Event, EventVerdict, common_event, openai_body};

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
