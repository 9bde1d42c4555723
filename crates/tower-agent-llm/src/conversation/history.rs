use std::{collections::VecDeque, sync::Arc};

use super::item::{ConversationEvent, Item, ItemKind, digest, each};
use crate::{
    dialect::Dialect,
    excerpt,
    json_scanner::{Scan, Scanner, Text},
};

/// The keys under which a request's body has the conversation: chat's and Anthropic's, then
/// that of the Responses API.
const CHAT_KEY: &[u8] = b"messages";
const RESPONSES_KEY: &[u8] = b"input";

/// How many recent message positions are remembered to find the new part of the next request.
///
/// One place is too few: a client that moves a cache marker sends the last messages anew in the next
/// request, changed. Earlier messages stay the same.
const PLACES: usize = 8;

/// The most of a conversation's latest events that [`History::latest`] returns.
///
/// While it reads, a history holds up to twice as many events, and then drops the oldest half.
const EVENTS: usize = 512;

/// The longest text that [`History::said`] returns, in bytes.
const TEXT: usize = 1024;

/// The place of a message in a request, by which the next request's reader finds it
/// again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryPlace {
    /// The offset behind the message, from the opening bracket of the request's array of
    /// messages.
    end: usize,
    len: usize,
    digest: u64,
}

/// The conversation so far, as a request contains it.
#[derive(Debug, Default)]
pub struct History<'a> {
    /// The latest events of the conversation, from the place at which the walk began.
    pub events: Vec<ConversationEvent<'a>>,
    /// The digests of the names of the tools that the request declares.
    pub tools: Vec<u64>,
    /// Whether the request declares further tools, for which the reader finds no name.
    pub more_tools: bool,
    /// The places of the request's last messages, at most `PLACES`, the oldest first.
    /// Empty if the next request must be walked as a whole.
    pub places: VecDeque<HistoryPlace>,
    /// The place in an earlier request after which the walk of this request began. `None` if the
    /// walk began at the first message.
    pub from: Option<HistoryPlace>,
    /// Whether the request refers by id to an earlier conversation that the provider stores.
    pub continues: bool,
    /// Whether the request asks for a stream.
    pub streams: bool,
    /// Whether the request has a top-level `system` or `anthropic_version`, as Anthropic's API
    /// has.
    pub is_anthropic: bool,
    /// Whether the request has `input`, the conversation's key in the Responses API; always false
    /// in the dialects of chat and Anthropic.
    pub is_responses: bool,
    model: Option<Text<'a>>,
    /// The number of the request's messages that the reader walked, without those before
    /// `from`.
    pub walked: usize,
    /// The content, as written, of the last walked message that is not an instruction, if the user
    /// sent it.
    said: Option<&'a [u8]>,
    /// The content, as written, of the last walked message of the user.
    asked: Option<&'a [u8]>,
}

impl<'a> History<'a> {
    /// Reads the conversation in a request's body, from behind the last of `places` that is
    /// unchanged.
    ///
    /// Only the key that `dialect` uses for the conversation is read, because an upstream
    /// ignores the other one. If `dialect` does not tell, either key may be read, or both. The
    /// history is `None` if the body is not a JSON object, or has no conversation.
    #[must_use]
    pub fn read(
        dialect: &Dialect,
        body: &'a [u8],
        places: &VecDeque<HistoryPlace>,
    ) -> Option<Self> {
        let of = |key| Self::under(key, body, places);
        match dialect {
            Dialect::OpenAiChat | Dialect::Anthropic => of(CHAT_KEY),
            Dialect::OpenAiResponses => of(RESPONSES_KEY),
            _ => match (of(CHAT_KEY), of(RESPONSES_KEY)) {
                (Some(_), Some(responses)) if responses.acts() => Self::both(body),
                (Some(chat), Some(_)) => Some(Self {
                    is_responses: true,
                    ..chat
                }),
                (chat, responses) => chat.or(responses),
            },
        }
    }

    /// Whether the history contains tool calls or their results.
    fn acts(&self) -> bool {
        self.events.iter().any(ConversationEvent::is_of_tools)
    }

    /// Reads the conversation under both keys of a request that may be of either API.
    fn both(body: &'a [u8]) -> Option<Self> {
        let whole = |key| Self::under(key, body, &VecDeque::new());
        let mut history = whole(CHAT_KEY)?;
        let other = whole(RESPONSES_KEY)?;
        // Only calls and results of the other key count: a message under one key ends no
        // turn under the other.
        let acts = other
            .events
            .into_iter()
            .filter(ConversationEvent::is_of_tools);
        history.events.extend(acts);
        history.places.clear();
        history.is_responses = true;
        Some(history)
    }

    fn under(key: &[u8], body: &'a [u8], places: &VecDeque<HistoryPlace>) -> Option<Self> {
        let whole = || Self::walk(key, body, &VecDeque::new()).ok()?;
        match Self::walk(key, body, places) {
            // The request has only the new part of the conversation, which may repeat the
            // bytes of an earlier part.
            Ok(Some(history)) if history.continues => {
                let again = history.from.and_then(|_| whole());
                let mut history = again.unwrap_or(history);
                history.places.clear();
                Some(history)
            }
            Ok(history) => history,
            // The bytes at the place are the same as before, but they are no longer a message's
            // end.
            Err(()) => whole(),
        }
    }

    fn walk(
        conversation: &[u8],
        body: &'a [u8],
        places: &VecDeque<HistoryPlace>,
    ) -> Result<Option<Self>, ()> {
        let mut history = Self {
            is_responses: conversation == RESPONSES_KEY,
            ..Self::default()
        };
        let mut found = false;
        let read = Scanner::document(body, |json, key| {
            match key {
                _ if key == conversation => {
                    found = true;
                    history.messages(body, json, places)?;
                }
                b"tools" | b"functions" => history.declared(json.span()?),
                b"previous_response_id" | b"conversation" => {
                    history.continues = json.filled()?;
                }
                b"model" => history.model = json.text()?,
                b"stream" => history.streams = json.span()? == b"true",
                b"system" | b"anthropic_version" => {
                    history.is_anthropic = true;
                    json.skip()?;
                }
                _ => json.skip()?,
            }
            Ok(())
        });
        match read {
            Ok(()) => Ok(found.then_some(history)),
            Err(_) if history.from.is_some() => Err(()),
            Err(_) => Ok(None),
        }
    }

    fn messages(
        &mut self,
        body: &'a [u8],
        json: &mut Scanner<'a>,
        places: &VecDeque<HistoryPlace>,
    ) -> Scan<()> {
        // If a body has the key twice, the second value replaces the first.
        self.events.clear();
        self.places.clear();
        (self.from, self.said, self.asked) = (None, None, None);
        if json.peek()? != b'[' {
            let text = json.span()?;
            if text.starts_with(b"\"") {
                self.events.push(ConversationEvent::Said);
                (self.said, self.asked) = (Some(text), Some(text));
            }
            return Ok(());
        }
        let start = json.position();
        let still = |place: &&HistoryPlace| place.is_in(&body[start..]);
        self.from = places.iter().rfind(still).copied();
        let mut last = VecDeque::new();
        let on_message = |json: &mut Scanner<'a>| {
            json.peek()?;
            let from = json.position();
            let item = Item::read(json)?;
            let kind = item.report(&mut |event| {
                if self.events.len() >= 2 * EVENTS {
                    self.events.drain(..EVENTS);
                }
                self.events.push(event);
            });
            match kind {
                ItemKind::Said(content) => (self.said, self.asked) = (content, content),
                ItemKind::Work => self.said = None,
                ItemKind::Other => {}
            }
            self.walked += 1;
            if last.len() == PLACES {
                last.pop_front();
            }
            last.push_back(from..json.position());
            Ok(())
        };
        match self.from {
            Some(place) => json.resume(start + place.end, on_message)?,
            None => drop(json.array(on_message)?),
        }
        let known = |place: &&HistoryPlace| self.from.is_some_and(|from| place.end <= from.end);
        self.places = places.iter().filter(known).copied().collect();
        let new = last.iter().map(|message| HistoryPlace {
            end: message.end - start,
            len: message.len(),
            digest: digest(&body[message.clone()]),
        });
        self.places.extend(new);
        let surplus = self.places.len().saturating_sub(PLACES);
        self.places.drain(..surplus);
        Ok(())
    }

    fn declared(&mut self, tools: &'a [u8]) {
        each(Some(tools), |tool| {
            let nested = || Item::of(tool.function)?.name;
            match tool.name.or_else(nested) {
                Some(name) => self.tools.push(digest(&*name.decoded())),
                None => self.more_tools = true,
            }
        });
    }

    /// Returns the last 512 of the events, or all if there are fewer.
    #[must_use]
    pub fn latest(&self) -> &[ConversationEvent<'a>] {
        let surplus = self.events.len().saturating_sub(EVENTS);
        &self.events[surplus..]
    }

    /// The model that the request names; empty if it names none.
    pub fn model(&self) -> String {
        let model = self.model.map(Text::decoded).unwrap_or_default();
        String::from_utf8_lossy(&model).into_owned()
    }

    /// Returns the text of the last walked message that is not an instruction, if the user sent it.
    ///
    /// The text is `None` if the message contains more than text, or is longer than 1 KiB, or
    /// than 8 KiB as written.
    #[must_use]
    pub fn said(&self) -> Option<String> {
        let said = self.said?;
        if said.len() > 8 * TEXT {
            return None;
        }
        let (text, is_whole) = text_in(said);
        Some(text).filter(|text| is_whole && text.len() <= TEXT)
    }

    /// Returns the first `most` bytes of the text of the last walked message of the user.
    #[must_use]
    pub fn asked(&self, most: usize) -> Option<Arc<str>> {
        excerpt(text_in(self.asked?).0.as_bytes(), most)
    }
}

/// Returns the text of a message's content, and whether the content is nothing but text.
fn text_in(content: &[u8]) -> (String, bool) {
    let of = |span: &[u8]| String::from_utf8(Text::of(span)?.decoded().into_owned()).ok();
    if !content.starts_with(b"[") {
        let text = of(content);
        let is_text = text.is_some();
        return (text.unwrap_or_default(), is_text);
    }
    let (mut whole, mut is_whole) = (String::new(), true);
    each(Some(content), |block| match block.text_of().and_then(of) {
        Some(text) => whole += &text,
        None => is_whole = false,
    });
    (whole, is_whole)
}

impl HistoryPlace {
    /// Whether `array`, from its opening bracket on, still has the same bytes at this place.
    fn is_in(&self, array: &[u8]) -> bool {
        let Some(start) = self.end.checked_sub(self.len) else {
            return false;
        };
        array
            .get(start..self.end)
            .is_some_and(|message| digest(message) == self.digest)
    }
}
