//! Server-sent events: a splitter of bytes into events, and error events.

mod error_event;
mod event;
mod heartbeat;
mod splitter;

pub use self::{
    error_event::ErrorInfo,
    event::{DONE, Event, EventKind, EventVerdict, MAX_EVENT},
    splitter::Splitter,
};

pub(crate) use self::{
    error_event::{anthropic_body, common_event, openai_body, responses_event},
    event::{COMMENT, MESSAGE_STOP, PING},
    heartbeat::{is_empty_object, is_heartbeat},
};
