//! Detects the dialect of a stream from its events.

use std::borrow::Cow;

use super::{chat, grammar::Dialect};
use crate::llm::{
    json::{Scanner, Text},
    sse::{Event, EventKind},
};

/// The result of detecting a stream's dialect from one event.
pub(crate) enum Detected {
    /// The dialect is detected: no other has such an event.
    As(Dialect),
    /// The dialect stays unknown: any may have such an event, which has this kind.
    Undecided(EventKind),
}

/// Detects the dialect of one event, in a stream without a known dialect.
pub(crate) fn detect(event: &Event<'_>) -> Detected {
    let mut kind = None;
    let mut has_choices = false;
    let mut is_chunk = false;
    let mut is_error = false;
    let read = Scanner::document(event.data, |json, key| {
        match key {
            b"type" => kind = json.text()?,
            b"choices" => has_choices = json.array(Scanner::skip)?,
            b"object" => {
                is_chunk = json
                    .text()?
                    .is_some_and(|text| text.is(b"chat.completion.chunk"));
            }
            b"error" => is_error = json.is_error()?,
            _ => json.skip()?,
        }
        Ok(())
    });
    if read.is_err() {
        return if chat::is_done(event.data) {
            Detected::As(Dialect::OpenAiChat)
        } else if !event.is_blank() {
            Detected::Undecided(EventKind::Progress)
        } else if event.name.is_empty() && !event.oversized {
            Detected::Undecided(EventKind::Life)
        } else {
            by_type(event.name).map_or(Detected::Undecided(EventKind::Progress), Detected::As)
        };
    }
    let kind = &*kind.map_or(Cow::Borrowed(event.name), Text::decoded);
    if has_choices || is_chunk {
        Detected::As(Dialect::OpenAiChat)
    } else if let Some(dialect) = by_type(kind) {
        Detected::As(dialect)
    } else if is_error || kind == b"error" {
        Detected::Undecided(EventKind::Error)
    } else {
        Detected::Undecided(EventKind::Progress)
    }
}

fn by_type(kind: &[u8]) -> Option<Dialect> {
    match kind {
        b"message_start" | b"message_delta" | b"message_stop" | b"ping" => Some(Dialect::Anthropic),
        _ if kind.starts_with(b"content_block_") => Some(Dialect::Anthropic),
        _ if kind.starts_with(b"response.") => Some(Dialect::OpenAiResponses),
        _ => None,
    }
}
