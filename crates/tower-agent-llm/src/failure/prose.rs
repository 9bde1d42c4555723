//! Looks for phrases in the prose of error messages, and tells quotations.

/// Whether `text` contains `phrase`, in any letter case.
pub(super) fn has(text: &str, phrase: &str) -> bool {
    position(text, phrase).is_some()
}

/// The position of the first `phrase` in `text`, in any letter case.
pub(super) fn position(text: &str, phrase: &str) -> Option<usize> {
    let mut windows = text.as_bytes().windows(phrase.len());
    windows.position(|window| window.eq_ignore_ascii_case(phrase.as_bytes()))
}

/// Returns the rest of `text` behind the first `phrase`, in any letter case.
#[cfg(test)]
pub(super) fn after<'a>(text: &'a str, phrase: &str) -> Option<&'a str> {
    text.get(position(text, phrase)? + phrase.len()..)
}

/// The position of the first `phrase` in `text` outside of quotation marks, in any letter case.
pub(super) fn find_unquoted(text: &str, phrase: &str) -> Option<usize> {
    let mut from = 0;
    let places = std::iter::from_fn(|| {
        let at = from + position(text.get(from..)?, phrase)?;
        from = at + phrase.len();
        Some(at)
    });
    let mut places = places;
    places.find(|at| !is_quoted(text, *at))
}

/// Whether `text` begins with `start`, in any letter case.
pub(super) fn starts(text: &str, start: &str) -> bool {
    let head = text.as_bytes().get(..start.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(start.as_bytes()))
}

/// Whether the byte at `at` stands inside of quotation marks.
///
/// Double quotes and backticks quote from one to the next. A single quote opens behind a border of
/// words and closes before one, so that an apostrophe quotes nothing. A quotation that is not
/// closed goes on to the end.
pub(super) fn is_quoted(text: &str, at: usize) -> bool {
    let mut open = None;
    let mut before = None;
    let mut chars = text.char_indices().peekable();
    while let Some((index, char)) = chars.next() {
        if index >= at {
            return open.is_some();
        }
        let next = chars.peek().map(|&(_, next)| next);
        let is_border = |char: Option<char>| char.is_none_or(|char| !char.is_alphanumeric());
        open = match (open, char) {
            (None, '"' | '`') => Some(char),
            (None, '\u{201c}') => Some('\u{201d}'),
            (None, '\u{ab}') => Some('\u{bb}'),
            (None, '\u{2018}') if is_border(before) => Some('\u{2019}'),
            (None, '\'') if is_border(before) && next.is_some_and(|next| next != ' ') => Some('\''),
            (Some('\''), '\'') if is_border(next) => None,
            (Some('\''), _) => open,
            (Some(close), char) if char == close => None,
            _ => open,
        };
        before = Some(char);
    }
    open.is_some()
}
