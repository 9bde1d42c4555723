//! The shape of a content event: its bytes without the texts that no grammar reads.
//!
//! Most events of an answer differ in a few strings only. An event of the same shape as the
//! content event before it has the same verdict, without a walk over its JSON.
//!
//! # Why the verdict is the same
//!
//! A gap is the inside of a string under one of the keys in [`is_unread`]. The digits of a sequence
//! number are a gap, too. Outside of the gaps the event equals the recorded event byte for byte.
//!
//! # Why the effects are the same
//!
//! Every event that takes the walk replaces the shape, or forgets it. So an event that has the
//! shape follows only events of that shape, and to report the same choices, usage and stop
//! reason again changes nothing. The sequence number of a Responses event is different in each
//! event: its digits are a gap too, and are reported.

use super::generated_text::is_generated;
use crate::{
    dialect::Dialect,
    json_scanner::{Malformed, Scan, Scanner, Text},
    sse::{Event, EventVerdict},
};

/// The most bytes of a shape; an event with more bytes outside of its gaps is not recorded.
const MAX_BYTES: usize = 448;

const MAX_GAPS: usize = 6;

/// The number of content events without a match after which only every [`RETRY`]th is recorded.
///
/// In a stream in which no two neighbors have the same shape, to record each event would double
/// the cost.
const PATIENCE: u8 = 4;
const RETRY: u8 = 32;

/// The most digits of a recorded sequence number: as many always fit into a `u64`.
const MAX_DIGITS: usize = 19;

/// The shape of a stream's last event, if that event is content with a shape.
#[derive(Debug, Default)]
pub(super) struct Shape {
    /// The verdict on each event of the shape; `None` if there is no shape.
    verdict: Option<EventVerdict>,
    /// The content events since the last match, modulo 256.
    misses: u8,
    name_len: u16,
    gaps_len: u16,
    gaps: [Gap; MAX_GAPS],
    /// The event's name, then its data without the gaps. Allocated at the first content event, and
    /// again for a longer one.
    bytes: Vec<u8>,
    #[cfg(test)]
    pub(super) hits: u64,
}

/// A part of an event's data that may differ in another event of the same shape.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    /// The offset of the gap in the shape's bytes, counted from behind the event's name.
    at: u16,
    kind: GapKind,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum GapKind {
    /// The inside of a string that the model generated, other than the answer's text.
    #[default]
    Text,
    /// The inside of the string that is the answer's text.
    AnswerText,
    /// The inside of a string that the model did not generate.
    Padding,
    /// The digits of the event's sequence number.
    Sequence,
}

/// The result of a walk over an event that has the shape, without that walk.
#[derive(Debug)]
pub(super) struct Match<'a> {
    pub(super) verdict: EventVerdict,
    pub(super) sequence: Option<u64>,
    /// The number of bytes that the model generated: see
    /// [`GeneratedText`](super::generated_text::GeneratedText).
    pub(super) generated: u64,
    /// The answer's text in the event, if [`Shape::record`] got the text of the recorded event.
    pub(super) text: Option<Text<'a>>,
}

impl Shape {
    /// Compares an event with the shape; `None` if the event does not match, or no shape is stored.
    /// An oversized event never matches, nor does one in a form that SDKs ignore.
    #[inline(always)]
    pub(super) fn matches<'a>(&mut self, event: &Event<'a>) -> Option<Match<'a>> {
        let mut found = Match {
            verdict: self.verdict?,
            sequence: None,
            generated: 0,
            text: None,
        };
        let (name, fixed) = self.bytes.split_at(usize::from(self.name_len));
        // Most events have no name, and the address of an empty slice need not be mapped: there
        // some processors take 80 ns to compare no bytes.
        if event.name.len() != name.len() || (!name.is_empty() && event.name != name) {
            return None;
        }
        let mut data = event.data;
        let mut from = 0;
        for gap in &self.gaps[..usize::from(self.gaps_len)] {
            let to = usize::from(gap.at);
            data = data.strip_prefix(&fixed[from..to])?;
            from = to;
            let len = if gap.kind == GapKind::Sequence {
                // The byte behind the digits is one that ends a number: the next fixed part
                // begins with it.
                let (sequence, len) = leading_number(data)?;
                found.sequence = Some(sequence);
                len
            } else {
                let text = Text::before_quote(data).filter(|text| !text.is_empty())?;
                if gap.kind == GapKind::AnswerText {
                    found.text = Some(text);
                }
                let len = text.raw().len();
                if gap.kind != GapKind::Padding {
                    found.generated += len as u64;
                }
                len
            };
            data = &data[len..];
        }
        if data != &fixed[from..] || event.unusual.is_some() {
            return None;
        }
        self.misses = 0;
        #[cfg(test)]
        {
            self.hits += 1;
        }
        Some(found)
    }

    /// Forgets the shape, because an event that does not match it took the walk.
    #[inline]
    pub(super) const fn forget(&mut self) {
        self.verdict = None;
    }

    /// Records the shape of an event that the grammar of `dialect` classified as content.
    ///
    /// `text` is the answer's text in the event, if the stream's reader collects it. `generated` is
    /// the number of bytes that the model generated, if the reader counts them: the event has no
    /// shape if its gaps hold another number.
    pub(super) fn record(
        &mut self,
        dialect: Dialect,
        event: &Event<'_>,
        verdict: EventVerdict,
        text: Option<Text<'_>>,
        generated: Option<u64>,
    ) {
        self.forget();
        self.misses = self.misses.wrapping_add(1);
        let is_patient = self.misses <= PATIENCE || self.misses % RETRY == 0;
        if !is_patient || matches!(dialect, Dialect::Any | Dialect::Custom(_)) {
            return;
        }
        self.bytes.clear();
        // The buffer gets no spare capacity, because it lives as long as the stream.
        let most = (event.name.len() + event.data.len()).min(MAX_BYTES);
        self.bytes.reserve_exact(most);
        self.gaps_len = 0;
        let recorder = Recorder {
            shape: self,
            data: event.data,
            copied: 0,
            has_sequence: matches!(dialect, Dialect::OpenAiResponses),
            text,
            generated: 0,
        };
        let recorded = recorder.record(event.name);
        if recorded.is_ok_and(|bytes| generated.is_none_or(|generated| generated == bytes)) {
            self.verdict = Some(verdict);
        }
    }
}

/// Copies an event into a shape; any error means that the event has no shape.
struct Recorder<'a> {
    shape: &'a mut Shape,
    data: &'a [u8],
    /// The offset in `data` up to which the fixed parts are copied.
    copied: usize,
    has_sequence: bool,
    text: Option<Text<'a>>,
    /// The number of bytes in gaps that count as generated.
    generated: u64,
}

impl<'a> Recorder<'a> {
    /// Records the event, and returns the number of bytes in its gaps that count as generated.
    fn record(mut self, name: &[u8]) -> Scan<u64> {
        self.append(name)?;
        self.shape.name_len = self.shape.bytes.len() as u16;
        Scanner::document(self.data, |json, key| {
            if self.has_sequence && key == b"sequence_number" {
                self.sequence(json)
            } else {
                self.member(json, key)
            }
        })?;
        self.append(&self.data[self.copied..])?;
        Ok(self.generated)
    }

    /// Records a sequence number of the event as a gap; fails unless it is plain digits.
    ///
    /// An event has no shape if one of its sequence numbers is not plain digits: of two such keys
    /// the last one decides, so each must be a gap.
    fn sequence(&mut self, json: &mut Scanner<'a>) -> Scan<()> {
        let number = json.span()?;
        match leading_number(number) {
            Some((_, len)) if len == number.len() => {
                self.gap(len, json.position(), GapKind::Sequence)
            }
            _ => Err(Malformed),
        }
    }

    fn member(&mut self, json: &mut Scanner<'a>, key: &[u8]) -> Scan<()> {
        if !is_unread(key) || json.peek()? != b'"' {
            return self.value(json);
        }
        match json.text()?.map(Text::raw) {
            Some(raw) if !raw.is_empty() => {
                let kind = match self.text {
                    Some(text) if std::ptr::eq(text.raw(), raw) => GapKind::AnswerText,
                    _ if is_generated(key) => GapKind::Text,
                    _ => GapKind::Padding,
                };
                if kind != GapKind::Padding {
                    self.generated += raw.len() as u64;
                }
                self.gap(raw.len(), json.position() - 1, kind)
            }
            _ => Ok(()),
        }
    }

    fn value(&mut self, json: &mut Scanner<'a>) -> Scan<()> {
        match json.peek()? {
            b'{' => json.object(|json, key| self.member(json, key)).map(drop),
            b'[' => json.array(|json| self.value(json)).map(drop),
            _ => json.skip(),
        }
    }

    /// Adds a gap of `len` bytes that ends at the offset `end` of the data.
    fn gap(&mut self, len: usize, end: usize, kind: GapKind) -> Scan<()> {
        self.append(&self.data[self.copied..end - len])?;
        self.copied = end;
        let at = self.shape.bytes.len() as u16 - self.shape.name_len;
        let gaps_len = usize::from(self.shape.gaps_len);
        *self.shape.gaps.get_mut(gaps_len).ok_or(Malformed)? = Gap { at, kind };
        self.shape.gaps_len += 1;
        Ok(())
    }

    fn append(&mut self, part: &[u8]) -> Scan<()> {
        if self.shape.bytes.len() + part.len() > MAX_BYTES {
            return Err(Malformed);
        }
        self.shape.bytes.extend_from_slice(part);
        Ok(())
    }
}

/// Whether no grammar reads the inside of a string under this key, wherever the key stands.
fn is_unread(key: &[u8]) -> bool {
    is_generated(key) || matches!(key, b"signature" | b"obfuscation")
}

/// Reads the digits at the start of `data`: their value and their count.
///
/// The result is `None` if there is no digit, or if there are more than [`MAX_DIGITS`].
#[inline]
fn leading_number(data: &[u8]) -> Option<(u64, usize)> {
    let digits = data.iter().take(MAX_DIGITS + 1);
    let len = digits.take_while(|byte| byte.is_ascii_digit()).count();
    if len == 0 || len > MAX_DIGITS {
        return None;
    }
    let digits = data[..len].iter();
    let number = digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some((number, len))
}
