//! What LLM APIs say on the wire: events, dialects, failures, conversations.
//!
//! Nothing here knows a service, a runtime or a run: text goes in, and what it means comes out.

mod conversation;
pub mod dialect;
pub mod failure;
mod json;
mod prompt;
pub mod sse;
pub mod stream;
#[cfg(test)]
mod tests;

pub(crate) use self::{
    conversation::{
        AnswerReader, Called, ConversationEvent, History, HistoryPlace, ToolCall, canonical, digest,
    },
    prompt::Prompt,
};
