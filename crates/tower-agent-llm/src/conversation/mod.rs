//! Reads tool calls and their results from requests and answers.
//!
//! An agent's request usually carries the whole conversation, and so each tool call of the
//! agent, in the format of OpenAI's chat, of OpenAI's Responses or of Anthropic's messages.
//! No key has different meanings in these formats, so one reader serves them all.
//!
//! The module does no I/O. The input is not trusted: a body that is not JSON, or of an unknown
//! shape, causes no error.
//!
//! # Cost
//!
//! A reader may get the [`HistoryPlace`]s of an earlier request. It then begins behind the last of
//! them at which the request still has the same message, so mostly only the new part of a
//! conversation costs time. The messages before that place are not compared.

pub(crate) mod history;
pub(crate) mod item;
pub(crate) mod response;
pub(crate) mod sender_identity;
#[cfg(test)]
mod tests;
