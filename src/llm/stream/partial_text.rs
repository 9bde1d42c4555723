//! The text that an answer has streamed so far, for those who want to keep it.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::llm::{
    dialect::Dialect,
    json::{Scan, Scanner, Text},
    sse::Event,
};

/// The beginning of an answer's text, at most so many bytes; all clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Partial {
    kept: Arc<Mutex<KeptText>>,
    max: usize,
}

#[derive(Debug, Default)]
struct KeptText {
    text: String,
    /// Something was left out, so nothing may follow.
    full: bool,
}

impl Partial {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            kept: Arc::default(),
            max,
        }
    }

    /// What there is; `None` if there is nothing.
    pub(crate) fn read(&self) -> Option<Arc<str>> {
        let text = &self.lock().text;
        (!text.is_empty()).then(|| text.as_str().into())
    }

    /// The answer is whole: there is no part of it.
    pub(crate) fn clear(&self) {
        self.lock().text.clear();
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.kept, &other.kept)
    }

    /// Adds the text of an event with content.
    pub(super) fn add(&self, dialect: Dialect, event: &Event<'_>) {
        let mut push = |part: Text<'_>| self.push(&String::from_utf8_lossy(&part.decoded()));
        // It was read before: what is broken has no content.
        let _ = match dialect {
            Dialect::OpenAiChat => chat(event.data, &mut push),
            Dialect::OpenAiResponses => responses(event, &mut push),
            Dialect::Anthropic => anthropic(event.data, &mut push),
            Dialect::Any | Dialect::Custom(_) => Ok(()),
        };
    }

    /// Adds as much as there is room for, whole characters only.
    fn push(&self, part: &str) {
        let mut kept = self.lock();
        let room = self.max.saturating_sub(kept.text.len());
        let mut end = if kept.full { 0 } else { room.min(part.len()) };
        while !part.is_char_boundary(end) {
            end -= 1;
        }
        kept.text.push_str(&part[..end]);
        kept.full |= end < part.len();
    }

    fn lock(&self) -> MutexGuard<'_, KeptText> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of several choices the first.
fn chat<'a>(data: &'a [u8], push: &mut impl FnMut(Text<'a>)) -> Scan<()> {
    Scanner::document(data, |json, key| match key {
        b"choices" => json.array(|json| choice(json, push)).map(drop),
        _ => json.skip(),
    })
}

fn choice<'a>(json: &mut Scanner<'a>, push: &mut impl FnMut(Text<'a>)) -> Scan<()> {
    let mut index = None;
    let mut text = None;
    json.object(|json, key| {
        match key {
            b"index" => index = json.integer()?,
            b"text" => text = json.text()?,
            b"delta" => {
                json.object(|json, key| {
                    match key {
                        b"content" => text = json.text()?,
                        _ => json.skip()?,
                    }
                    Ok(())
                })?;
            }
            _ => json.skip()?,
        }
        Ok(())
    })?;
    if index.unwrap_or(0) == 0 {
        text.into_iter().for_each(push);
    }
    Ok(())
}

fn responses<'a>(event: &Event<'a>, push: &mut impl FnMut(Text<'a>)) -> Scan<()> {
    let (mut kind, mut text) = (None, None);
    Scanner::document(event.data, |json, key| {
        match key {
            b"type" => kind = json.text()?,
            b"delta" => text = json.text()?,
            _ => json.skip()?,
        }
        Ok(())
    })?;
    let kind = kind.map_or(Cow::Borrowed(event.name), Text::decoded);
    if &*kind == b"response.output_text.delta" {
        text.into_iter().for_each(push);
    }
    Ok(())
}

fn anthropic<'a>(data: &'a [u8], push: &mut impl FnMut(Text<'a>)) -> Scan<()> {
    let mut text = None;
    Scanner::document(data, |json, key| match key {
        // Of the start of a block and of its deltas alike.
        b"delta" | b"content_block" => json
            .object(|json, key| {
                match key {
                    b"text" => text = json.text()?,
                    _ => json.skip()?,
                }
                Ok(())
            })
            .map(drop),
        _ => json.skip(),
    })?;
    text.into_iter().for_each(push);
    Ok(())
}
