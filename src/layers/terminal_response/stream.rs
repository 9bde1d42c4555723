use bytes::{Buf, Bytes, BytesMut};
use http::Extensions;
use http_body::Frame;

use super::{
    error_answer::{ErrorAnswer, Statuses},
    frame_queue::FrameQueue,
};
use crate::{
    error::BoxError,
    llm::{
        dialect::{self, Dialect, error_event},
        sse::{ErrorInfo, Splitter},
    },
    run::{Run, RunId},
    supervise::{MarkingReader, ResponseMarks},
};

/// A byte order mark, which a stream may begin with.
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// The maximum number of bytes of an incomplete event that the layer holds back.
const MAX_HELD: usize = 1024 * 1024;

/// An event stream for the caller: whole events, and an error event if it is cut.
#[derive(Debug)]
pub(super) struct CallerStream {
    dialect: Dialect,
    source: EventSource,
    run: Option<Run>,
    /// The number of the upstream's bytes that the caller got or that are in `out`.
    sent: u64,
    /// The held-back start of an incomplete event.
    held: BytesMut,
    /// Whether the caller got the start of the current event, because it was too long to be held.
    torn: bool,
    /// Whether the last byte for the caller was a CR, which a LF may complete.
    after_cr: bool,
    /// Whether the caller has all that it gets: what the upstream sends on is dropped.
    is_over: bool,
    /// The offset of the stream's latest progress that was seen.
    progressed: u64,
    out: FrameQueue,
}

/// The source of the boundaries of events, and of the marks of the stream.
#[derive(Debug)]
enum EventSource {
    /// The marks, and the boundaries, come from an inner layer, which observes the stream.
    Marks(ResponseMarks),
    /// The marks come from an inner layer, but this layer finds the boundaries itself: the two
    /// layers have read different numbers of bytes, or an event was too long to be held.
    Split(ResponseMarks, Box<Splitter>),
    /// This layer observes the stream itself.
    Own(Box<MarkingReader>),
}

impl EventSource {
    fn of(dialect: Dialect, answer: &Extensions) -> Self {
        match answer.get::<ResponseMarks>() {
            Some(marks) => Self::Marks(marks.clone()),
            None => Self::Own(Box::new(MarkingReader::new(dialect))),
        }
    }
}

impl CallerStream {
    /// Creates the stream for a caller; `answer` has the extensions of the caller's head.
    pub(super) fn new(dialect: Dialect, answer: &Extensions) -> Self {
        Self {
            dialect,
            source: EventSource::of(dialect, answer),
            run: answer.get().cloned(),
            sent: 0,
            held: BytesMut::new(),
            torn: false,
            after_cr: false,
            is_over: false,
            progressed: 0,
            out: FrameQueue::new(),
        }
    }

    /// Takes the marks of an answer that came after an early head.
    pub(super) fn take_marks_of(&mut self, answer: &Extensions) {
        self.source = EventSource::of(self.dialect, answer);
        self.run = answer.get().cloned().or(self.run.take());
    }

    /// Whether the caller has all that it gets, and no terminator: an error was the last.
    pub(super) fn is_broken(&self) -> bool {
        self.is_over && self.marks().terminator().is_none()
    }

    /// Whether a comment may be inserted, because the caller has whole events.
    pub(super) fn is_between(&self) -> bool {
        self.held.is_empty() && !self.torn && !self.after_cr
    }

    /// The bytes that keep the caller's stream alive, where [`is_between`](Self::is_between) holds.
    pub(super) fn keep_alive(&self) -> Bytes {
        dialect::keep_alive(self.dialect())
    }

    /// Whether the caller has the event that ends the stream.
    pub(super) fn has_end(&self) -> bool {
        self.is_over || self.is_sent(self.marks().last_event())
    }

    /// Whether the caller has the event that ends the stream, or a finished answer, behind which a
    /// usage may follow.
    fn is_complete(&self) -> bool {
        self.has_end() || self.is_sent(self.marks().finished())
    }

    fn is_sent(&self, at: Option<u64>) -> bool {
        at.is_some_and(|at| at <= self.sent)
    }

    /// Whether the upstream made progress since this method last ran.
    pub(super) fn has_progressed(&mut self) -> bool {
        let progressed = self.marks().progressed();
        std::mem::replace(&mut self.progressed, progressed) != progressed
    }

    pub(super) fn next(&mut self) -> Option<Frame<Bytes>> {
        self.out.pop()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Counts a frame that can go to the caller unchanged, and returns true.
    ///
    /// The result is false if the frame is empty or not whole events, if other bytes must go before
    /// it, or if this layer itself finds the boundaries.
    pub(super) fn pass(&mut self, data: &Bytes) -> bool {
        let EventSource::Marks(marks) = &self.source else {
            return false;
        };
        if marks.has_last() || self.sent == 0 {
            // An event may have to be dropped, or a byte order mark.
            return false;
        }
        let received = self.sent + data.len() as u64;
        let is_whole = marks.boundary_at(received) == Some(received);
        let passes = is_whole && self.held.is_empty() && self.is_empty() && !data.is_empty();
        if passes {
            self.sent = received;
            self.after_cr = data.ends_with(b"\r");
        }
        passes
    }

    /// The last boundary of events in the first `received` bytes, which end with `data`.
    fn boundary(&mut self, received: u64, data: &[u8]) -> u64 {
        match &mut self.source {
            EventSource::Marks(marks) => {
                if let Some(boundary) = marks.boundary_at(received) {
                    return boundary;
                }
                self.split();
                self.boundary(received, data)
            }
            EventSource::Split(_, splitter) => {
                splitter.push(data, |_| {});
                splitter.boundary()
            }
            EventSource::Own(reader) => {
                reader.push(data);
                reader.boundary()
            }
        }
    }

    /// Makes this layer find the boundaries itself from the last one on; `held` has all bytes
    /// since.
    fn split(&mut self) {
        if let EventSource::Marks(marks) = &self.source {
            let mut splitter = Box::new(Splitter::resume(self.sent));
            splitter.push(&self.held, |_| {});
            self.source = EventSource::Split(marks.clone(), splitter);
        }
    }

    /// Takes bytes of the upstream, and queues the whole events among them for the caller.
    pub(super) fn push(&mut self, mut data: Bytes) {
        if self.is_over {
            if std::mem::take(&mut self.after_cr) && data.starts_with(b"\n") {
                // It belongs to the line end of the last event.
                self.send(data.split_to(1));
            }
            return;
        }
        let start = self.sent + self.held.len() as u64;
        let boundary = self.boundary(start + data.len() as u64, &data);
        if self.marks().has_last() && self.push_last(&data) {
            return;
        }
        match boundary
            .checked_sub(start)
            .and_then(|whole| usize::try_from(whole).ok())
        {
            Some(whole) if boundary > self.sent => {
                let rest = data.split_off(whole.min(data.len()));
                if self.held.is_empty() {
                    self.send(data);
                } else {
                    // One frame for all: HTTP/2 peers close a connection that has many small ones.
                    self.held.extend_from_slice(&data);
                    self.flush();
                }
                self.torn = false;
                self.hold(&rest);
            }
            _ => self.hold(&data),
        }
    }

    /// Takes bytes among which the stream's last event may be. The result is false if it is not.
    ///
    /// An error event that the caller's SDK ignores is replaced by one that it raises, and a
    /// `response.done` by the event that it replaces. What follows
    /// the last event is dropped: some SDKs take it for an error.
    #[cold]
    fn push_last(&mut self, data: &[u8]) -> bool {
        let start = self.sent + self.held.len() as u64;
        let received = start + data.len() as u64;
        let is_ignored = self.has_ignored_error();
        let Some(last) = self.marks().last_event().filter(|at| *at <= received) else {
            return false;
        };
        let done = self.marks().done();
        let is_last = done.is_some() || self.ends_with_terminator();
        if self.marks().error().is_none() && !is_last {
            return false;
        }
        self.held.extend_from_slice(data);
        let end = if is_ignored || done.is_some() {
            self.start_of(last)
        } else {
            last
        };
        let keep = usize::try_from(end.saturating_sub(self.sent)).unwrap_or(usize::MAX);
        // The line feed of a CRLF at the end of the last event belongs to it.
        let before = keep.checked_sub(1).and_then(|at| self.held.get(at));
        let after_cr = before.map_or(self.after_cr, |byte| *byte == b'\r');
        let keep = keep + usize::from(after_cr && self.held.get(keep) == Some(&b'\n'));
        self.held.truncate(keep);
        self.is_over = true;
        // Of a long event the caller may have the start, unless it ended before the last one.
        self.torn &= end < self.sent;
        if is_ignored {
            let whole = self.held.split().freeze();
            self.send(whole);
            self.translate();
        } else {
            self.flush();
            if self.marks().error().is_some() && std::mem::take(&mut self.after_cr) {
                // The upstream is read no further, and its LF may come in a chunk of its own.
                self.out.push(Bytes::from_static(b"\n"));
            }
            if let Some(done) = done {
                self.out.push(done);
            }
        }
        true
    }

    /// Whether the upstream has reported an error in an event that the caller's SDK ignores.
    fn has_ignored_error(&self) -> bool {
        let (marks, dialect) = (self.marks(), self.dialect());
        marks.failure().is_some_and(|it| !dialect.raises(it))
    }

    /// The offset at which the event begins that ends at `end`, among the held bytes: behind the
    /// event or the comment before it.
    fn start_of(&self, end: u64) -> u64 {
        let mut splitter = Splitter::resume(self.sent);
        let lines = self
            .held
            .split_inclusive(|byte| matches!(byte, b'\n' | b'\r'));
        for line in lines {
            let start = splitter.boundary();
            let mut is_it = false;
            splitter.push(line, |event| is_it = event.end == end);
            if is_it {
                return start;
            }
        }
        // The event lacks its blank line.
        splitter.boundary()
    }

    /// Whether nothing may follow the terminator of the caller's dialect. In the Responses dialect
    /// some clients wait for a `[DONE]` behind it.
    fn ends_with_terminator(&self) -> bool {
        matches!(self.dialect(), Dialect::OpenAiChat | Dialect::Anthropic)
    }

    fn hold(&mut self, data: &[u8]) {
        self.held.extend_from_slice(data);
        if self.torn || self.held.len() > MAX_HELD {
            self.split();
            self.torn = true;
            self.flush();
        }
    }

    fn flush(&mut self) {
        let held = self.held.split().freeze();
        self.send(held);
    }

    fn send(&mut self, mut data: Bytes) {
        let is_first = self.sent == 0;
        self.sent += data.len() as u64;
        if is_first && data.starts_with(BOM) {
            // Some SDKs take it for a part of the first field's name.
            data.advance(BOM.len());
        }
        if !data.is_empty() {
            self.after_cr = data.ends_with(b"\r");
            self.out.push(data);
        }
    }

    /// Ends the caller's stream when the upstream's body ended, with `trailers` if it had any; a
    /// truncated stream ends with an error event.
    pub(super) fn end(&mut self, trailers: Option<Frame<Bytes>>) {
        if self.is_over {
            self.out.push_trailers(trailers);
            return;
        }
        let finish = match &mut self.source {
            EventSource::Own(reader) => {
                if !self.held.is_empty() || self.torn {
                    reader.end();
                }
                reader.finish()
            }
            // The inner layer turns the end of a truncated stream into an error itself.
            EventSource::Marks(_) | EventSource::Split(..) => Ok(()),
        };
        match finish {
            Ok(()) => {
                self.complete();
                self.out.push_trailers(trailers);
            }
            Err(cut) => self.fail(&cut.into()),
        }
    }

    /// Ends a whole answer: adds what the upstream left out at its end, and SDKs need.
    fn complete(&mut self) {
        let replaces = self.has_ignored_error() || self.marks().done().is_some();
        if replaces && self.push_last(b"") {
            return;
        }
        self.complete_event();
        match self.marks().missing_terminator() {
            Some(terminator) => {
                // Drop the incomplete event, which would merge with the terminator.
                self.held.clear();
                self.end_event();
                self.out.push(terminator);
            }
            None => self.flush(),
        }
    }

    /// Hands on the last event with its blank line, if only that is missing to it.
    fn complete_event(&mut self) {
        let received = self.sent + self.held.len() as u64;
        let lacks_blank_line = self.sent < received || self.torn;
        if lacks_blank_line && self.marks().is_whole_at(received) {
            let ends_line = self.held.ends_with(b"\n");
            self.flush();
            self.torn = false;
            let end: &[u8] = if ends_line { b"\n" } else { b"\n\n" };
            self.out.push(Bytes::from_static(end));
        }
    }

    /// Ends an event of which the caller got only the start, so that another event can follow.
    fn end_event(&mut self) {
        if std::mem::take(&mut self.torn) {
            self.out.push(Bytes::from_static(b"\n\n"));
        }
    }

    /// Ends a stream that `error` cut: adds an error event, unless the caller needs none.
    ///
    /// The caller needs none if it has the terminator, or an error event of the upstream that its
    /// SDK raises.
    pub(super) fn fail(&mut self, error: &BoxError) {
        if self.is_over {
            return;
        }
        if self.is_complete() {
            // The caller has the upstream's own error event, or the complete answer.
            self.held.clear();
            self.complete();
            return;
        }
        self.complete_event();
        let answer = ErrorAnswer::of(error, Statuses::DEFAULT, false);
        self.add(&answer.code, &answer.message, answer.run);
    }

    /// Adds an error event in the caller's dialect, for one of the upstream that its SDK ignores.
    ///
    /// Without it the SDK would take a partial answer for the whole.
    fn translate(&mut self) {
        let failure = self.marks().failure();
        let kind = failure.map_or("", |it| {
            if it.kind.is_empty() {
                &it.code
            } else {
                &it.kind
            }
        });
        let message = match failure.map_or("", |it| &it.message) {
            "" => "The upstream failed (upstream_failed).".to_owned(),
            message if kind.is_empty() || message.contains(kind) => {
                format!("{message} (upstream_failed)")
            }
            message => format!("{message} ({kind}, upstream_failed)"),
        };
        self.add("upstream_failed", &message, None);
    }

    /// Adds an error event in the caller's dialect, instead of the held bytes.
    fn add(&mut self, code: &str, message: &str, run: Option<RunId>) {
        let marks = self.marks();
        let known = run.or_else(|| self.run.as_ref().map(Run::id));
        let run = known.map(|run| run.to_string());
        let sent = self.sent;
        // Name only a response id that the caller has got: an SDK cannot match an unknown one.
        let response = marks.response_id().filter(|(_, end)| *end <= sent);
        let info = ErrorInfo {
            code,
            message,
            run_id: run.as_deref(),
            sequence: marks.next_sequence(),
            response_id: response.map(|(id, _)| id),
        };
        let event = error_event(self.dialect(), &info);
        self.end_event();
        self.held.clear();
        self.out.push(event);
    }

    /// The dialect of the caller's request; if that is unknown, the dialect of the stream.
    fn dialect(&self) -> Dialect {
        match self.dialect {
            Dialect::Any => self.marks().dialect(),
            known => known,
        }
    }

    fn marks(&self) -> &ResponseMarks {
        match &self.source {
            EventSource::Marks(marks) | EventSource::Split(marks, _) => marks,
            EventSource::Own(reader) => reader.marks(),
        }
    }
}
