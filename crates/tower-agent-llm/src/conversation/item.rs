//! The items of a conversation: tool calls and their results, and the digests that compare
//! them.

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use crate::{
    ShortNumbers, command_header, excerpt, is_volatile_key, is_volatile_value,
    json_scanner::{Scan, Scanner, Text},
    normalize, volatile_name,
};

/// One event of a conversation.
#[derive(Debug, PartialEq, Eq)]
pub enum ConversationEvent<'a> {
    /// The event that the model called a tool.
    Call(ToolCall<'a>),
    /// The event that the caller sent the result of a tool call.
    Result {
        /// The digest of the id of the tool call that the result belongs to.
        ///
        /// `None` if the result has no such id, or an empty one.
        id: Option<u64>,
        /// The result as written: see [`result`].
        result: &'a [u8],
    },
    /// The event that the user sent a message that contains no result of a tool.
    Said,
    /// The event that the model sent a message without a tool call: the model's turn is over.
    Answered,
}

/// A tool call, with digests of its id and of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall<'a> {
    /// The digest of the call's id; `None` for a call without one.
    pub id: Option<u64>,
    /// The name of the tool.
    pub name: Cow<'a, [u8]>,
    /// The digest of the arguments, equal for equal arguments: see [`canonical`].
    pub arguments: u64,
    /// The arguments as the history has them; empty for a call from an answer.
    pub written: &'a [u8],
}

/// A tool call that owns its name, so that it outlives the bytes of the answer.
pub type Called = ToolCall<'static>;

/// The values of some keys of a message, of a block in a message, or of a Responses item.
///
/// The keys are those that identify the item's kind and describe a tool call.
#[derive(Debug, Default)]
pub(super) struct Item<'a> {
    kind: Option<Text<'a>>,
    role: Option<Text<'a>>,
    pub(super) id: Option<Text<'a>>,
    call_id: Option<Text<'a>>,
    tool_call_id: Option<Text<'a>>,
    tool_use_id: Option<Text<'a>>,
    pub(super) name: Option<Text<'a>>,
    content: Option<&'a [u8]>,
    text: Option<&'a [u8]>,
    tool_calls: Option<&'a [u8]>,
    /// The function that a chat's tool call names; in a message of the older API, its one call.
    pub(super) function: Option<&'a [u8]>,
    pub(super) arguments: Option<&'a [u8]>,
    output: Option<&'a [u8]>,
}

/// The kind of an item in a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemKind<'a> {
    /// The item is a message of the user without tool results; the value is its `content`.
    Said(Option<&'a [u8]>),
    /// The item is part of an agent's work, such as a tool call, its result, or a message of
    /// the model.
    Work,
    /// The item is an instruction for the model, or of an unknown kind.
    Other,
}

impl ToolCall<'_> {
    /// Returns the first `most` bytes of the arguments. `None` if there are none, or `most` is 0.
    pub fn excerpt(&self, most: usize) -> Option<Arc<str>> {
        if most == 0 {
            return None;
        }
        let text = Text::of(self.written).map(Text::decoded);
        excerpt(text.as_deref().unwrap_or(self.written), most)
    }
}

impl ConversationEvent<'_> {
    /// Whether the event is a call of a tool, or its result.
    #[must_use]
    pub const fn is_of_tools(&self) -> bool {
        matches!(self, Self::Call(_) | Self::Result { .. })
    }
}

impl<'a> Item<'a> {
    /// Reads the scanner's next value as an item, which is empty if the value is no
    /// object.
    pub(super) fn read(json: &mut Scanner<'a>) -> Scan<Self> {
        let mut item = Self::default();
        json.object(|json, key| item.member(json, key))?;
        Ok(item)
    }

    /// Reads the value in `span` as an item; `None` if it is missing or malformed.
    pub(super) fn of(span: Option<&'a [u8]>) -> Option<Self> {
        Self::read(&mut Scanner::new(span?)).ok()
    }

    pub(super) fn member(&mut self, json: &mut Scanner<'a>, key: &[u8]) -> Scan<()> {
        match key {
            b"type" => self.kind = json.text()?,
            b"role" => self.role = json.text()?,
            b"id" => self.id = json.text()?,
            b"call_id" => self.call_id = json.text()?,
            b"tool_call_id" => self.tool_call_id = json.text()?,
            b"tool_use_id" => self.tool_use_id = json.text()?,
            b"name" => self.name = json.text()?,
            b"content" => self.content = Some(json.span()?),
            b"text" => self.text = Some(json.span()?),
            b"tool_calls" => self.tool_calls = Some(json.span()?),
            b"function" | b"function_call" | b"custom" => self.function = Some(json.span()?),
            b"arguments" | b"input" => self.arguments = Some(json.span()?),
            b"output" => self.output = Some(json.span()?),
            _ => json.skip()?,
        }
        Ok(())
    }

    /// Calls `on` for each event of the item, and returns the item's kind.
    pub(super) fn report(&self, on: &mut impl FnMut(ConversationEvent<'a>)) -> ItemKind<'a> {
        let kind = self.kind.map(Text::decoded);
        let role = self.role.map(Text::decoded);
        match (kind.as_deref(), role.as_deref()) {
            (Some(b"function_call" | b"custom_tool_call"), _) => self.call(self.call_id, on),
            (Some(b"function_call_output" | b"custom_tool_call_output"), _) => {
                self.result(self.call_id, self.output, on);
            }
            (_, Some(b"assistant")) => {
                if !self.said_by_model(on) {
                    on(ConversationEvent::Answered);
                }
            }
            (_, Some(b"tool" | b"function")) => self.result(self.tool_call_id, self.content, on),
            (_, Some(b"user")) => {
                let mut results = false;
                each(self.content, |block| {
                    if block.kind.is_some_and(|kind| kind.is(b"tool_result")) {
                        results = true;
                        block.result(block.tool_use_id, block.content, on);
                    }
                });
                if !results {
                    on(ConversationEvent::Said);
                    return ItemKind::Said(self.content);
                }
            }
            // Items of the Responses API without a role are work: reasoning, or a call that the
            // provider makes itself.
            (Some(_), None) => {}
            _ => return ItemKind::Other,
        }
        ItemKind::Work
    }

    /// Calls `on` for each tool call in this item, a message of the model.
    ///
    /// Returns whether the message has a tool call, even one that cannot be read.
    pub(super) fn said_by_model(&self, on: &mut impl FnMut(ConversationEvent<'a>)) -> bool {
        let mut calls = false;
        each(self.tool_calls, |call| {
            calls = true;
            call.function(call.id, on);
        });
        // Some clients write both keys, with null or an empty list for the one without a call.
        if !calls && self.function.is_some_and(|call| call != b"null") {
            calls = true;
            self.function(None, on);
        }
        each(self.content, |block| {
            if block.is_tool_use() {
                calls = true;
                block.call(block.id, on);
            }
        });
        calls
    }

    pub(super) fn is_tool_use(&self) -> bool {
        self.kind.is_some_and(|kind| kind.is(b"tool_use"))
    }

    /// Returns the text of the item as written, if the item is a block of text.
    pub(super) fn text_of(&self) -> Option<&'a [u8]> {
        let kind = self.kind?;
        let is_text = kind.is(b"text") || kind.is(b"input_text");
        is_text.then_some(self.text).flatten()
    }

    /// Returns the content as written, if the item is a message of the user.
    pub(super) fn content_of_user(&self) -> Option<&'a [u8]> {
        let is_user = self.role.is_some_and(|role| role.is(b"user"));
        is_user.then_some(self.content).flatten()
    }

    /// Calls `on` for the tool call in the item's `function`, under the given id.
    fn function(&self, id: Option<Text<'a>>, on: &mut impl FnMut(ConversationEvent<'a>)) {
        if let Some(function) = Self::of(self.function) {
            function.call(id, on);
        }
    }

    fn call(&self, id: Option<Text<'a>>, on: &mut impl FnMut(ConversationEvent<'a>)) {
        if let Some(name) = self.name {
            on(ConversationEvent::Call(ToolCall {
                id: identify(id),
                name: name.decoded(),
                arguments: arguments(self.arguments.unwrap_or_default()),
                written: self.arguments.unwrap_or_default(),
            }));
        }
    }

    fn result(
        &self,
        id: Option<Text<'a>>,
        result: Option<&'a [u8]>,
        on: &mut impl FnMut(ConversationEvent<'a>),
    ) {
        let result = result.unwrap_or_default();
        let id = identify(id);
        on(ConversationEvent::Result { id, result });
    }
}

/// Hashes the id of a tool call; `None` if it is missing or empty.
pub(super) fn identify(id: Option<Text<'_>>) -> Option<u64> {
    let id = id.filter(|id| !id.is_empty())?;
    Some(digest(&*id.decoded()))
}

/// Hashes the arguments of a tool call: JSON, or a string that contains JSON.
fn arguments(span: &[u8]) -> u64 {
    canonical(&Text::of(span).map_or(Cow::Borrowed(span), Text::decoded))
}

/// Calls `on` for each item of an array; any other value has none.
pub(super) fn each<'a>(array: Option<&'a [u8]>, mut on: impl FnMut(&Item<'a>)) {
    if let Some(array) = array {
        // Ignore errors: the scan that found the span has checked no more than strings and
        // brackets. Of a malformed array the elements before the fault count.
        let _ = Scanner::new(array).array(|json| {
            on(&Item::read(json)?);
            Ok(())
        });
    }
}

/// Hashes a value; equal values have the same hash within one process.
pub fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Hashes a JSON text. The order of keys, and white space outside of strings, do not matter.
///
/// Numbers and string values count as written. A text that is not JSON, or nested more than 127
/// levels deep, is hashed as written. An empty text equals `{}`, because models send either for
/// a call without arguments.
#[must_use]
pub fn canonical(json: &[u8]) -> u64 {
    Leaves::Written.digest(json)
}

/// Hashes the result of a tool call, like [`canonical`].
///
/// Unless `exact` is set, volatile words in strings and numbers do not matter: ids, times,
/// durations. Neither do numbers and times under [volatile keys](is_volatile_key), also in JSON that
/// is in a string of the result.
#[must_use]
pub fn result(json: &[u8], exact: bool) -> u64 {
    match exact {
        true => canonical(json),
        false => Leaves::Stable { nested: 0 }.digest(json),
    }
}

/// The number of bytes at the start of a string in which volatile words are replaced.
///
/// The rest of a longer string is compared as it is, because that is cheaper.
const NORMALIZED: usize = 8192;

/// The most strings around a JSON text that is read as such.
const MAX_NESTED: u8 = 3;

/// The form in which strings, numbers and literals of a JSON text are hashed.
#[derive(Clone, Copy)]
enum Leaves {
    /// The form is the text as written.
    Written,
    /// The form has no volatile words, and no numbers under volatile keys. `nested` is the number
    /// of strings around the text.
    Stable { nested: u8 },
}

impl Leaves {
    fn digest(self, json: &[u8]) -> u64 {
        let json = json.trim_ascii();
        let whole = self.whole(if json.is_empty() { b"{}" } else { json });
        whole.unwrap_or_else(|| self.leaf(json))
    }

    /// Hashes a text that is one JSON value; `None` for any other text.
    fn whole(self, json: &[u8]) -> Option<u64> {
        let mut scanner = Scanner::new(json);
        let read = self.value(&mut scanner).ok()?;
        (scanner.position() >= json.len()).then_some(read)
    }

    /// Hashes the next value of the scanner. The scanner's limit of depth bounds the recursion.
    fn value(self, json: &mut Scanner<'_>) -> Scan<u64> {
        match json.peek()? {
            b'{' => {
                let mut members = Vec::new();
                json.object(|json, key| {
                    members.push((digest(key), self.member(json, key)?));
                    Ok(())
                })?;
                members.sort_unstable();
                Ok(digest(('{', members)))
            }
            b'[' => {
                let mut elements = DefaultHasher::new();
                '['.hash(&mut elements);
                json.array(|json| {
                    self.value(json)?.hash(&mut elements);
                    Ok(())
                })?;
                Ok(elements.finish())
            }
            _ => json.span().map(|span| self.leaf(span)),
        }
    }

    /// Hashes the value of a key.
    fn member(self, json: &mut Scanner<'_>, key: &[u8]) -> Scan<u64> {
        let is_leaf = !matches!(json.peek()?, b'{' | b'[');
        if !is_leaf || matches!(self, Self::Written) || !is_volatile_key(key) {
            return self.value(json);
        }
        let span = json.span()?;
        let text = Text::of(span).map_or(Cow::Borrowed(span), Text::decoded);
        match is_volatile_value(&text) {
            true => Ok(digest("a volatile value")),
            false => Ok(self.leaf(span)),
        }
    }

    fn leaf(self, span: &[u8]) -> u64 {
        let Self::Stable { nested } = self else {
            return digest(span);
        };
        let Some(text) = Text::of(span).map(Text::decoded) else {
            return normalized(span);
        };
        // Many tools answer with JSON, which the history then has in a string.
        let begins = text.trim_ascii_start().first();
        if nested < MAX_NESTED && matches!(begins, Some(b'{' | b'[')) {
            let within = Self::Stable { nested: nested + 1 };
            if let Some(whole) = within.whole(text.trim_ascii()) {
                return digest(('"', whole));
            }
        }
        normalized(&text)
    }
}

/// Hashes a text without its volatile words.
fn normalized(text: &[u8]) -> u64 {
    let (head, rest) = text.split_at(text.len().min(NORMALIZED));
    let head = String::from_utf8_lossy(head);
    let mut hasher = DefaultHasher::new();
    let (header, body) = command_header(&head).unwrap_or(("", &head));
    for line in header.lines() {
        match volatile_name(line) {
            Some(name) => hasher.write(name.as_bytes()),
            None => without_volatile_words(line, &mut hasher),
        }
        hasher.write_u8(b'\n');
    }
    without_volatile_words(body, &mut hasher);
    hasher.write(rest);
    hasher.finish()
}

fn without_volatile_words(text: &str, hasher: &mut DefaultHasher) {
    normalize(text, ShortNumbers::Kept, |piece, len| {
        hasher.write(&piece[..len]);
    });
}
