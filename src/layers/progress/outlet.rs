//! Inserts notices and keep-alive comments between the events of a stream.

use std::time::Duration;

use bytes::Bytes;

use super::layer::ProgressLayer;
use crate::{
    llm::sse::Splitter,
    supervise::{ResponseMarks, ShiftedMarks},
};

const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Decides where and when comments are inserted into an event stream.
///
/// The outlet also shifts the offsets of the marks that outer layers get by the inserted bytes.
#[derive(Debug)]
pub(super) struct Outlet {
    splitter: Splitter,
    /// The marks for outer layers, as offsets in the stream with the inserted comments.
    marks: ShiftedMarks,
    comments: bool,
    /// Whether the last byte of the stream was a CR, which the next byte may complete to CR LF.
    after_cr: bool,
    keep_alive: Option<KeepAlive>,
}

impl Outlet {
    /// Makes the outlet of a layer; `None` if the layer inserts neither kind of comment.
    pub(super) fn new(layer: &ProgressLayer) -> Option<Box<Self>> {
        let inserts = layer.comments || layer.keep_alive.is_some();
        inserts.then(|| Self::early(layer))
    }

    /// Makes the outlet for the response after an early head, which always has one.
    pub(super) fn early(layer: &ProgressLayer) -> Box<Self> {
        Box::new(Self {
            splitter: Splitter::new(),
            marks: ShiftedMarks::new(),
            comments: layer.comments,
            after_cr: false,
            keep_alive: layer.keep_alive.map(KeepAlive::new),
        })
    }

    pub(super) const fn marks(&self) -> &ResponseMarks {
        self.marks.judged()
    }

    /// Observes bytes of the inner stream that the caller gets, and restarts the keep-alive clock.
    pub(super) fn pass(&mut self, data: &Bytes, marks: Option<&ResponseMarks>) {
        self.splitter.push(data, |_| {});
        if let Some(last) = data.last() {
            self.after_cr = *last == b'\r';
        }
        self.sent();
        if let Some(inner) = marks {
            self.marks.follow(inner, self.splitter.position());
        }
    }

    /// Whether the bytes that the caller got so far end exactly between two events.
    const fn is_between(&self) -> bool {
        !self.after_cr && self.splitter.boundary() == self.splitter.position()
    }

    /// Handles a `Pending` at `now`, and returns the comment to insert, if any.
    ///
    /// Within an event the result is `None`. A notice goes before a keep-alive that is due. The
    /// stream must not have ended.
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

    /// The time at which the next keep-alive is due.
    ///
    /// The result is `None` within an event, where nothing may be inserted: the rest of the event
    /// wakes the task anyway.
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

/// Formats `text` as a comment of an event stream; line breaks in it become spaces.
fn comment(text: &str) -> Bytes {
    let line = text.replace(['\r', '\n'], " ");
    format!(": {line}\n\n").into()
}

/// The clock of keep-alives: the time of waiting since the caller last got bytes.
#[derive(Debug)]
pub(super) struct KeepAlive {
    every: Duration,
    /// The time of the first `Pending` since the caller got bytes; `None` before that `Pending`.
    since: Option<Duration>,
}

impl KeepAlive {
    pub(super) const fn new(every: Duration) -> Self {
        Self { every, since: None }
    }

    /// Records that the caller gets bytes; the next `Pending` restarts the clock.
    #[inline]
    pub(super) const fn sent(&mut self) {
        self.since = None;
    }

    /// Records a `Pending` at `now`, and returns whether a keep-alive is due.
    pub(super) fn wait(&mut self, now: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        now >= since.saturating_add(self.every)
    }

    /// The time at which the next keep-alive is due; `None` before the clock has started.
    pub(super) fn next(&self) -> Option<Duration> {
        Some(self.since?.saturating_add(self.every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_one_line_whatever_the_text() {
        assert_eq!(comment("a\r\ndata: b\nc"), ": a  data: b c\n\n");
    }

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_is_due_after_as_long_without_bytes_and_then_again_and_again() {
        let mut keep_alive = KeepAlive::new(secs(15));
        assert_eq!(keep_alive.next(), None, "nothing is waited for");
        assert!(!keep_alive.wait(secs(2)));
        assert_eq!(keep_alive.next(), Some(secs(17)));
        assert!(!keep_alive.wait(secs(16)));
        keep_alive.sent();
        assert!(!keep_alive.wait(secs(16)));
        for round in 1..1000 {
            assert_eq!(keep_alive.next(), Some(secs(16 + 15 * round)));
            assert!(keep_alive.wait(secs(16 + 15 * round)));
            keep_alive.sent();
            assert!(!keep_alive.wait(secs(16 + 15 * round)));
        }
    }

    #[test]
    fn many_that_were_due_at_once_are_one() {
        let mut keep_alive = KeepAlive::new(secs(15));
        keep_alive.wait(secs(0));
        assert!(keep_alive.wait(secs(3600)));
        keep_alive.sent();
        assert!(!keep_alive.wait(secs(3600)));
    }
}
