use std::{borrow::Cow, ops::Range};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use memchr::memmem;

/// The `model` and `stream` of a request that is a form (`multipart/form-data`), and the position of
/// `model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormFields {
    boundary: String,
    /// The first byte of the first part's boundary.
    start: usize,
    model: Option<(Range<usize>, String)>,
    stream: bool,
}

/// The most bytes of the headers of one part.
const MAX_HEADERS: usize = 8 * 1024;

/// The most parts of a form.
const MAX_PARTS: usize = 1024;

/// Whether the headers' content type is one of `multipart`.
pub fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map(HeaderValue::as_bytes)
        .and_then(|kind| kind.split_first_chunk());
    kind.is_some_and(|(kind, _): (&[u8; 10], _)| kind.eq_ignore_ascii_case(b"multipart/"))
}

impl FormFields {
    /// Reads the form in `body`, of which only the headers of parts are looked at, and the values of
    /// `model` and `stream`.
    ///
    /// # Errors
    ///
    /// Why the form cannot be read, as a clause about it.
    pub fn read(headers: &HeaderMap, body: &[u8]) -> Result<Self, &'static str> {
        let boundary = boundary(headers).ok_or("its content type names no boundary")?;
        let delimiter = format!("\r\n--{boundary}");
        let finder = memmem::Finder::new(&delimiter);
        // The first boundary may be at the start of the body, without a line break before it.
        let start = match body.starts_with(&delimiter.as_bytes()[2..]) {
            true => 0,
            false => 2 + finder.find(body).ok_or("it has no part")?,
        };
        let mut fields = Self {
            start,
            model: None,
            stream: false,
            boundary,
        };
        let mut at = start + delimiter.len() - 2;
        for _ in 0..MAX_PARTS {
            let rest = &body[at..];
            if rest.starts_with(b"--") {
                return Ok(fields);
            }
            // White space may follow a boundary.
            let line = memmem::find(rest, b"\r\n").ok_or("it ends in a part's head")?;
            if !rest[..line].iter().all(|byte| b" \t".contains(byte)) {
                return Err("a boundary in it does not end its line");
            }
            let head = at + line;
            let end = finder
                .find(&body[head..])
                .ok_or("it has no last boundary")?;
            let part = &body[head..head + end];
            let most = part.len().min(MAX_HEADERS);
            // A part without headers has no name.
            let value = memmem::find(&part[..most], b"\r\n\r\n");
            let value = value.ok_or("the head of a part in it has no end, or is too long")?;
            fields.take(&part[..value], head + value + 4..head + end, body)?;
            at = head + end + delimiter.len();
        }
        Err("it has too many parts")
    }

    fn take(&mut self, head: &[u8], at: Range<usize>, body: &[u8]) -> Result<(), &'static str> {
        match name(head)?.as_deref() {
            // Readers differ in which of two counts, so the upstream could use another model.
            Some("model") if self.model.is_some() => Err("it has a second field `model`"),
            Some("model") if is_encoded(head) => Err("its field `model` is encoded"),
            Some("model") => {
                let text = body.get(at.clone()).unwrap_or_default();
                let text =
                    std::str::from_utf8(text).map_err(|_| "its field `model` is not a text")?;
                self.model = Some((at, text.to_owned()));
                Ok(())
            }
            Some("stream") => {
                self.stream = body.get(at).is_some_and(|value| value == b"true");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The model that the form names, if any.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|(_, model)| &**model)
    }

    /// Whether the form asks for a stream.
    #[must_use]
    pub const fn stream(&self) -> bool {
        self.stream
    }

    /// Returns `body` with `model` as the value of its field `model`, as three consecutive parts.
    ///
    /// A form without the field gets it as its first part. No other byte changes, and none is copied.
    pub fn splice(&self, body: &Bytes, model: &str) -> [Bytes; 3] {
        match &self.model {
            Some((_, known)) if known == model => [body.clone(), Bytes::new(), Bytes::new()],
            Some((at, _)) => [
                body.slice(..at.start),
                Bytes::copy_from_slice(model.as_bytes()),
                body.slice(at.end..),
            ],
            None => {
                let boundary = &self.boundary;
                let disposition = "content-disposition: form-data; name=\"model\"";
                let part = format!("--{boundary}\r\n{disposition}\r\n\r\n{model}\r\n");
                [
                    body.slice(..self.start),
                    part.into(),
                    body.slice(self.start..),
                ]
            }
        }
    }
}

/// The boundary that the content type names.
fn boundary(headers: &HeaderMap) -> Option<String> {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).into_iter();
    let kind = kinds
        .next()?
        .to_str()
        .ok()
        .filter(|_| kinds.next().is_none())?;
    let (essence, parameters) = kind.split_once(';')?;
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let boundary = parameter(parameters, "boundary")?;
    let fits = (1..=70).contains(&boundary.len()) && boundary.is_ascii();
    fits.then_some(boundary)
}

/// The name of the field that the head of a part describes, if it has one.
///
/// Where readers could find different names, the form is refused: one of them may be `model`.
fn name(head: &[u8]) -> Result<Option<String>, &'static str> {
    let mut all = fields(head, "content-disposition");
    let Some(value) = all.next() else {
        return Ok(None);
    };
    let parameters = value
        .split_once(';')
        .map_or("", |(_, parameters)| parameters);
    if all.next().is_some() || parameter(parameters, "name*").is_some() {
        return Err("the name of a field in it is ambiguous");
    }
    Ok(parameter(parameters, "name"))
}

/// Whether the value of a part is in another form than its text.
fn is_encoded(head: &[u8]) -> bool {
    fields(head, "content-transfer-encoding").any(|encoding| {
        let plain = ["7bit", "8bit", "binary"];
        !plain.iter().any(|it| encoding.eq_ignore_ascii_case(it))
    })
}

/// The values of a header in the head of a part.
fn fields<'a>(head: &'a [u8], name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    let lines = head.split(|byte| *byte == b'\n');
    lines.filter_map(move |line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let known = line[..colon].trim_ascii();
        let is_it = known.eq_ignore_ascii_case(name.as_bytes());
        is_it.then(|| String::from_utf8_lossy(line[colon + 1..].trim_ascii()))
    })
}

/// The value of a parameter in a list such as `; name="model"; filename=a`; none if it has two.
fn parameter(mut list: &str, name: &str) -> Option<String> {
    let mut found = None;
    while let Some((known, rest)) = list.split_once('=') {
        let (value, rest) = match rest.trim_start().strip_prefix('"') {
            Some(quoted) => unquoted(quoted)?,
            None => {
                let end = rest.find(';').unwrap_or(rest.len());
                (rest[..end].trim().to_owned(), &rest[end..])
            }
        };
        let known = known.trim_matches([';', ' ', '\t']);
        if known.eq_ignore_ascii_case(name) && found.replace(value).is_some() {
            return None;
        }
        list = rest;
    }
    found
}

/// Reads a quoted text from behind its opening quote: the text, and what follows it.
fn unquoted(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((text, &quoted[at + 1..])),
            '\\' => text.push(characters.next()?.1),
            other => text.push(other),
        }
    }
    None
}
