//! The event of a stream that is in progress, collected from its lines.

use super::event::{Event, MAX_EVENT};

/// The longest name of an event that is kept, in bytes; known names are much shorter.
const MAX_NAME: usize = 256;

/// The size in bytes above which a buffer is freed after its event, so that an idle
/// stream stays small.
const KEPT: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Field {
    Data,
    Event,
    Other,
    Comment,
}

/// The part of the event in progress that was copied from earlier chunks.
#[derive(Debug, Default)]
pub(super) struct Pending {
    name: Vec<u8>,
    data: Vec<u8>,
    pub(super) has_fields: bool,
    has_data: bool,
    oversized: bool,
}

/// The fields of the event in progress that the current chunk contains whole.
#[derive(Debug, Default)]
pub(super) struct Borrowed<'a> {
    name: Option<&'a [u8]>,
    data: Option<&'a [u8]>,
}

impl Field {
    /// Returns the field of a line, by the field's name.
    ///
    /// A line without a colon is a field with an empty value, so an empty name is a
    /// comment only if a colon follows.
    pub(super) fn of(name: &[u8], colon: bool) -> Self {
        match name {
            b"data" => Self::Data,
            b"event" => Self::Event,
            b"" if colon => Self::Comment,
            _ => Self::Other,
        }
    }
}

impl Pending {
    pub(super) const fn new() -> Self {
        Self {
            name: Vec::new(),
            data: Vec::new(),
            has_fields: false,
            has_data: false,
            oversized: false,
        }
    }

    /// Reads a line of the stream that lies in the chunk as a whole.
    #[inline]
    pub(super) fn read_line<'a>(&mut self, line: &'a [u8], borrowed: &mut Borrowed<'a>) -> Field {
        if let Some(value) = value_of(line, b"data") {
            if self.has_data {
                self.keep(borrowed);
                self.begin(Field::Data);
                self.append(value);
            } else {
                self.begin(Field::Data);
                self.oversized = value.len() > MAX_EVENT;
                borrowed.data = Some(value);
            }
            Field::Data
        } else if let Some(value) = value_of(line, b"event") {
            self.begin(Field::Event);
            borrowed.name = Some(&value[..value.len().min(MAX_NAME)]);
            Field::Event
        } else if line.first() == Some(&b':') {
            Field::Comment
        } else {
            self.begin(Field::Other);
            Field::Other
        }
    }

    pub(super) fn begin(&mut self, field: Field) {
        self.has_fields |= field != Field::Comment;
        match field {
            Field::Data if self.has_data => self.append(b"\n"),
            Field::Data => self.has_data = true,
            Field::Event => self.name.clear(),
            Field::Other | Field::Comment => {}
        }
    }

    pub(super) fn append(&mut self, part: &[u8]) {
        if self.oversized || self.data.len() + part.len() > MAX_EVENT {
            self.oversized = true;
            self.data = Vec::new();
        } else {
            self.data.extend_from_slice(part);
        }
    }

    pub(super) fn append_name(&mut self, part: &[u8]) {
        let room = MAX_NAME - self.name.len();
        self.name.extend_from_slice(&part[..part.len().min(room)]);
    }

    /// Copies the borrowed fields, because the event continues in the next chunk.
    pub(super) fn keep(&mut self, borrowed: &mut Borrowed<'_>) {
        if let Some(data) = borrowed.data.take() {
            self.append(data);
        }
        if let Some(name) = borrowed.name.take() {
            self.append_name(name);
        }
    }

    #[inline]
    pub(super) fn dispatch(
        &mut self,
        borrowed: &mut Borrowed<'_>,
        end: u64,
        on_event: &mut impl FnMut(Event<'_>),
    ) {
        let name = borrowed.name.take();
        let data = borrowed.data.take();
        if self.has_data {
            on_event(Event {
                name: name.unwrap_or(&self.name),
                data: if self.oversized {
                    &[]
                } else {
                    data.unwrap_or(&self.data)
                },
                end,
                oversized: self.oversized,
            });
        }
        self.has_fields = false;
        self.has_data = false;
        self.oversized = false;
        release(&mut self.name);
        release(&mut self.data);
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
