//! The wire formats of LLM APIs: events, dialects, failures, conversations.
//!
//! The module depends on no service, no runtime and no run: it only reads and writes bytes.

mod content_type;
mod conversation;
pub mod dialect;
pub mod failure;
mod form_fields;
mod json_condenser;
mod json_outline;
mod json_scanner;
mod json_validator;
mod prompt_tokens;
mod request_fields;
pub mod sse;
pub mod stream;
#[cfg(test)]
mod tests;
mod text_channel;
mod volatile_values;
mod volatile_words;

use std::sync::Arc;

#[cfg(feature = "config")]
pub(crate) use self::json_scanner::{Malformed, Scan, Scanner};
pub(crate) use self::{
    content_type::{is_plain, names_events, names_json},
    conversation::{
        AnswerReader, Called, ConversationEvent, History, HistoryPlace, SenderIdentity, ToolCall,
        canonical, digest, result, texts,
    },
    form_fields::{FormFields, is_form},
    json_condenser::JsonCondenser,
    json_outline::{JsonOutline, is_broken_json},
    prompt_tokens::prompt_tokens,
    request_fields::{Following, RequestFields, insert_model, names_stream},
    volatile_values::{command_header, is_volatile_key, is_volatile_value, volatile_name},
    volatile_words::{PIECE, ShortNumbers, normalise},
};

/// Returns the first `most` bytes of `text`, in whole characters.
///
/// The result is `None` if `most` is 0 or `text` is empty.
pub(crate) fn excerpt(text: &[u8], most: usize) -> Option<Arc<str>> {
    if most == 0 || text.is_empty() {
        return None;
    }
    Some(cut(&String::from_utf8_lossy(text), most).into())
}

/// Returns the longest prefix of `text` of at most `most` bytes, in whole characters.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
