//! The event formats of each API, and the error events for its clients.

mod anthropic;
mod chat;
mod detect;
mod grammar;
mod responses;
mod state;
mod stream_failure;

pub use self::{
    grammar::{Dialect, Finish, Grammar, error_body, error_event},
    state::{StreamState, Usage},
    stream_failure::{StreamFailure, Truncated},
};

pub(crate) use self::{
    anthropic::Anthropic,
    chat::OpenAiChat,
    detect::{Detected, detect},
    responses::OpenAiResponses,
    stream_failure::error_in,
};
