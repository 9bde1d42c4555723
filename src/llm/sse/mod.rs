//! Server-sent events: a splitter of bytes into events, and error events.

mod error_event;
mod event;
mod pending_event;
mod splitter;

pub(crate) use self::error_event::{anthropic_body, common_event, openai_body, responses_event};
pub use self::{
    error_event::{DONE, ErrorInfo},
    event::{Event, EventKind, EventVerdict, MAX_EVENT},
    splitter::Splitter,
};
