//! Reads the tool calls of an answer, whole or sent in parts by a stream.

use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::{self, Finder};

use super::item::{Called, ConversationEvent, Item, ToolCall, canonical, identify};
use crate::{
    json_key::may_have_key,
    json_scanner::{Scan, Scanner, Text},
    sse::{Event as SseEvent, Splitter},
    stream::reader::is_whole_data,
};

/// The longest answer, other than a stream, that is read for tool calls, in bytes.
///
/// If an answer that is not a stream is longer, none of its calls is read.
const WHOLE: usize = 1024 * 1024;

/// Reads the tool calls of an answer while its bytes pass.
///
/// Memory is bounded: of a stream the reader keeps at most 1 MiB of an event and 128 open calls of
/// 64 KiB each; of any other answer, frames of up to 1 MiB, which are shared until the end. Calls
/// with a part in a longer event are ignored.
#[derive(Debug)]
pub struct AnswerReader {
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
    #[must_use]
    pub fn events() -> Self {
        Self::of(AnswerMode::Events {
            splitter: Box::default(),
            open: Vec::new(),
        })
    }

    /// Creates a reader for an answer that is one JSON document.
    #[must_use]
    pub const fn document() -> Self {
        let parts = Vec::new();
        Self::of(AnswerMode::Whole { parts, len: 0 })
    }

    /// Creates a reader that ignores the answer.
    #[must_use]
    pub const fn nothing() -> Self {
        Self::of(AnswerMode::Nothing)
    }

    const fn of(mode: AnswerMode) -> Self {
        let calls = Vec::new();
        Self { mode, calls }
    }

    /// Reads the next bytes of the answer.
    pub fn push(&mut self, data: &Bytes) {
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

    /// Ends the reading, and returns at most [`CALLS`] tool calls of the answer.
    ///
    /// Call this method only at the end of the answer, or behind its terminator.
    pub fn finish(&mut self) -> Vec<Called> {
        let mut calls = std::mem::take(&mut self.calls);
        match std::mem::replace(&mut self.mode, AnswerMode::Nothing) {
            AnswerMode::Events {
                mut splitter,
                mut open,
            } => {
                splitter.finish(is_whole_data, |event| {
                    read_event(&event, &mut open, &mut calls);
                });
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

static NAME_KEY: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"name\""));

/// Adds the tool calls of a complete JSON answer, of any API, to `calls`.
///
/// Each call names its tool: an answer without such a key is not parsed.
fn read_document(body: &[u8], calls: &mut Vec<Called>) {
    if !may_have_key(body, &[&NAME_KEY]) {
        return;
    }
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

/// The most tool calls that are read from one answer; further ones are ignored.
pub(super) const CALLS: usize = 128;

/// The longest arguments of a tool call that are joined from parts, in bytes.
///
/// A streamed call with longer arguments is ignored here. If the run's next request repeats the
/// call, it is read from there.
const ARGUMENTS: usize = 64 * 1024;

/// The longest name of a tool, in bytes; the APIs allow 64 or 128.
///
/// A longer name that comes in a part is cut; a whole call with a longer name is ignored.
const NAME: usize = 1024;

/// A streamed tool call of which more parts may follow.
#[derive(Debug, Default)]
pub(super) struct OpenCall {
    /// The index of the answer's choice, and of the tool call in that choice. For Anthropic's
    /// API, 0 and the index of the content block.
    at: (u64, u64),
    id: Option<u64>,
    name: Vec<u8>,
    arguments: Vec<u8>,
    too_long: bool,
}

impl OpenCall {
    fn append(&mut self, id: Option<Text<'_>>, name: Option<Text<'_>>, part: Option<&[u8]>) {
        self.id = identify(id).or(self.id);
        let name = name.filter(|name| !name.is_empty());
        if let Some(name) = name {
            // Most APIs send a call's name once, some with every part, so a name replaces
            // the earlier one.
            self.name = name.decoded().into_owned();
            self.name.truncate(NAME);
        }
        let Some(part) = part else { return };
        // A part of the arguments is a JSON string, but Anthropic's first part is an object.
        let part = Text::of(part).map_or(part.into(), Text::decoded);
        self.too_long |= self.arguments.len() + part.len() > ARGUMENTS;
        if !self.too_long {
            self.arguments.extend_from_slice(&part);
        }
    }

    pub(super) fn close(self) -> Option<Called> {
        let known = !self.too_long && !self.name.is_empty();
        known.then(|| ToolCall {
            id: self.id,
            name: self.name.into(),
            arguments: canonical(&self.arguments),
            written: b"",
        })
    }
}

/// Adds the tool call of an event, if it is one, to `calls`, up to the limits.
pub(super) fn push_call(event: ConversationEvent<'_>, calls: &mut Vec<Called>) {
    if let ConversationEvent::Call(call) = event {
        if calls.len() < CALLS && call.name.len() <= NAME {
            calls.push(ToolCall {
                id: call.id,
                name: call.name.into_owned().into(),
                arguments: call.arguments,
                written: b"",
            });
        }
    }
}

/// Searchers for words in events with a part of a tool call; built once, not for each event.
static TOOL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"tool_"));
static FUNCTION_CALL: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"function_call"));

/// Whether an event may contain a part of a tool call, by a search for a few words.
///
/// Most events are text, and need not be parsed.
fn speaks_of_tools(event: &SseEvent<'_>, open: &[OpenCall]) -> bool {
    let says = |words: &[u8]| memmem::find(event.data, words).is_some();
    TOOL.find(event.data).is_some()
        || FUNCTION_CALL.find(event.data).is_some()
        || !open.is_empty() && (says(b"_json") || says(b"content_block_stop"))
}

pub(super) fn read_event(event: &SseEvent<'_>, open: &mut Vec<OpenCall>, calls: &mut Vec<Called>) {
    if event.is_bare() {
        return;
    }
    if event.oversized {
        // The event lacks the bulk of its arguments, of whichever call.
        open.iter_mut().for_each(|call| call.too_long = true);
        return;
    }
    if !speaks_of_tools(event, open) {
        return;
    }
    // The keys by which the APIs stream tool calls.
    let keys: [&[u8]; 6] = [
        b"type",
        b"index",
        b"choices",
        b"item",
        b"content_block",
        b"delta",
    ];
    let Ok([kind, index, choices, item, block, delta]) = Scanner::members(event.data, keys) else {
        return;
    };
    let at = (0, index.and_then(number).unwrap_or_default());
    let kind = kind.and_then(Text::of);
    let is = |word: &[u8]| kind.is_some_and(|kind| kind.is(word));
    if let Some(choices) = choices {
        let _ = read_choices(choices, open);
    } else if is(b"response.output_item.done") {
        if let Some(item) = Item::of(item) {
            item.report(&mut |event| push_call(event, calls));
        }
    } else if is(b"content_block_start") {
        // The start of a block has an empty object as a placeholder for the input, which is
        // dropped.
        if let Some(block) = Item::of(block).filter(Item::is_tool_use) {
            let is_filled = |input: &&[u8]| canonical(input) != canonical(b"{}");
            if let Some(call) = find_or_open(open, at) {
                call.append(block.id, block.name, block.arguments.filter(is_filled));
            }
        }
    } else if is(b"content_block_delta") {
        let part = delta.and_then(|delta| Scanner::members(delta, [b"partial_json"]).ok()?[0]);
        if let Some(call) = open.iter_mut().find(|call| call.at == at) {
            call.append(None, None, part);
        }
    } else if is(b"content_block_stop") {
        if let Some(place) = open.iter().position(|call| call.at == at) {
            let closed = open.remove(place).close();
            if let Some(call) = closed.filter(|_| calls.len() < CALLS) {
                calls.push(call);
            }
        }
    }
}

fn number(span: &[u8]) -> Option<u64> {
    Scanner::new(span).integer().ok()?
}

/// Adds the parts of tool calls in a chat chunk's `choices` to the open calls.
fn read_choices(choices: &[u8], open: &mut Vec<OpenCall>) -> Scan<()> {
    let on_choice = |json: &mut Scanner<'_>| {
        let [index, delta] = Scanner::members(json.span()?, [b"index", b"delta"])?;
        let choice = index.and_then(number).unwrap_or_default();
        read_delta(choice, delta.unwrap_or(b"{}"), open)
    };
    Scanner::new(choices).array(on_choice).map(drop)
}

fn read_delta(choice: u64, delta: &[u8], open: &mut Vec<OpenCall>) -> Scan<()> {
    let [calls, function_call] = Scanner::members(delta, [b"tool_calls", b"function_call"])?;
    let mut position = 0;
    Scanner::new(calls.unwrap_or(b"[]")).array(|json| {
        let keys: [&[u8]; 4] = [b"index", b"id", b"function", b"custom"];
        let [index, id, function, custom] = Scanner::members(json.span()?, keys)?;
        let index = index.and_then(number).unwrap_or(position);
        position += 1;
        let id = id.and_then(Text::of);
        append(open, (choice, index), id, function.or(custom))
    })?;
    match function_call {
        Some(function) => append(open, (choice, 0), None, Some(function)),
        None => Ok(()),
    }
}

fn append(
    open: &mut Vec<OpenCall>,
    at: (u64, u64),
    id: Option<Text<'_>>,
    function: Option<&[u8]>,
) -> Scan<()> {
    let function = Item::read(&mut Scanner::new(function.unwrap_or(b"{}")))?;
    if let Some(call) = find_or_open(open, at) {
        call.append(id, function.name, function.arguments);
    }
    Ok(())
}

fn find_or_open(open: &mut Vec<OpenCall>, at: (u64, u64)) -> Option<&mut OpenCall> {
    if let Some(place) = open.iter().position(|call| call.at == at) {
        return open.get_mut(place);
    }
    if open.len() >= CALLS {
        return None;
    }
    open.push(OpenCall {
        at,
        ..OpenCall::default()
    });
    open.last_mut()
}
