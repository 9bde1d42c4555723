use std::time::Duration;

use bytes::Bytes;

use super::{keep_alive::KeepAlive, layer::ProgressLayer};
use crate::{
    llm::sse::Splitter,
    supervise::{ResponseMarks, ShiftedMarks},
};

const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// A stream of events on its way out: where comments may stand in it, and by how
/// much they shift what comes after them.
#[derive(Debug)]
pub(super) struct Outlet {
    splitter: Splitter,
    /// What layers further out see, in offsets of what they are handed.
    marks: ShiftedMarks,
    comments: bool,
    /// The last byte was a CR, whose LF may be on its way.
    after_cr: bool,
    keep_alive: Option<KeepAlive>,
}

impl Outlet {
    /// None if nothing is ever inserted.
    pub(super) fn new(layer: &ProgressLayer) -> Option<Box<Self>> {
        let inserts = layer.comments || layer.keep_alive.is_some();
        inserts.then(|| Self::early(layer))
    }

    /// One for a stream that is not known yet.
    pub(super) fn early(layer: &ProgressLayer) -> Box<Self> {
        Box::new(Self {
            splitter: Splitter::new(),
            marks: ShiftedMarks::new(),
            comments: layer.comments,
            after_cr: false,
            keep_alive: layer.keep_alive.map(KeepAlive::new),
        })
    }

    pub(super) const fn judged(&self) -> &ResponseMarks {
        self.marks.judged()
    }

    /// The stream's own bytes are handed on.
    pub(super) fn pass(&mut self, data: &Bytes, judged: Option<&ResponseMarks>) {
        self.splitter.push(data, |_| {});
        if let Some(last) = data.last() {
            self.after_cr = *last == b'\r';
        }
        self.sent();
        if let Some(inner) = judged {
            self.marks.follow(inner, self.splitter.position());
        }
    }

    /// Whether what was handed on ends with an event.
    const fn is_between(&self) -> bool {
        !self.after_cr && self.splitter.boundary() == self.splitter.position()
    }

    /// There is nothing to hand on at `now`, and the stream is not over. Answers
    /// what to insert: the notice, if there is one, else a keep-alive if it is
    /// time.
    pub(super) fn wait(&mut self, notice: Option<&str>, now: Duration) -> Option<Bytes> {
        if !self.is_between() {
            return None;
        }
        let due = self.keep_alive.as_mut().is_some_and(|it| it.wait(now));
        let comment = match notice.filter(|_| self.comments) {
            Some(text) => comment(text),
            None if due => Bytes::from_static(KEEP_ALIVE),
            None => return None,
        };
        self.marks.insert(comment.len() as u64);
        self.sent();
        Some(comment)
    }

    /// When to look again; not within an event, whose end wakes.
    pub(super) fn next(&self) -> Option<Duration> {
        let keep_alive = self.keep_alive.as_ref().filter(|_| self.is_between());
        keep_alive?.next()
    }

    fn sent(&mut self) {
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.sent();
        }
    }
}

/// A text as a comment of one line.
fn comment(text: &str) -> Bytes {
    let line = text.replace(['\r', '\n'], " ");
    format!(": {line}\n\n").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_one_line_whatever_the_text() {
        assert_eq!(comment("a\r\ndata: b\nc"), ": a  data: b c\n\n");
    }
}
