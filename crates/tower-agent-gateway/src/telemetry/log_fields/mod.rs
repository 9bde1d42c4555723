//! The fields of a line of the log.

#[cfg(test)]
mod tests;

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::{RecordFields, VisitOutput},
    fmt::{
        FormatFields,
        format::{DefaultVisitor, Writer},
    },
};

/// Writes fields as tracing-subscriber does by default, `name=value` between spaces.
///
/// The default formats each value with `Debug`, behind several writers. In a log without colors,
/// numbers, and texts that need no escape, are copied here.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogFields;

impl<'writer> FormatFields<'writer> for LogFields {
    fn format_fields<R: RecordFields>(&self, line: Writer<'writer>, fields: R) -> fmt::Result {
        let mut fields_of = FieldWriter {
            line,
            is_first: true,
            result: Ok(()),
        };
        fields.record(&mut fields_of);
        fields_of.result
    }
}

struct FieldWriter<'writer> {
    line: Writer<'writer>,
    is_first: bool,
    /// The first error; no field is written after it.
    result: fmt::Result,
}

impl FieldWriter<'_> {
    /// Whether the default writes a field of this name as `name=value`, with nothing between.
    fn is_plain(&self, field: &Field) -> bool {
        let name = field.name();
        !self.line.has_ansi_escapes() && name != "message" && !name.starts_with("r#")
    }

    fn write_plain(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        let is_first = std::mem::replace(&mut self.is_first, false);
        let line = &mut self.line;
        let mut write = || {
            if !is_first {
                line.write_char(' ')?;
            }
            line.write_str(field.name())?;
            line.write_char('=')
        };
        self.result = self
            .result
            .and_then(|()| write())
            .and_then(|()| value(&mut self.line));
    }

    fn write_by_default(&mut self, record: impl FnOnce(&mut DefaultVisitor<'_>)) {
        if self.result.is_ok() {
            let is_first = std::mem::replace(&mut self.is_first, false);
            let mut visitor = DefaultVisitor::new(self.line.by_ref(), is_first);
            record(&mut visitor);
            self.result = visitor.finish();
        }
    }
}

impl Visit for FieldWriter<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let is_copied = |byte: u8| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if !self.is_plain(field) || !value.bytes().all(is_copied) {
            return self.write_by_default(|visitor| visitor.record_str(field, value));
        }
        self.write_plain(field, |line| {
            line.write_char('"')?;
            line.write_str(value)?;
            line.write_char('"')
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if !self.is_plain(field) {
            return self.write_by_default(|visitor| visitor.record_u64(field, value));
        }
        let mut digits = [b'0'; 20];
        let (mut at, mut rest) = (digits.len(), value);
        while rest > 0 || at == digits.len() {
            at -= 1;
            // A digit is less than 10.
            digits[at] += (rest % 10) as u8;
            rest /= 10;
        }
        self.write_plain(field, |line| {
            line.write_str(std::str::from_utf8(&digits[at..]).map_err(|_| fmt::Error)?)
        });
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match self.is_plain(field) {
            true => self.write_plain(field, |line| write!(line, "{value:?}")),
            false => self.write_by_default(|visitor| visitor.record_debug(field, value)),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.write_by_default(|visitor| visitor.record_error(field, value));
    }
}
