use bytes::Bytes;

use super::{
    deltas::{CALLS, Open, owned, read_event},
    item::{Called, Event, Item},
};
use crate::llm::{json::Scanner, sse::Splitter};

/// The longest answer that is no stream, and is read, in bytes.
const WHOLE: usize = 1024 * 1024;

/// Reads the tool calls of an answer as it passes by. Bounded: it keeps at most
/// 128 calls of 64 KiB of a stream, and one MiB of any other answer, which is
/// shared and not copied.
#[derive(Debug)]
pub(crate) struct Answer {
    mode: Mode,
    calls: Vec<Called>,
}

#[derive(Debug)]
enum Mode {
    Events {
        splitter: Box<Splitter>,
        open: Vec<Open>,
    },
    Whole {
        parts: Vec<Bytes>,
        len: usize,
    },
    Nothing,
}

impl Answer {
    /// A stream of events.
    pub(crate) fn events() -> Self {
        Self::of(Mode::Events {
            splitter: Box::default(),
            open: Vec::new(),
        })
    }

    /// One JSON document.
    pub(crate) const fn document() -> Self {
        let parts = Vec::new();
        Self::of(Mode::Whole { parts, len: 0 })
    }

    /// Not to be read.
    pub(crate) const fn nothing() -> Self {
        Self::of(Mode::Nothing)
    }

    const fn of(mode: Mode) -> Self {
        let calls = Vec::new();
        Self { mode, calls }
    }

    /// The next bytes.
    pub(crate) fn push(&mut self, data: &Bytes) {
        match &mut self.mode {
            Mode::Events { splitter, open } => {
                let calls = &mut self.calls;
                splitter.push(data, |event| read_event(&event, open, calls));
            }
            Mode::Whole { parts, len } => {
                *len += data.len();
                if *len > WHOLE {
                    self.mode = Mode::Nothing;
                } else if !data.is_empty() {
                    parts.push(data.clone());
                }
            }
            Mode::Nothing => {}
        }
    }

    /// The answer is over, or at least said so: the calls that it made, in order.
    pub(crate) fn finish(&mut self) -> Vec<Called> {
        let mut calls = std::mem::take(&mut self.calls);
        match std::mem::replace(&mut self.mode, Mode::Nothing) {
            Mode::Events { open, .. } => {
                calls.extend(open.into_iter().filter_map(Open::close));
            }
            Mode::Whole { parts, .. } => match &parts[..] {
                [whole] => read_document(whole, &mut calls),
                parts => read_document(&parts.concat(), &mut calls),
            },
            Mode::Nothing => {}
        }
        calls.truncate(CALLS);
        calls
    }
}

/// A whole answer of any of the APIs.
fn read_document(body: &[u8], calls: &mut Vec<Called>) {
    let mut on = |event: Event<'_>| owned(event, calls);
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
                Item::read(json)?.tell(&mut on);
                Ok(())
            })
            .map(drop),
        _ => message.member(json, key),
    });
    message.said_by_model(&mut on);
}
