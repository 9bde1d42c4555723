//! The partial text of a streamed answer.

use std::{borrow::Cow, sync::Arc};

use crate::{
    llm::{
        cut,
        dialect::Dialect,
        json::{Scan, Scanner, Text},
        sse::Event,
    },
    lock::Lock,
};

/// The beginning of an answer's text, up to `max` bytes; clones share the text.
#[derive(Clone, Debug)]
pub(crate) struct Partial {
    shared: Arc<Lock<PartialText>>,
    max: usize,
}

#[derive(Debug, Default)]
struct PartialText {
    text: String,
    /// Whether a part of the text did not fit, so that later parts, even if they fit, are left
    /// out.
    is_full: bool,
}

impl Partial {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            shared: Arc::default(),
            max,
        }
    }

    /// Returns the text collected so far; `None` if it is empty.
    pub(crate) fn read(&self) -> Option<Arc<str>> {
        let text = &self.shared.lock().text;
        (!text.is_empty()).then(|| text.as_str().into())
    }

    /// Empties the collected text, because the answer is complete.
    pub(crate) fn clear(&self) {
        self.shared.lock().text.clear();
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Adds as many whole characters of `part` as fit into the limit.
    pub(super) fn push(&self, part: Text<'_>) {
        let part = part.decoded();
        let part = &*String::from_utf8_lossy(&part);
        let mut shared = self.shared.lock();
        let room = self.max.saturating_sub(shared.text.len());
        let fits = cut(part, if shared.is_full { 0 } else { room });
        shared.text.push_str(fits);
        shared.is_full |= fits.len() < part.len();
    }
}

/// Reads the parts of the answer's text in an event with content, and passes them to `push`.
pub(super) fn read_text<'a>(dialect: Dialect, event: &Event<'a>, push: &mut impl FnMut(Text<'a>)) {
    // Ignore errors: the grammar classified the event as content, so its data is well-formed.
    let _ = match dialect {
        Dialect::OpenAiChat => chat(event.data, push),
        Dialect::OpenAiResponses => responses(event, push),
        Dialect::Anthropic => anthropic(event.data, push),
        Dialect::Any | Dialect::Custom(_) => Ok(()),
    };
}

/// Reads the text of a chat event's choice with index 0, and passes it to `push`.
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
        // The event that starts a content block may contain text, as the block's deltas do.
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
