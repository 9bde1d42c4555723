//! Splits a `text/event-stream` into events, across chunks of any size.

use memchr::memchr2;

use super::event::{Event, MAX_EVENT, Unusual};
use crate::{JsonCondenser, JsonOutline};

const BOM: [u8; 3] = [0xEF, 0xBB, 0xBF];

/// The splitter of a `text/event-stream` into events, without I/O.
///
/// The events, their offsets and the [`boundary`](Self::boundary) depend on the bytes alone, never
/// on how they are cut into chunks. The work is linear in the number of bytes. An event that lies
/// in one chunk as a whole is borrowed from it and allocates nothing, unless it has several `data`
/// lines, which are joined in a reused buffer.
///
/// Between chunks the splitter keeps at most [`MAX_EVENT`](super::MAX_EVENT) bytes of
/// data. Comments and fields other than `event` and `data` are never stored.
///
/// Two forms that the standard ignores are events too, because upstreams report errors in them: a
/// field `error`, and JSON that stands between events without a field. Such an event has no blank
/// line of its own: JSON ends with the line on which it is whole. The official SDKs ignore both.
#[derive(Debug, Default)]
pub struct Splitter {
    position: u64,
    boundary: u64,
    comments: u64,
    line: SseLine,
    pending: Pending,
    /// Whether the last byte of the stream so far was a CR that ended a line.
    ///
    /// An LF directly after the CR belongs to the same line end.
    after_cr: bool,
    /// The number of bytes of a byte order mark that were read at the start of the
    /// stream.
    ///
    /// The number is 3 once the byte order mark is complete, or once it is clear that the stream
    /// has none.
    bom: u8,
}

/// The state of the line that the last chunk left unfinished.
#[derive(Clone, Copy, Debug, Default)]
enum SseLine {
    #[default]
    Start,
    /// The line broke off in its field name, of which at most five bytes, the length of
    /// `event`, are kept.
    Name { text: [u8; 5], len: u8 },
    /// The line broke off behind its colon, or in the name of a field that is not read.
    ///
    /// `first` says that the optional space behind the colon may still follow.
    Value { field: Field, first: bool },
}

impl Splitter {
    /// Creates a splitter at the start of a stream.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            position: 0,
            boundary: 0,
            comments: 0,
            line: SseLine::Start,
            pending: Pending::new(),
            after_cr: false,
            bom: 0,
        }
    }

    /// Creates a splitter for the rest of a stream from `offset` on, a boundary of the stream.
    #[must_use]
    #[doc(hidden)]
    pub fn resume(offset: u64) -> Self {
        Self {
            position: offset,
            boundary: offset,
            bom: if offset > 0 { 3 } else { 0 },
            ..Self::new()
        }
    }

    /// Reads the next bytes of the stream, and calls `on_event` for every event that they
    /// complete.
    // Without the attribute the reader of streams calls this once per chunk.
    #[inline(always)]
    pub fn push(&mut self, chunk: &[u8], mut on_event: impl FnMut(Event<'_>)) {
        let base = self.position;
        self.position += chunk.len() as u64;
        let mut borrowed = Borrowed::default();
        let mut at = if self.bom < 3 {
            self.skip_bom(chunk)
        } else {
            0
        };

        while let Some(&byte) = chunk.get(at) {
            if std::mem::take(&mut self.after_cr) && byte == b'\n' {
                if self.boundary == base + at as u64 {
                    self.boundary += 1;
                }
                at += 1;
                continue;
            }
            let rest = &chunk[at..];
            let fresh = matches!(self.line, SseLine::Start);
            if fresh && (byte == b'\n' || byte == b'\r') {
                at += 1;
                self.after_cr = byte == b'\r';
            } else {
                let Some(len) = memchr2(b'\n', b'\r', rest) else {
                    self.pending.keep(&mut borrowed);
                    self.read_part(rest);
                    break;
                };
                at += len + 1;
                self.after_cr = rest[len] == b'\r';
                let line = &rest[..len];
                let field = if fresh {
                    self.pending.read_line(line, &mut borrowed)
                } else {
                    self.read_part(line);
                    self.end_line()
                };
                if field == Field::Comment {
                    self.comments += 1;
                    if !self.pending.has_fields {
                        self.boundary = base + at as u64;
                    }
                    continue;
                }
                if field != Field::Bare || !self.pending.is_whole_bare() {
                    continue;
                }
            }
            let end = base + at as u64;
            if self.pending.dispatch(&mut borrowed, end, &mut on_event) {
                self.boundary = end;
            }
        }
        self.pending.keep(&mut borrowed);
    }

    /// Ends the stream, and calls `on_event` for its last event if the blank line behind that is
    /// missing and `is_whole` accepts its data.
    ///
    /// The last line may lack its end, too, if it is a `data` line. Of any other line the rest may
    /// be lost, and of the event with it. Call this method at a clean end of the stream's
    /// transport, once.
    pub(crate) fn finish(
        &mut self,
        is_whole: impl FnOnce(&[u8]) -> bool,
        mut on_event: impl FnMut(Event<'_>),
    ) {
        let ends_in_data = match self.line {
            SseLine::Start => true,
            SseLine::Name { .. } => false,
            SseLine::Value { field, .. } => field.has_data(),
        };
        let pending = &mut self.pending;
        if matches!(self.line, SseLine::Value { field, .. } if field == Field::Error) {
            pending.end_error();
        }
        if !ends_in_data || !pending.has_data {
            return;
        }
        let has_all = match (&pending.condenser, pending.form) {
            (Some(condenser), _) => condenser.is_whole(),
            (None, EventForm::Bare) => pending.is_whole_bare(),
            // Whatever its value, the field reports an error.
            (None, EventForm::Error) => true,
            (None, _) => is_whole(&pending.data),
        };
        if has_all {
            self.line = SseLine::Start;
            self.boundary = self.position;
            let _ = pending.dispatch(&mut Borrowed::default(), self.boundary, &mut on_event);
        }
    }

    /// The number of the stream's bytes that were read so far.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// The number of comment lines in the stream so far.
    #[must_use]
    pub const fn comments(&self) -> u64 {
        self.comments
    }

    /// The greatest offset so far at which the stream may be cut.
    ///
    /// Bytes that are appended there parse as a new event. The boundary lies at the start of the
    /// stream, behind a byte order mark, behind a blank line, or behind a comment line while no
    /// field line is pending. After such a line that ends in CRLF, the boundary lies behind the CR
    /// until the LF is read.
    #[must_use]
    pub const fn boundary(&self) -> u64 {
        self.boundary
    }

    /// Skips the byte order mark at the start of the stream.
    ///
    /// The result is the number of bytes of `chunk` that were read.
    fn skip_bom(&mut self, chunk: &[u8]) -> usize {
        for (at, &byte) in chunk.iter().enumerate() {
            if byte != BOM[usize::from(self.bom)] {
                if self.bom > 0 {
                    // The bytes so far are the beginning of an unknown field's name, not of a
                    // byte order mark.
                    self.begin(Field::Other);
                }
                self.bom = 3;
                return at;
            }
            self.bom += 1;
            if self.bom == 3 {
                self.boundary = 3;
                return at + 1;
            }
        }
        chunk.len()
    }

    /// Reads a part of a line that spans several chunks.
    fn read_part(&mut self, mut part: &[u8]) {
        if matches!(self.line, SseLine::Start) {
            self.line = SseLine::Name {
                text: [0; 5],
                len: 0,
            };
        }
        while let SseLine::Name { text, len } = &mut self.line {
            let Some((&byte, rest)) = part.split_first() else {
                return;
            };
            part = rest;
            let (start, known) = (*text, usize::from(*len));
            let name = &start[..known];
            let field = if byte == b':' {
                Field::of(name, true)
            } else if let Some(slot) = text.get_mut(known) {
                *slot = byte;
                *len += 1;
                continue;
            } else {
                Field::Other
            };
            if field == Field::Other && self.pending.takes_bare(name, byte) {
                self.begin_bare(name);
                self.pending.append_bare(&[byte]);
            } else {
                self.begin(field);
            }
        }
        if let SseLine::Value { field, first } = &mut self.line {
            if *first && !part.is_empty() {
                *first = false;
                part = part.strip_prefix(b" ").unwrap_or(part);
            }
            match field {
                Field::Data | Field::Error => self.pending.append(part),
                Field::Bare => self.pending.append_bare(part),
                Field::Event => self.pending.append_name(part),
                Field::Other | Field::Comment => {}
            }
        }
    }

    /// Ends a line that spans several chunks.
    fn end_line(&mut self) -> Field {
        let field = match self.line {
            SseLine::Start => Field::Other,
            SseLine::Name { text, len } => {
                let name = &text[..usize::from(len)];
                match Field::of(name, false) {
                    Field::Other if self.pending.takes_bare(name, b'\n') => {
                        self.begin_bare(name);
                        Field::Bare
                    }
                    field => {
                        self.begin(field);
                        field
                    }
                }
            }
            SseLine::Value { field, .. } => field,
        };
        if field == Field::Error {
            self.pending.end_error();
        }
        self.line = SseLine::Start;
        field
    }

    /// Ends the field name of the line in progress; the field's value follows.
    fn begin(&mut self, field: Field) {
        self.pending.begin(field);
        self.line = SseLine::Value { field, first: true };
    }

    /// Begins a line of JSON without a field; `start` is what was read of it.
    fn begin_bare(&mut self, start: &[u8]) {
        self.pending.begin(Field::Bare);
        self.pending.append_bare(start);
        let (field, first) = (Field::Bare, false);
        self.line = SseLine::Value { field, first };
    }
}

/// The most bytes of an event's name that are kept; a longer name is cut.
const MAX_NAME: usize = 256;

/// The capacity in bytes above which a buffer is freed at the end of its event, so that an idle
/// stream stays small.
const KEPT: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Field {
    Data,
    Event,
    /// An error that some upstreams write as a field of its own.
    Error,
    Other,
    Comment,
    /// A line of JSON without a field.
    Bare,
}

/// The form in which the event in progress stands in the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum EventForm {
    #[default]
    Fields,
    Error,
    Bare,
}

/// The part of the event in progress that was copied out of the chunks.
#[derive(Debug, Default)]
struct Pending {
    name: Vec<u8>,
    data: Vec<u8>,
    has_fields: bool,
    has_data: bool,
    /// Whether the event is oversized, or has another form than fields.
    is_unusual: bool,
    form: EventForm,
    /// The place in the data at which a field `error` begins.
    error_at: usize,
    /// What is kept of data longer than `MAX_EVENT`.
    condenser: Option<Box<JsonCondenser>>,
    /// Follows JSON without a field, to find its end.
    outline: Option<Box<JsonOutline>>,
}

/// The fields of the event in progress that the current chunk contains whole.
#[derive(Debug, Default)]
struct Borrowed<'a> {
    name: Option<&'a [u8]>,
    data: Option<&'a [u8]>,
}

impl Field {
    /// Returns the field of a line, by the field's name.
    ///
    /// A line without a colon is a field with an empty value, so an empty name is a
    /// comment only if a colon follows.
    fn of(name: &[u8], colon: bool) -> Self {
        match name {
            b"data" => Self::Data,
            b"event" => Self::Event,
            b"error" if colon => Self::Error,
            b"" if colon => Self::Comment,
            _ => Self::Other,
        }
    }

    const fn has_data(self) -> bool {
        matches!(self, Self::Data | Self::Error | Self::Bare)
    }
}

impl Pending {
    const fn new() -> Self {
        Self {
            name: Vec::new(),
            data: Vec::new(),
            has_fields: false,
            has_data: false,
            is_unusual: false,
            form: EventForm::Fields,
            error_at: 0,
            condenser: None,
            outline: None,
        }
    }

    /// Reads a line of the stream that lies in the chunk as a whole.
    #[inline]
    fn read_line<'a>(&mut self, line: &'a [u8], borrowed: &mut Borrowed<'a>) -> Field {
        if let Some(value) = value_of(line, b"data") {
            if self.has_data || value.len() > MAX_EVENT {
                return self.read_more_data(value, borrowed);
            }
            self.has_fields = true;
            self.has_data = true;
            borrowed.data = Some(value);
            Field::Data
        } else if let Some(value) = value_of(line, b"event") {
            if self.has_data {
                return self.read_late_name(value, borrowed);
            }
            self.has_fields = true;
            self.name.clear();
            borrowed.name = Some(&value[..value.len().min(MAX_NAME)]);
            Field::Event
        } else if line.first() == Some(&b':') {
            Field::Comment
        } else {
            self.read_other(line, borrowed)
        }
    }

    /// Reads the `event` line behind an event's data, or behind what began like JSON.
    #[cold]
    #[inline(never)]
    fn read_late_name<'a>(&mut self, value: &'a [u8], borrowed: &mut Borrowed<'a>) -> Field {
        self.begin(Field::Event);
        borrowed.name = Some(&value[..value.len().min(MAX_NAME)]);
        Field::Event
    }

    /// Reads a `data` line of an event that is not one short line of data.
    #[cold]
    #[inline(never)]
    fn read_more_data<'a>(&mut self, value: &'a [u8], borrowed: &mut Borrowed<'a>) -> Field {
        self.keep(borrowed);
        self.begin(Field::Data);
        self.append(value);
        Field::Data
    }

    /// Reads a line that is not a comment and has neither data nor an event's name.
    #[cold]
    #[inline(never)]
    fn read_other<'a>(&mut self, line: &'a [u8], borrowed: &mut Borrowed<'a>) -> Field {
        if let Some(value) = value_of(line, b"error").filter(|_| line.len() > 5) {
            self.keep(borrowed);
            self.begin(Field::Error);
            self.append(value);
            self.end_error();
            Field::Error
        } else if line
            .first()
            .is_some_and(|first| self.takes_bare(line, *first))
        {
            self.begin(Field::Bare);
            self.append_bare(line);
            Field::Bare
        } else {
            self.begin(Field::Other);
            Field::Other
        }
    }

    /// Ends a field `error`; one without a value says nothing.
    fn end_error(&mut self) {
        let value = self.data.get(self.error_at..).unwrap_or_default();
        if self.condenser.is_none() && matches!(value.trim_ascii(), b"" | b"null") {
            self.data.truncate(self.error_at);
            self.form = EventForm::Fields;
            self.is_unusual = false;
            self.has_data = !self.data.is_empty();
        }
    }

    /// Whether a line that is not a field, comment or `other` continues or begins JSON without a
    /// field. `start` is the beginning of the line, which may be empty, and `next` follows it.
    fn takes_bare(&self, start: &[u8], next: u8) -> bool {
        let first = start.first().unwrap_or(&next);
        self.form == EventForm::Bare || !self.has_fields && matches!(first, b'{' | b'[')
    }

    /// Whether the event in progress is JSON without a field, and complete.
    #[cold]
    fn is_whole_bare(&self) -> bool {
        self.form == EventForm::Bare && self.outline.as_ref().is_some_and(|it| it.is_whole())
    }

    #[inline(always)]
    fn begin(&mut self, field: Field) {
        if self.is_unusual {
            self.abandon_bare(field);
        }
        self.has_fields |= field != Field::Comment;
        match field {
            Field::Data if self.has_data => self.append(b"\n"),
            Field::Data => self.has_data = true,
            Field::Event => self.name.clear(),
            Field::Error | Field::Bare => self.begin_unusual(field),
            Field::Other | Field::Comment => {}
        }
    }

    /// Forgets what began like JSON without a field, and is none.
    #[cold]
    fn abandon_bare(&mut self, field: Field) {
        if self.form == EventForm::Bare && !matches!(field, Field::Bare | Field::Comment) {
            *self = Self::new();
        }
    }

    #[cold]
    fn begin_unusual(&mut self, field: Field) {
        if field == Field::Error && self.has_data {
            self.append(b"\n");
        }
        self.has_data = true;
        self.is_unusual = true;
        self.form = match field {
            Field::Error => EventForm::Error,
            _ => EventForm::Bare,
        };
        self.error_at = self.data.len();
    }

    fn append(&mut self, part: &[u8]) {
        if let Some(condenser) = &mut self.condenser {
            condenser.push(part);
        } else if self.data.len() + part.len() > MAX_EVENT {
            self.condense(part);
        } else {
            self.data.extend_from_slice(part);
        }
    }

    #[cold]
    fn condense(&mut self, part: &[u8]) {
        let mut condenser = Box::<JsonCondenser>::default();
        condenser.push(&self.data);
        condenser.push(part);
        self.data = Vec::new();
        self.is_unusual = true;
        self.condenser = Some(condenser);
    }

    fn append_bare(&mut self, part: &[u8]) {
        self.append(part);
        self.outline.get_or_insert_default().push(part);
    }

    fn append_name(&mut self, part: &[u8]) {
        let room = MAX_NAME - self.name.len();
        self.name.extend_from_slice(&part[..part.len().min(room)]);
    }

    /// Copies the borrowed fields: the event continues in another chunk, or with another `data`
    /// line.
    #[inline(always)]
    fn keep(&mut self, borrowed: &mut Borrowed<'_>) {
        if let Some(data) = borrowed.data.take() {
            self.append(data);
        }
        if let Some(name) = borrowed.name.take() {
            self.append_name(name);
        }
    }

    #[inline(always)]
    fn dispatch(
        &mut self,
        borrowed: &mut Borrowed<'_>,
        end: u64,
        on_event: &mut impl FnMut(Event<'_>),
    ) -> bool {
        let name = borrowed.name.take();
        let data = borrowed.data.take();
        let unusual;
        let event = if self.is_unusual {
            if self.form == EventForm::Bare && !self.is_whole_bare() {
                // A blank line within JSON.
                return false;
            }
            self.keep(&mut Borrowed { name, data });
            unusual = self.take_unusual();
            Some(unusual.at(end))
        } else {
            self.has_data.then(|| Event {
                name: name.unwrap_or(&self.name),
                data: data.unwrap_or(&self.data),
                end,
                oversized: false,
                unusual: None,
            })
        };
        if let Some(event) = event {
            on_event(event);
        }
        self.clear();
        true
    }

    #[inline(always)]
    fn clear(&mut self) {
        self.has_fields = false;
        self.has_data = false;
        release(&mut self.name);
        release(&mut self.data);
    }

    /// Takes an event that is oversized, or in a form that SDKs ignore.
    #[cold]
    fn take_unusual(&mut self) -> UnusualEvent {
        self.is_unusual = false;
        self.outline = None;
        let form = std::mem::take(&mut self.form);
        let name = match form {
            EventForm::Error => b"error".to_vec(),
            EventForm::Fields => std::mem::take(&mut self.name),
            EventForm::Bare => Vec::new(),
        };
        UnusualEvent {
            name,
            data: std::mem::take(&mut self.data),
            condenser: self.condenser.take(),
            bare: form != EventForm::Fields,
        }
    }
}

/// An event that is oversized, or in a form that SDKs ignore.
struct UnusualEvent {
    name: Vec<u8>,
    data: Vec<u8>,
    condenser: Option<Box<JsonCondenser>>,
    bare: bool,
}

impl UnusualEvent {
    #[cold]
    fn at(&self, end: u64) -> Event<'_> {
        Event {
            name: &self.name,
            data: match &self.condenser {
                Some(condenser) if condenser.is_whole() => condenser.written(),
                Some(_) => &[],
                None => &self.data,
            },
            end,
            oversized: self.condenser.is_some(),
            unusual: match &self.condenser {
                _ if self.bare => Some(Unusual::Bare),
                Some(condenser) => Some(Unusual::Elided(condenser.elided())),
                None => None,
            },
        }
    }
}

/// Returns the value of `line`, if the line's field is `name`.
#[inline]
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    match line.strip_prefix(name)? {
        [] => Some(&[]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}

fn release(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEPT {
        *buffer = Vec::new();
    } else {
        buffer.clear();
    }
}
