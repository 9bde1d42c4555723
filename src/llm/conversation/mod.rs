//! Reads tool calls and their results from requests and answers.
//!
//! An agent's request usually carries the whole conversation, and so each tool call of the
//! agent, in the format of OpenAI's chat, of OpenAI's Responses or of Anthropic's messages.
//! No key has different meanings in these formats, so one reader serves them all.
//!
//! The module does no I/O. The input is not trusted: a body that is not JSON, or of
//! unknown shape, yields no events and no error.
//!
//! # Cost
//!
//! The reader walks a request from the last [`HistoryPlace`] with a message of the same bytes as in
//! an earlier request, so that only the new part of a conversation costs time. The reader does not
//! compare the messages before that place.

mod item;
mod request;
mod response;
mod sender_identity;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    item::{Called, ConversationEvent, ToolCall, canonical, digest, result},
    request::{History, HistoryPlace},
    response::AnswerReader,
    sender_identity::{SenderIdentity, texts},
};
