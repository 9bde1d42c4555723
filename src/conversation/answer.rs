use bytes::Bytes;
use memchr::memmem;

use super::{
    digest::canonical,
    item::{Event, Item, ToolCall, identify},
};
use crate::sse::{Event as SseEvent, Read, Scanner, Splitter, Text};

/// The longest answer that is no stream, and is read, in bytes.
const WHOLE: usize = 1024 * 1024;

/// The longest arguments that are read from parts, in bytes. A call with longer
/// ones is left to the request that repeats it.
const ARGUMENTS: usize = 64 * 1024;

/// How many calls of one answer are read.
const CALLS: usize = 128;

/// A tool call that an answer made.
pub(crate) type Called = ToolCall<'static>;

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

/// A call that comes in parts.
#[derive(Debug, Default)]
struct Open {
    /// The choice, and the number in it.
    at: (u64, u64),
    id: Option<u64>,
    name: Vec<u8>,
    arguments: Vec<u8>,
    too_long: bool,
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

impl Open {
    fn append(&mut self, id: Option<Text<'_>>, name: Option<Text<'_>>, part: Option<&[u8]>) {
        self.id = identify(id).or(self.id);
        let name = name.filter(|name| !name.is_empty());
        if let Some(name) = name {
            // Said once by most, and again with every part by some.
            self.name = name.decoded().into_owned();
        }
        let Some(part) = part else { return };
        // As text everywhere but where it begins, as an object, with Anthropic.
        let text = Scanner::new(part).text().ok().flatten();
        let part = text.map_or(part.into(), Text::decoded);
        self.too_long |= self.arguments.len() + part.len() > ARGUMENTS;
        if !self.too_long {
            self.arguments.extend_from_slice(&part);
        }
    }

    fn close(self) -> Option<Called> {
        let known = !self.too_long && !self.name.is_empty();
        known.then(|| ToolCall {
            id: self.id,
            name: self.name.into(),
            arguments: canonical(&self.arguments),
        })
    }
}

fn owned(event: Event<'_>, calls: &mut Vec<Called>) {
    if let Event::Call(call) = event {
        if calls.len() < CALLS {
            calls.push(ToolCall {
                name: call.name.into_owned().into(),
                ..call
            });
        }
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

/// Whether an event may speak of tools: most are text, and need not be read.
fn speaks_of_tools(event: &SseEvent<'_>, open: &[Open]) -> bool {
    let says = |words: &[u8]| memmem::find(event.data, words).is_some();
    says(b"tool_")
        || says(b"function_call")
        || !open.is_empty() && (says(b"_json") || says(b"content_block_stop"))
}

/// The parts of an event, of whichever API it is.
#[derive(Default)]
struct Parts<'a> {
    kind: Option<Text<'a>>,
    index: u64,
    choices: Option<&'a [u8]>,
    item: Option<&'a [u8]>,
    block: Option<&'a [u8]>,
    delta: Option<&'a [u8]>,
}

fn read_event(event: &SseEvent<'_>, open: &mut Vec<Open>, calls: &mut Vec<Called>) {
    if !speaks_of_tools(event, open) {
        return;
    }
    let mut parts = Parts::default();
    let read = Scanner::document(event.data, |json, key| {
        match key {
            b"type" => parts.kind = json.text()?,
            b"index" => parts.index = json.integer()?.unwrap_or_default(),
            b"choices" => parts.choices = Some(json.span()?),
            b"item" => parts.item = Some(json.span()?),
            b"content_block" => parts.block = Some(json.span()?),
            b"delta" => parts.delta = Some(json.span()?),
            _ => json.skip()?,
        }
        Ok(())
    });
    if read.is_err() {
        return;
    }
    let at = (0, parts.index);
    let is = |word: &[u8]| parts.kind.is_some_and(|kind| kind.is(word));
    if let Some(choices) = parts.choices {
        let _ = read_choices(choices, open);
    } else if is(b"response.output_item.done") {
        if let Some(item) = read_item(parts.item) {
            item.tell(&mut |event| owned(event, calls));
        }
    } else if is(b"content_block_start") {
        // The input at the start is a place holder, unless nothing follows it.
        if let Some(block) = read_item(parts.block).filter(Item::is_tool_use) {
            let (id, name, input) = block.parts();
            let input = input.filter(|input| canonical(input) != canonical(b"{}"));
            if let Some(call) = opened(open, at) {
                call.append(id, name, input);
            }
        }
    } else if is(b"content_block_delta") {
        let part = parts.delta.and_then(|delta| partial_json(delta).ok()?);
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

fn read_item(span: Option<&[u8]>) -> Option<Item<'_>> {
    Item::read(&mut Scanner::new(span?)).ok()
}

fn partial_json(delta: &[u8]) -> Read<Option<&[u8]>> {
    let mut part = None;
    Scanner::document(delta, |json, key| match key {
        b"partial_json" => json.span().map(|span| part = Some(span)),
        _ => json.skip(),
    })?;
    Ok(part)
}

/// The parts of calls in a chat's chunk.
fn read_choices(choices: &[u8], open: &mut Vec<Open>) -> Read<()> {
    let on_choice = |json: &mut Scanner<'_>| {
        let (mut choice, mut delta) = (0, None);
        json.object(|json, key| {
            match key {
                b"index" => choice = json.integer()?.unwrap_or_default(),
                b"delta" => delta = Some(json.span()?),
                _ => json.skip()?,
            }
            Ok(())
        })?;
        read_delta(choice, delta.unwrap_or(b"{}"), open)
    };
    Scanner::new(choices).array(on_choice).map(drop)
}

fn read_delta(choice: u64, delta: &[u8], open: &mut Vec<Open>) -> Read<()> {
    Scanner::document(delta, |json, key| match key {
        b"tool_calls" => {
            let mut number = 0;
            json.array(|json| {
                let (mut index, mut id, mut function) = (number, None, None);
                json.object(|json, key| {
                    match key {
                        b"index" => index = json.integer()?.unwrap_or(number),
                        b"id" => id = json.text()?,
                        b"function" | b"custom" => function = Some(json.span()?),
                        _ => json.skip()?,
                    }
                    Ok(())
                })?;
                number += 1;
                append(open, (choice, index), id, function)
            })
            .map(drop)
        }
        b"function_call" => {
            let function = json.span()?;
            append(open, (choice, 0), None, Some(function))
        }
        _ => json.skip(),
    })
}

fn append(
    open: &mut Vec<Open>,
    at: (u64, u64),
    id: Option<Text<'_>>,
    function: Option<&[u8]>,
) -> Read<()> {
    let function = function.unwrap_or(b"{}");
    let (_, name, arguments) = Item::read(&mut Scanner::new(function))?.parts();
    if let Some(call) = opened(open, at) {
        call.append(id, name, arguments);
    }
    Ok(())
}

fn opened(open: &mut Vec<Open>, at: (u64, u64)) -> Option<&mut Open> {
    if let Some(place) = open.iter().position(|call| call.at == at) {
        return open.get_mut(place);
    }
    if open.len() >= CALLS {
        return None;
    }
    open.push(Open {
        at,
        ..Open::default()
    });
    open.last_mut()
}
