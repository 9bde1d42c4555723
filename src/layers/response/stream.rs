use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http_body::Frame;

use super::{answer::ErrorAnswer, answer::Statuses};
use crate::{
    error::BoxError,
    llm::{
        dialect::error_event,
        dialect::{Dialect, Truncated},
        sse::{DONE, ErrorInfo, Splitter},
    },
    run::{Run, RunId},
    supervise::{ResponseMarks, Stream},
};

/// How much of an event that has not ended is held back.
const MAX_HELD: usize = 1024 * 1024;

/// A stream of events on its way to the caller: whole events only, and one
/// more in the end if it was cut.
#[derive(Debug)]
pub(super) struct Events {
    dialect: Dialect,
    source: EventSource,
    run: Option<Run>,
    /// Bytes handed on, or about to be.
    sent: u64,
    /// The beginning of an event that has not ended.
    held: BytesMut,
    /// An event became too long to be held, and its beginning is out.
    torn: bool,
    out: VecDeque<Frame<Bytes>>,
}

/// Where the boundaries and the marks come from.
#[derive(Debug)]
enum EventSource {
    /// A layer further in judged the stream.
    Judged(ResponseMarks, Splitter),
    /// Nobody did.
    Own(Box<Stream>),
}

impl Events {
    pub(super) fn new(dialect: Dialect, judged: Option<ResponseMarks>, run: Option<Run>) -> Self {
        let source = match judged {
            Some(judged) => EventSource::Judged(judged, Splitter::new()),
            None => EventSource::Own(Box::new(Stream::new(dialect))),
        };
        Self {
            dialect,
            source,
            run,
            sent: 0,
            held: BytesMut::new(),
            torn: false,
            out: VecDeque::new(),
        }
    }

    pub(super) fn next(&mut self) -> Option<Frame<Bytes>> {
        self.out.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Takes the upstream's next bytes, and hands on what is whole.
    pub(super) fn push(&mut self, mut data: Bytes) {
        let boundary = match &mut self.source {
            EventSource::Judged(_, splitter) => {
                splitter.push(&data, |_| {});
                splitter.boundary()
            }
            EventSource::Own(stream) => {
                stream.push(&data);
                stream.boundary()
            }
        };
        let start = self.sent + self.held.len() as u64;
        match boundary
            .checked_sub(start)
            .and_then(|whole| usize::try_from(whole).ok())
        {
            Some(whole) if boundary > self.sent => {
                let rest = data.split_off(whole.min(data.len()));
                if self.held.is_empty() {
                    self.send(data);
                } else {
                    // One frame: HTTP/2 peers count small ones, and hang up on
                    // whoever sends them many.
                    self.held.extend_from_slice(&data);
                    self.flush();
                }
                self.torn = false;
                self.hold(&rest);
            }
            _ => self.hold(&data),
        }
    }

    fn hold(&mut self, data: &[u8]) {
        self.held.extend_from_slice(data);
        if self.torn || self.held.len() > MAX_HELD {
            self.torn = true;
            self.flush();
        }
    }

    fn flush(&mut self) {
        let held = self.held.split().freeze();
        self.send(held);
    }

    fn send(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.sent += data.len() as u64;
            self.out.push_back(Frame::data(data));
        }
    }

    /// The upstream ended cleanly.
    pub(super) fn end(&mut self) {
        match self.finish() {
            Ok(()) => self.complete(),
            Err(cut) => self.fail(&cut.into()),
        }
    }

    fn finish(&self) -> Result<(), Truncated> {
        match &self.source {
            EventSource::Own(stream) => stream.finish(),
            // Whoever judged it further in says so.
            EventSource::Judged(..) => Ok(()),
        }
    }

    fn complete(&mut self) {
        let judged = self.judged();
        let finished = judged.is_finished() && judged.terminator().is_none();
        if finished && matches!(judged.dialect(), Dialect::OpenAiChat) {
            // An event without its blank line would swallow what follows it.
            self.held.clear();
            self.mend();
            self.out.push_back(Frame::data(Bytes::from_static(DONE)));
        } else if !self.translate() {
            self.flush();
        }
    }

    /// Ends an event whose beginning is out, so that another can follow.
    fn mend(&mut self) {
        if self.torn {
            self.out.push_back(Frame::data(Bytes::from_static(b"\n\n")));
        }
    }

    /// The upstream's trailers: nothing but the end follows.
    pub(super) fn trailers(&mut self, trailers: Frame<Bytes>) {
        match self.finish() {
            Ok(()) => {
                self.complete();
                self.out.push_back(trailers);
            }
            Err(cut) => self.fail(&cut.into()),
        }
    }

    /// The stream was cut.
    pub(super) fn fail(&mut self, error: &BoxError) {
        let judged = self.judged();
        let is_sent = |at: Option<u64>| at.is_some_and(|at| at <= self.sent);
        if is_sent(judged.error()) || is_sent(judged.terminator()) {
            // The caller has the upstream's own word, or all there is.
            self.translate();
            return;
        }
        let told = ErrorAnswer::of(error, Statuses::DEFAULT);
        self.add(&told.code, &told.message, told.run);
    }

    /// Says once more what the upstream said in words that the caller's SDK does
    /// not hear: it would take half an answer for the whole. Answers whether there was
    /// such a word; then what is held is dropped, which would swallow ours.
    fn translate(&mut self) -> bool {
        let (judged, dialect) = (self.judged(), self.dialect());
        let failure = judged.failure().filter(|it| !it.is_heard(dialect));
        let is_sent = judged.error().is_some_and(|at| at <= self.sent);
        let Some(failure) = failure.filter(|_| is_sent) else {
            return false;
        };
        let message = match &*failure.message {
            "" => "The upstream failed (upstream_failed).".to_owned(),
            message => format!("{message} (upstream_failed)"),
        };
        self.add("upstream_failed", &message, None);
        true
    }

    /// Adds our own error event.
    fn add(&mut self, code: &str, message: &str, run: Option<RunId>) {
        let judged = self.judged();
        let known = run.or_else(|| self.run.as_ref().map(Run::id));
        let run = known.map(|run| run.to_string());
        let sent = self.sent;
        // A caller that was not told of the answer cannot be told that it failed.
        let response = judged.response_id().filter(|(_, end)| *end <= sent);
        let info = ErrorInfo {
            code,
            message,
            run_id: run.as_deref(),
            sequence: judged.next_sequence(),
            response_id: response.map(|(id, _)| id),
        };
        let event = error_event(self.dialect(), &info);
        self.mend();
        self.held.clear();
        self.out.push_back(Frame::data(event));
    }

    /// The caller's, or what the stream showed.
    fn dialect(&self) -> Dialect {
        match self.dialect {
            Dialect::Any => self.judged().dialect(),
            known => known,
        }
    }

    fn judged(&self) -> &ResponseMarks {
        match &self.source {
            EventSource::Judged(judged, _) => judged,
            EventSource::Own(stream) => stream.judged(),
        }
    }
}
