use bytes::Bytes;

use super::{
    deltas::{CALLS, OpenCall, push_call, read_event},
    item::{Called, ConversationEvent, Item},
};
use crate::llm::{json::Scanner, sse::Splitter};

/// The longest answer, other than a stream, that is read for tool calls, in bytes.
const WHOLE: usize = 1024 * 1024;

/// The observer of an answer, which reads the answer's tool calls.
///
/// Memory is bounded: of a stream the reader keeps at most 128 calls of 64 KiB, and of
/// any other answer one MiB, which is shared and not copied.
#[derive(Debug)]
pub(crate) struct AnswerReader {
    mode: AnswerMode,
    calls: Vec<Called>,
}

#[derive(Debug)]
enum AnswerMode {
    Events {
        splitter: Box<Splitter>,
        open: Vec<OpenCall>,
    },
    Whole {
        parts: Vec<Bytes>,
        len: usize,
    },
    Nothing,
}

impl AnswerReader {
    /// Creates a reader for an answer that is an event stream.
    pub(crate) fn events() -> Self {
        Self::of(AnswerMode::Events {
            splitter: Box::default(),
            open: Vec::new(),
        })
    }

    /// Creates a reader for an answer that is one JSON document.
    pub(crate) const fn document() -> Self {
        let parts = Vec::new();
        Self::of(AnswerMode::Whole { parts, len: 0 })
    }

    /// Creates a reader that ignores the answer.
    pub(crate) const fn nothing() -> Self {
        Self::of(AnswerMode::Nothing)
    }

    const fn of(mode: AnswerMode) -> Self {
        let calls = Vec::new();
        Self { mode, calls }
    }

    /// Reads the next bytes of the answer.
    pub(crate) fn push(&mut self, data: &Bytes) {
        match &mut self.mode {
            AnswerMode::Events { splitter, open } => {
                let calls = &mut self.calls;
                splitter.push(data, |event| read_event(&event, open, calls));
            }
            AnswerMode::Whole { parts, len } => {
                *len += data.len();
                if *len > WHOLE {
                    self.mode = AnswerMode::Nothing;
                } else if !data.is_empty() {
                    parts.push(data.clone());
                }
            }
            AnswerMode::Nothing => {}
        }
    }

    /// Ends the reading, and returns the answer's tool calls in order.
    ///
    /// The caller of this method has seen the answer's end, or its terminator.
    pub(crate) fn finish(&mut self) -> Vec<Called> {
        let mut calls = std::mem::take(&mut self.calls);
        match std::mem::replace(&mut self.mode, AnswerMode::Nothing) {
            AnswerMode::Events { open, .. } => {
                calls.extend(open.into_iter().filter_map(OpenCall::close));
            }
            AnswerMode::Whole { parts, .. } => match &parts[..] {
                [whole] => read_document(whole, &mut calls),
                parts => read_document(&parts.concat(), &mut calls),
            },
            AnswerMode::Nothing => {}
        }
        calls.truncate(CALLS);
        calls
    }
}

/// Adds the tool calls of a complete answer, of any API, to `calls`.
fn read_document(body: &[u8], calls: &mut Vec<Called>) {
    let mut on = |event: ConversationEvent<'_>| push_call(event, calls);
    let mut message = Item::default();
    let _ = Scanner::document(body, |json, key| match key {
        b"choices" => json
            .array(|json| {
                json.object(|json, key| match key {
                    b"message" => {
                        Item::read(json)?.said_by_model(&mut on);
                        Ok(())
                    }
                    _ => json.skip(),
                })
                .map(drop)
            })
            .map(drop),
        b"output" => json
            .array(|json| {
                Item::read(json)?.report(&mut on);
                Ok(())
            })
            .map(drop),
        _ => message.member(json, key),
    });
    message.said_by_model(&mut on);
}
