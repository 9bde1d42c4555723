//! What requests and answers say of tools: which were called with what, and what
//! came of it.
//!
//! An agent's request carries the whole conversation, so all that its run did
//! can be read from it, in the words of OpenAI's chat and Responses and of
//! Anthropic's messages. The three share no key with another meaning, so one
//! reader serves them all.
//!
//! Nothing here does I/O. What it reads comes from anybody: a body that is not
//! JSON, or of no known shape, holds nothing to read and is no error.
//!
//! # Cost
//!
//! A request is walked from the [`HistoryPlace`] where the last one ended, if the bytes
//! before it are still the same, so that a conversation costs what is new in it.

mod deltas;
mod digest;
mod item;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    digest::{canonical, digest},
    item::{Called, ConversationEvent, ToolCall},
    request::{History, HistoryPlace},
    response::AnswerReader,
};
