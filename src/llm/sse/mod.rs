//! Server-sent events: a splitter of bytes into events, and error events.

mod event;
mod splitter;

pub use self::{
    event::{DONE, ErrorInfo, Event, EventKind, EventVerdict, MAX_EVENT},
    splitter::Splitter,
};

pub(crate) use self::event::{anthropic_body, common_event, openai_body, responses_event};
