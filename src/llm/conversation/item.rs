use std::borrow::Cow;

use super::digest::{canonical, digest};
use crate::llm::json::{Scan, Scanner, Text};

/// Something that a conversation says, in its order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConversationEvent<'a> {
    /// The model called a tool.
    Call(ToolCall<'a>),
    /// What came of a call.
    Result {
        /// That of the call; none where the API has no ids.
        id: Option<u64>,
        /// Equal for equal results.
        result: u64,
    },
    /// The user said something, which is no result.
    Said,
    /// The model said something, and called nothing: its turn is over.
    Answered,
}

/// A tool call, in digests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ToolCall<'a> {
    pub(crate) id: Option<u64>,
    pub(crate) name: Cow<'a, [u8]>,
    /// Equal for equal arguments, see [`canonical`].
    pub(crate) arguments: u64,
}

/// A tool call that an answer made.
pub(crate) type Called = ToolCall<'static>;

/// The keys of a message, of a block in one, or of an item of the Responses API,
/// that tell what it is.
#[derive(Debug, Default)]
pub(super) struct Item<'a> {
    kind: Option<Text<'a>>,
    role: Option<Text<'a>>,
    id: Option<Text<'a>>,
    call_id: Option<Text<'a>>,
    tool_call_id: Option<Text<'a>>,
    tool_use_id: Option<Text<'a>>,
    name: Option<Text<'a>>,
    content: Option<&'a [u8]>,
    text: Option<&'a [u8]>,
    tool_calls: Option<&'a [u8]>,
    /// Of a chat's call, and of a message in the days before `tool_calls`.
    function: Option<&'a [u8]>,
    arguments: Option<&'a [u8]>,
    output: Option<&'a [u8]>,
}

/// What an item was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemKind<'a> {
    /// Said by a user, with this content.
    Said(Option<&'a [u8]>),
    /// Part of an agent's work.
    Work,
    /// Instructions, or nothing that is known.
    Other,
}

impl ConversationEvent<'_> {
    pub(crate) const fn is_of_tools(&self) -> bool {
        matches!(self, Self::Call(_) | Self::Result { .. })
    }
}

impl<'a> Item<'a> {
    /// Reads one; nothing if the value is no object.
    pub(super) fn read(json: &mut Scanner<'a>) -> Scan<Self> {
        let mut item = Self::default();
        json.object(|json, key| item.member(json, key))?;
        Ok(item)
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

    /// Hands on what it says, and answers what it was.
    pub(super) fn report(&self, on: &mut impl FnMut(ConversationEvent<'a>)) -> ItemKind<'a> {
        let is = |text: Option<Text<'a>>, words: &[&[u8]]| {
            text.is_some_and(|text| words.iter().any(|word| text.is(word)))
        };
        if is(self.kind, &[b"function_call", b"custom_tool_call"]) {
            self.call(self.call_id, on);
        } else if is(
            self.kind,
            &[b"function_call_output", b"custom_tool_call_output"],
        ) {
            self.result(self.call_id, self.output, on);
        } else if is(self.role, &[b"assistant"]) {
            let mut calls = false;
            self.said_by_model(&mut |event| {
                calls = true;
                on(event);
            });
            let none = |calls: Option<&[u8]>| matches!(calls, None | Some(b"null" | b"[]"));
            if !calls && none(self.tool_calls) && none(self.function) {
                on(ConversationEvent::Answered);
            }
        } else if is(self.role, &[b"tool", b"function"]) {
            self.result(self.tool_call_id, self.content, on);
        } else if is(self.role, &[b"user"]) {
            let mut results = false;
            each(self.content, |block| {
                if is(block.kind, &[b"tool_result"]) {
                    results = true;
                    block.result(block.tool_use_id, block.content, on);
                }
            });
            if !results {
                on(ConversationEvent::Said);
                return ItemKind::Said(self.content);
            }
        } else {
            // Reasoning and the calls that the provider makes itself.
            let instructs = is(self.role, &[b"system", b"developer"]);
            let work = self.role.is_none() && self.kind.is_some();
            return if work && !instructs {
                ItemKind::Work
            } else {
                ItemKind::Other
            };
        }
        ItemKind::Work
    }

    /// The calls of a message of the model's.
    pub(super) fn said_by_model(&self, on: &mut impl FnMut(ConversationEvent<'a>)) {
        each(self.tool_calls, |call| call.function(call.id, on));
        if self.tool_calls.is_none() {
            self.function(None, on);
        }
        each(self.content, |block| {
            if block.is_tool_use() {
                block.call(block.id, on);
            }
        });
    }

    pub(super) fn is_tool_use(&self) -> bool {
        self.kind.is_some_and(|kind| kind.is(b"tool_use"))
    }

    /// The text of a block of text.
    pub(super) fn text_of(&self) -> Option<&'a [u8]> {
        let kind = self.kind?;
        let is_text = kind.is(b"text") || kind.is(b"input_text");
        is_text.then_some(self.text).flatten()
    }

    /// The name, arguments and id, for an answer that says them in parts.
    pub(super) fn parts(&self) -> (Option<Text<'a>>, Option<Text<'a>>, Option<&'a [u8]>) {
        (self.id, self.name, self.arguments)
    }

    pub(super) const fn function_part(&self) -> Option<&'a [u8]> {
        self.function
    }

    /// A call whose name and arguments stand one deeper.
    fn function(&self, id: Option<Text<'a>>, on: &mut impl FnMut(ConversationEvent<'a>)) {
        if let Some(Ok(function)) = self
            .function
            .map(|span| Self::read(&mut Scanner::new(span)))
        {
            function.call(id, on);
        }
    }

    fn call(&self, id: Option<Text<'a>>, on: &mut impl FnMut(ConversationEvent<'a>)) {
        if let Some(name) = self.name {
            on(ConversationEvent::Call(ToolCall {
                id: identify(id),
                name: name.decoded(),
                arguments: arguments(self.arguments.unwrap_or_default()),
            }));
        }
    }

    fn result(
        &self,
        id: Option<Text<'a>>,
        result: Option<&'a [u8]>,
        on: &mut impl FnMut(ConversationEvent<'a>),
    ) {
        let result = canonical(result.unwrap_or_default());
        let id = identify(id);
        on(ConversationEvent::Result { id, result });
    }
}

/// An id that is there and says something.
pub(super) fn identify(id: Option<Text<'_>>) -> Option<u64> {
    let id = id.filter(|id| !id.is_empty())?;
    Some(digest(&*id.decoded()))
}

/// The digest of arguments, as an object or as the text of one.
fn arguments(span: &[u8]) -> u64 {
    match Scanner::new(span).text() {
        Ok(Some(text)) => canonical(&text.decoded()),
        _ => canonical(span),
    }
}

/// Walks the items of an array; anything else holds none.
pub(super) fn each<'a>(array: Option<&'a [u8]>, mut on: impl FnMut(&Item<'a>)) {
    if let Some(array) = array {
        // The span was walked before: it is well-formed.
        let _ = Scanner::new(array).array(|json| {
            on(&Item::read(json)?);
            Ok(())
        });
    }
}
