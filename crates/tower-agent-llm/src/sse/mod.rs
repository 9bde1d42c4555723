//! Server-sent events: a splitter of bytes into events, and error events.

pub(crate) mod error_event;
pub(crate) mod event;
pub(crate) mod heartbeat;
pub(crate) mod splitter;

pub use self::{
    error_event::ErrorInfo,
    event::{DONE, Event, EventKind, EventVerdict, MAX_EVENT},
    splitter::Splitter,
};

pub(crate) use self::{
    error_event::{anthropic_body, common_event, openai_body, responses_event},
    event::{COMMENT, PING},
    heartbeat::{is_empty_object, is_heartbeat},
};
