//! The partial text of a streamed answer.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    cut,
    dialect::Dialect,
    json_scanner::{Scan, Scanner, Text},
    sse::Event,
};

/// The beginning of an answer's text, up to `max` bytes; clones share the text.
#[derive(Clone, Debug)]
pub struct Partial {
    shared: Arc<Mutex<PartialText>>,
    max: usize,
}

#[derive(Debug, Default)]
struct PartialText {
    /// The text up to the last time that it was read, which all readers share.
    read: Option<Arc<str>>,
    /// The text since then.
    text: String,
    /// Whether a part of the text did not fit, so that later parts, even if they fit, are left
    /// out.
    is_full: bool,
    /// Whether the answer is complete, so that its text is not partial.
    is_whole: bool,
}

impl Partial {
    /// The text; a panic under its lock leaves it as it was before a call.
    fn lock(&self) -> MutexGuard<'_, PartialText> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A text of at most `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            shared: Arc::default(),
            max,
        }
    }

    /// Returns the text of an incomplete answer. `None` if it is blank, or the answer is complete.
    #[must_use]
    pub fn read(&self) -> Option<Arc<str>> {
        self.text().filter(|_| !self.lock().is_whole)
    }

    /// Returns the text collected so far; `None` if it is blank.
    #[must_use]
    pub fn text(&self) -> Option<Arc<str>> {
        let mut shared = self.lock();
        if !shared.text.is_empty() {
            let text = std::mem::take(&mut shared.text);
            shared.read = Some(match &shared.read {
                Some(read) => [read, &*text].concat().into(),
                None => text.into(),
            });
        }
        let text = shared.read.as_ref()?;
        (!text.trim().is_empty()).then(|| text.clone())
    }

    /// Records that the answer is complete.
    pub fn complete(&self) {
        self.lock().is_whole = true;
    }

    /// Records that a part of the text was dropped, so that later parts are left out.
    pub(super) fn fill(&self) {
        self.lock().is_full = true;
    }

    /// Whether both are clones of one text.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Adds as many whole characters of `part` as fit into the limit.
    pub(super) fn push(&self, part: Text<'_>) {
        let part = part.decoded();
        let part = &*String::from_utf8_lossy(&part);
        let mut shared = self.lock();
        let read = shared.read.as_ref().map_or(0, |read| read.len());
        let room = self.max.saturating_sub(read + shared.text.len());
        let fits = cut(part, if shared.is_full { 0 } else { room });
        shared.text.push_str(fits);
        shared.is_full |= fits.len() < part.len();
    }
}

/// Reads the parts of the answer's text in an event with content, and passes them to `push`.
pub(super) fn read_text<'a>(dialect: Dialect, event: &Event<'a>, push: &mut impl FnMut(Text<'a>)) {
    // No error can lose text here: the grammar has read the event's data as content, so the data is
    // well-formed, or it is blank.
    let _ = match dialect {
        Dialect::OpenAiChat => chat(event.data, push),
        Dialect::OpenAiResponses => responses(event, push),
        Dialect::Anthropic => anthropic(event.data, push),
        Dialect::Any | Dialect::Custom(_) => Ok(()),
    };
}

/// Reads the text of a chat event's choice with index 0, and passes it to `push`.
fn chat<'a>(data: &'a [u8], push: &mut impl FnMut(Text<'a>)) -> Scan<()> {
    let [choices] = Scanner::members(data, [b"choices"])?;
    let choice = |json: &mut Scanner<'a>| {
        let [index, delta, text] =
            Scanner::members(json.span()?, [b"index", b"delta", b"text"]).unwrap_or_default();
        let index = index.and_then(|index| Scanner::new(index).integer().ok()?);
        let content = delta.and_then(|delta| Scanner::members(delta, [b"content"]).ok()?[0]);
        let text = content.or(text).and_then(Text::of);
        if let (0, Some(text)) = (index.unwrap_or(0), text) {
            push(text);
        }
        Ok(())
    };
    Scanner::new(choices.unwrap_or_default())
        .array(choice)
        .map(drop)
}

fn responses<'a>(event: &Event<'a>, push: &mut impl FnMut(Text<'a>)) -> Scan<()> {
    let [kind, text] = Scanner::members(event.data, [b"type", b"delta"])?;
    let kind = kind.and_then(Text::of);
    let kind = kind.map_or(Cow::Borrowed(event.name), Text::decoded);
    if &*kind == b"response.output_text.delta" {
        text.and_then(Text::of).into_iter().for_each(push);
    }
    Ok(())
}

fn anthropic<'a>(data: &'a [u8], push: &mut impl FnMut(Text<'a>)) -> Scan<()> {
    // The event that starts a content block may contain text, as the block's deltas do.
    let [delta, block] = Scanner::members(data, [b"delta", b"content_block"])?;
    if let Some(part) = delta.or(block) {
        let [text] = Scanner::members(part, [b"text"])?;
        text.and_then(Text::of).into_iter().for_each(push);
    }
    Ok(())
}
