//! What LLM APIs send, and what it means for a retry.
//!
//! - [`failure`] classifies answers and errors: why a call failed, whether to repeat it, and whom to
//!   ask instead.
//! - [`stream`] reads an event stream: progress, usage, errors, and whether it ended as a whole.
//! - [`dialect`] knows the formats of the APIs, and writes errors that their SDKs raise.
//! - [`sse`] splits the bytes of a stream into events.
//!
//! The crate reads and writes bytes. It does no I/O, and knows no clock and no runtime.
//! [tower-agent](https://docs.rs/tower-agent) has the Tower layers that act on what it finds.
//!
//! # Examples
//!
//! ```
//! use tower_agent_llm::{dialect::{Dialect, Finish}, stream::StreamReader};
//!
//! let mut stream = StreamReader::new(Dialect::Anthropic);
//! stream.push(b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
//! stream.push(b"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n");
//! assert_eq!(stream.finish(), Finish::Failed);
//! assert_eq!(stream.failure().unwrap().kind, "overloaded_error");
//! assert_eq!(stream.commit(), None, "nothing of the answer was sent");
//! ```
//!
//! Each module has further examples.

mod content_type;
mod conversation;
pub mod dialect;
pub mod error;
pub mod failure;
mod form_fields;
mod json_condenser;
mod json_key;
mod json_outline;
mod json_scanner;
mod json_validator;
mod prompt_tokens;
mod request_fields;
pub mod sse;
pub mod stream;
#[cfg(test)]
mod tests;
mod text;
mod text_channel;
mod volatile_values;
mod volatile_words;

/// Compiles the example of the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct LlmReadme;

pub(crate) use self::internal::*;

/// What the layers of `tower-agent` use beside the public API; it changes without notice.
#[doc(hidden)]
pub mod internal {
    pub use crate::{
        content_type::{is_plain, names_events, names_json},
        conversation::{
            history::{History, HistoryPlace},
            item::{Called, ConversationEvent, ToolCall, canonical, digest, result},
            response::AnswerReader,
            sender_identity::{SenderIdentity, texts},
        },
        dialect::{gen_ai_operation::GenAiOperation, whole_answer::WholeAnswer},
        error::chain,
        failure::{
            empty_answer::{is_empty, is_suspect, may_be_empty},
            error_body::{stated_code, unframed},
            errors::{NotAStream, seconds},
            evidence::FIELDS,
            judgment::Rest,
            signals::phrases,
        },
        form_fields::{FormFields, is_form},
        json_condenser::JsonCondenser,
        json_outline::{JsonOutline, is_broken_json},
        json_scanner::{Malformed, Scan, Scanner, Text},
        prompt_tokens::prompt_tokens,
        request_fields::{AfterFinish, RequestFields, insert_model, names_stream},
        sse::event::{DONE, MESSAGE_STOP},
        stream::{
            generated_text::{BYTES_PER_TOKEN, GeneratedText, estimated_tokens},
            partial_text::Partial,
            reader::is_whole_data,
            sniffer::StreamSniffer,
        },
        text::{cut, excerpt},
        volatile_values::{command_header, is_volatile_key, is_volatile_value, volatile_name},
        volatile_words::{PIECE, ShortNumbers, normalize},
    };
}
