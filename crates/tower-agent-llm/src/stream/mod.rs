//! Observes the event streams of LLM APIs: progress, failures, and completeness.
//!
//! A status of 200 does not show that a stream succeeds: it may stall, carry an error,
//! or just end, and the official SDKs take a clean end without the terminator for
//! success. So this module decides which event is a part of the answer, which is only a
//! sign of life, and which is the last one.
//!
//! The module does no I/O and knows no clock. [`Splitter`](crate::sse::Splitter)
//! finds events, a [`Dialect`](crate::dialect::Dialect) gives their meaning, and
//! [`StreamReader`] keeps marks, the byte offsets of the events that matter, so that a layer
//! that holds bytes back knows which of these events the caller has received.
//!
//! # What is judged
//!
//! Each event has one [`EventKind`](crate::sse::EventKind). Content commits an attempt and
//! is progress. Unknown event types are progress. So is data that is not JSON, if it is not blank
//! and has no meaning of its own, such as chat's `[DONE]`. The prelude and signs of life neither
//! commit nor are progress.
//!
//! An event named `error` is an error in every dialect, whatever its data. A key counts only at
//! its place in the dialect's format: an answer that quotes an error is text.
//!
//! # When a stream is complete
//!
//! A stream is complete once its dialect's terminator was read without an error before it; see
//! [`Finish`](crate::dialect::Finish) for streams without one. The last event may lack its
//! blank line: [`StreamReader::end`] reads it at the end of the transport. As long as the dialect of
//! a stream is not known, the stream never counts as truncated.
//!
//! # Cost
//!
//! An event is classified in time linear in its bytes, however it is cut into chunks. The JSON of a
//! content event is mostly not walked if it differs only in its texts from the event before it. For
//! that, the first content events of a stream allocate up to half a kilobyte; most later ones that
//! lie in one chunk as a whole need no allocation.
//!
//! Between chunks at most [`MAX_EVENT`](crate::sse::MAX_EVENT) bytes of an event's data are
//! kept. Of a longer event the reader keeps the short values, which classify it.
//!
//! # Examples
//!
//! ```
//! use tower_agent_llm::{
//!     dialect::{Dialect, Finish, error_event},
//!     sse::ErrorInfo,
//!     stream::StreamReader,
//! };
//!
//! let mut judge = StreamReader::new(Dialect::from_path("/v1/chat/completions"));
//! let seen = judge.push(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel");
//! assert!(!seen.content);
//! let seen = judge.push(b"lo\"}}]}\n\ndata: {\"cho");
//! assert!(seen.content);
//!
//! // The upstream goes silent: the error replaces the received part of the second event.
//! assert_eq!(judge.finish(), Finish::Truncated);
//! assert_eq!(judge.commit(), Some(judge.boundary()));
//! let error = ErrorInfo {
//!     code: "step_timeout",
//!     message: "no progress for 120 s",
//!     run_id: None,
//!     sequence: judge.next_sequence(),
//!     response_id: judge.response_id(),
//! };
//! assert!(error_event(judge.dialect(), &error).starts_with(b"event: error\n"));
//! ```

pub(crate) mod event_shape;
pub(crate) mod generated_text;
pub(crate) mod partial_text;
pub(crate) mod reader;
pub(crate) mod sniffer;
#[cfg(test)]
mod tests;

pub use self::reader::{ChunkSummary, StreamReader};
