//! The marks of a streamed response, and the stream reader that sets them.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use http::{HeaderMap, StatusCode};

use crate::{
    llm::{
        dialect::{Dialect, Finish, StreamFailure, Truncated, Usage},
        is_plain, names_events,
        stream::{ChunkSummary, Partial, StreamReader, estimated_tokens},
    },
    lock::Lock,
    run::{Run, TokenMeter},
};

/// The marks of an event stream, which a layer puts into the response's extensions.
///
/// That layer is the innermost of those that act on a node and read the stream. A
/// [`TerminalResponseLayer`](crate::TerminalResponseLayer) reads a stream without marks too, but
/// adds none. It removes the marks of others if it may insert comments into the stream.
///
/// Each offset counts bytes from the start of the stream. They are the bytes as the innermost layer
/// that reads it returned them.
///
/// An outer layer should compare an offset with the number of bytes that it returned. A layer in
/// between may hold some back.
#[derive(Clone, Debug)]
pub struct ResponseMarks {
    marks: Arc<MarkCells>,
}

#[derive(Debug, Default)]
struct MarkCells {
    dialect: OnceLock<Dialect>,
    /// The number of the stream's bytes that these marks describe.
    position: AtomicU64,
    /// The offset behind the last whole event.
    boundary: AtomicU64,
    progressed: AtomicU64,
    events: AtomicU64,
    heartbeats: AtomicU64,
    commit: AtomicU64,
    terminator: AtomicU64,
    error: AtomicU64,
    sequence: AtomicU64,
    finished: AtomicBool,
    // The failure is boxed, because it is large and few streams have one.
    failure: OnceLock<Box<StreamFailure>>,
    usage: Lock<Option<Usage>>,
    stop_reason: OnceLock<Arc<str>>,
    response_id: OnceLock<(Arc<str>, u64)>,
}

impl ResponseMarks {
    pub(super) fn new() -> Self {
        Self {
            marks: Arc::default(),
        }
    }

    /// The dialect of the stream. It is [`Dialect::Any`] before the first frame, and until the
    /// request or an event has identified it.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        self.marks.dialect.get().copied().unwrap_or_default()
    }

    /// The offset behind the stream's latest event that was content or other progress, or 0.
    #[must_use]
    pub fn progressed(&self) -> u64 {
        self.marks.progressed.load(Ordering::Acquire)
    }

    /// The greatest offset at which the stream may be cut, for a reader of its first `received`
    /// bytes.
    ///
    /// The result is `None` if the innermost layer has read another number of bytes: a layer in
    /// between reads ahead, holds bytes back, or changes the stream.
    pub(crate) fn boundary_at(&self, received: u64) -> Option<u64> {
        let position = self.marks.position.load(Ordering::Acquire);
        let boundary = self.marks.boundary.load(Ordering::Acquire);
        // Another thread may have published a newer boundary since the position was read: such a
        // boundary is greater than that position.
        (position == received && boundary <= received).then_some(boundary)
    }

    /// The number of events in the stream so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.marks.events.load(Ordering::Acquire)
    }

    /// The number of comments and pings in the stream so far: see
    /// [`StreamReader::heartbeats`](crate::llm::stream::StreamReader::heartbeats).
    #[must_use]
    pub fn heartbeats(&self) -> u64 {
        self.marks.heartbeats.load(Ordering::Acquire)
    }

    /// The offset behind the stream's first event with content; `None` before that event.
    #[must_use]
    pub fn commit(&self) -> Option<u64> {
        mark(&self.marks.commit)
    }

    /// The offset behind the terminator of the stream's dialect; `None` before that event.
    #[must_use]
    pub fn terminator(&self) -> Option<u64> {
        mark(&self.marks.terminator)
    }

    /// The offset behind the event by which the upstream reported an error; `None` without one.
    #[must_use]
    pub fn error(&self) -> Option<u64> {
        mark(&self.marks.error)
    }

    /// Whether the stream has no terminator yet, but would be complete if it ended here.
    ///
    /// A chat stream, for example, is finished once every choice has a finish reason, and none
    /// failed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.marks.finished.load(Ordering::Acquire)
    }

    /// Whether the upstream has said that the answer is whole or has failed.
    pub(crate) fn has_stopped(&self) -> bool {
        let is_last = self.terminator().or(self.error()).is_some();
        is_last
            || match self.dialect() {
                // A chat answer has a stop reason as soon as one of its choices has finished.
                Dialect::OpenAiChat => self.is_finished(),
                _ => self.marks.stop_reason.get().is_some(),
            }
    }

    /// The content of the event by which the upstream reported an error.
    #[must_use]
    pub fn failure(&self) -> Option<&StreamFailure> {
        self.marks.failure.get().map(|failure| &**failure)
    }

    /// The reason why the model stopped, in the upstream's words.
    #[must_use]
    pub fn stop_reason(&self) -> Option<Arc<str>> {
        self.marks.stop_reason.get().cloned()
    }

    /// The sequence number that an event appended to the stream would have: see
    /// [`StreamReader::next_sequence`](crate::llm::stream::StreamReader::next_sequence).
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.marks.sequence.load(Ordering::Acquire)
    }

    /// The id of the answer, and the offset behind the first event that carried the id.
    ///
    /// The result is `None` until such an event, and always in the dialects of chat and Anthropic.
    #[must_use]
    pub fn response_id(&self) -> Option<(&str, u64)> {
        let (id, end) = self.marks.response_id.get()?;
        Some((id, *end))
    }

    /// The tokens that the answer has used so far, if the upstream has stated them.
    ///
    /// The usage of a cut stream is known as well, as far as the upstream has stated it.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        *self.marks.usage.lock()
    }

    /// Publishes to the outer layers the marks of all that `reader` has read so far.
    ///
    /// This method does not publish the usage, which [`MarkingReader::push`] stores.
    ///
    /// The layer calls this method after every frame. A call in which no mark is new makes only
    /// atomic stores, and allocates nothing.
    pub(super) fn publish(&self, reader: &StreamReader) {
        let marks = &*self.marks;
        let store = |cell: &AtomicU64, value| cell.store(value, Ordering::Release);
        store(&marks.boundary, reader.boundary());
        store(&marks.position, reader.position());
        store(&marks.progressed, reader.progressed());
        store(&marks.events, reader.events());
        store(&marks.heartbeats, reader.heartbeats());
        store(&marks.sequence, reader.next_sequence());
        let is_finished = matches!(reader.finish(), Finish::Finished);
        marks.finished.store(is_finished, Ordering::Release);
        let store_mark = |cell, offset: Option<u64>| {
            if let Some(offset) = offset {
                store(cell, offset);
            }
        };
        store_mark(&marks.commit, reader.commit());
        store_mark(&marks.error, reader.error());
        store_mark(&marks.terminator, reader.terminator());
        if let Some(reason) = reader.stop_reason() {
            marks.stop_reason.get_or_init(|| reason.into());
        }
        if let Some((id, end)) = reader.response_id_end() {
            marks.response_id.get_or_init(|| (Arc::clone(id), end));
        }
        if let Some(failure) = reader.failure() {
            marks.failure.get_or_init(|| Box::new(failure.clone()));
        }
        if !matches!(reader.dialect(), Dialect::Any) {
            marks.dialect.get_or_init(|| reader.dialect());
        }
    }
}

/// Reads an offset behind an event, which is never 0.
fn mark(cell: &AtomicU64) -> Option<u64> {
    let offset = cell.load(Ordering::Acquire);
    (offset > 0).then_some(offset)
}

/// The reader of an event stream in its innermost layer, with the marks that it publishes.
#[derive(Debug)]
pub(crate) struct MarkingReader {
    reader: StreamReader,
    marks: ResponseMarks,
    /// The count of the answer's tokens, if its run counts them.
    meter: Option<Box<TokenMeter>>,
    #[cfg(feature = "metrics")]
    pub(super) chunks: crate::run::StreamChunks,
}

impl MarkingReader {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            reader: StreamReader::new(dialect),
            marks: ResponseMarks::new(),
            meter: None,
            #[cfg(feature = "metrics")]
            chunks: crate::run::StreamChunks::default(),
        }
    }

    /// Whether a response with this head is a successful, uncompressed event stream.
    pub(crate) fn is_events(status: StatusCode, headers: &HeaderMap) -> bool {
        status.is_success() && names_events(headers) && is_plain(headers)
    }

    pub(crate) const fn marks(&self) -> &ResponseMarks {
        &self.marks
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) -> ChunkSummary {
        let seen = self.reader.push(chunk);
        #[cfg(feature = "metrics")]
        if seen.content {
            self.chunks.count();
        }
        self.marks.publish(&self.reader);
        if self.reader.take_usage_news() {
            *self.marks.marks.usage.lock() = self.reader.usage();
        }
        if let Some(meter) = &mut self.meter {
            let unstated = estimated_tokens(self.reader.unstated_bytes());
            meter.set(self.reader.usage(), unstated);
        }
        seen
    }

    /// Starts to collect the text of the response, and to count its tokens.
    ///
    /// The text is collected if the run [keeps](Run::keep_partial) texts. The tokens are counted if
    /// `counts` is set, and the run or a run above it counts tokens.
    pub(super) fn begin(&mut self, run: &Run, counts: bool) {
        if let Some(partial) = run.begin_partial() {
            self.reader.keep_text(partial);
        }
        if let Some(meter) = run.token_meter().filter(|_| counts) {
            self.reader.count_generated();
            self.meter = Some(Box::new(meter));
        }
    }

    /// Returns the partial text of the response, if the run collects it.
    ///
    /// If the response is complete, the text is marked as whole first: it is not partial.
    pub(super) fn kept_text(&self) -> Option<&Partial> {
        let kept = self.reader.kept_text()?;
        if matches!(self.reader.finish(), Finish::Complete | Finish::Finished) {
            kept.complete();
        }
        Some(kept)
    }

    pub(crate) const fn boundary(&self) -> u64 {
        self.reader.boundary()
    }

    /// Checks whether the stream would be complete if its body ended cleanly at this point.
    ///
    /// # Errors
    ///
    /// The stream is [`Truncated`] if the terminator of its dialect is missing.
    pub(crate) fn finish(&self) -> Result<(), Truncated> {
        match self.reader.finish() {
            Finish::Truncated => Err(Truncated::new(self.reader.position())),
            _ => Ok(()),
        }
    }
}
