//! The marks of a streamed response, and the stream reader that sets them.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::{
    llm::{
        AfterFinish, BYTES_PER_TOKEN, MESSAGE_STOP, Partial,
        dialect::{Dialect, Finish, StreamFailure, Truncated, Usage},
        estimated_tokens, is_plain, names_events,
        sse::DONE,
        stream::{ChunkSummary, StreamReader},
    },
    lock::Lock,
    run::{NEVER, Nanos, Run, TokenMeter, nanos},
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
    /// Whether the terminator or an error event has come.
    has_last: AtomicBool,
    /// Whether the stream has ended without a part of an answer.
    says_nothing: AtomicBool,
    sequence: AtomicU64,
    /// An offset at which the answer was finished, or 0.
    finished: AtomicU64,
    /// The [`AfterFinish`] that a layer which has read the request expects behind a finished answer.
    after_finish: AtomicU8,
    /// Whether a layer has ended a finished answer, and waits for nothing more of it.
    is_closed: AtomicBool,
    /// The [`BodyForm`] of the body.
    form: AtomicU8,
    speed: SpeedMarks,
    /// The event that SDKs need at the end, if the upstream ended the answer by another one.
    done: Lock<Option<Bytes>>,
    // The failure is boxed, because it is large and few streams have one.
    failure: OnceLock<Box<StreamFailure>>,
    usage: Lock<Option<Usage>>,
    stop_reason: Lock<Option<Arc<str>>>,
    response_id: OnceLock<(Arc<str>, u64)>,
}

/// What a stream with a floor on its speed has generated; all zero for any other.
#[derive(Debug, Default)]
struct SpeedMarks {
    /// The number of chunks with content.
    contents: AtomicU64,
    /// The bytes of generated text, with [`BYTES_PER_TOKEN`] for each token that the upstream states.
    generated: AtomicU64,
    /// Whether it is not known yet that the stream is fast enough to commit to it.
    is_unproven: AtomicBool,
}

/// Whether a body is an event stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyForm {
    Events = 0,
    /// The body's first bytes, which will decide it, have not come.
    Unknown = 1,
    Other = 2,
}

/// The marks of a body that may be an event stream, although its head does not say so.
///
/// The layer that reads the first bytes of the body puts this mark into the response's extensions.
/// The attempt that holds the answer back replaces it, once the bytes have come.
#[derive(Clone, Debug)]
pub(crate) struct PossibleStream(pub(crate) ResponseMarks);

impl ResponseMarks {
    pub(super) fn new() -> Self {
        Self {
            marks: Arc::default(),
        }
    }

    pub(crate) fn form(&self) -> BodyForm {
        match self.marks.form.load(Ordering::Acquire) {
            0 => BodyForm::Events,
            1 => BodyForm::Unknown,
            _ => BodyForm::Other,
        }
    }

    pub(super) fn set_form(&self, form: BodyForm) {
        self.marks.form.store(form as u8, Ordering::Release);
    }

    /// Records that a layer ends the answer, which is finished: the inner layers are dropped
    /// with a whole answer, and not by a caller that leaves.
    pub(super) fn close(&self) {
        self.marks.is_closed.store(true, Ordering::Release);
    }

    /// Whether a layer has ended the answer, which is finished.
    pub(super) fn is_closed(&self) -> bool {
        self.marks.is_closed.load(Ordering::Acquire)
    }

    /// The number of chunks with content, and the bytes of text that the model has generated. Both
    /// count only if the stream has a floor on its speed.
    pub(super) fn generated(&self) -> (u64, u64) {
        let speed = &self.marks.speed;
        let generated = speed.generated.load(Ordering::Acquire);
        (speed.contents.load(Ordering::Acquire), generated)
    }

    /// Records that the stream is fast enough, or that its speed cannot be told.
    pub(super) fn prove_speed(&self) {
        self.marks.speed.is_unproven.store(false, Ordering::Release);
    }

    /// Whether the attempt has a floor on the speed of the stream, and it is not known yet whether
    /// the stream is fast enough.
    pub(crate) fn awaits_speed(&self) -> bool {
        self.marks.speed.is_unproven.load(Ordering::Acquire) && !self.is_finished()
    }

    /// Records what the request lets expect behind a finished answer.
    pub(crate) fn expect(&self, after_finish: AfterFinish) {
        let after_finish = after_finish as u8;
        self.marks
            .after_finish
            .store(after_finish, Ordering::Release);
    }

    /// Whether the answer will be over shortly: it has its last event, or it is finished and all
    /// that the request asks for has come.
    pub(super) fn ends_soon(&self) -> bool {
        const NOTHING: u8 = AfterFinish::Nothing as u8;
        const CHOICES: u8 = AfterFinish::Choices as u8;
        let has_all = || match self.marks.after_finish.load(Ordering::Acquire) {
            NOTHING => true,
            CHOICES => false,
            _ => self.usage().is_some(),
        };
        self.last_event().is_some() || self.finished().is_some() && has_all()
    }

    /// Whether the terminator or an error event has come.
    pub(crate) fn has_last(&self) -> bool {
        self.marks.has_last.load(Ordering::Acquire)
    }

    /// Whether the stream has ended without a part of an answer: see [`StreamReader::says_nothing`].
    pub(crate) fn says_nothing(&self) -> bool {
        self.marks.says_nothing.load(Ordering::Acquire)
    }

    /// The offset behind the terminator or the upstream's error; nothing follows either.
    pub(crate) fn last_event(&self) -> Option<u64> {
        self.terminator().or(self.error())
    }

    /// An offset at which the answer was finished, although its terminator had not come; `None` if
    /// it is not finished.
    pub(crate) fn finished(&self) -> Option<u64> {
        mark(&self.marks.finished)
    }

    /// Whether the upstream's body has ended after `received` bytes, and these are whole events,
    /// if need be with a blank line behind them.
    pub(crate) fn is_whole_at(&self, received: u64) -> bool {
        self.boundary_at(received) == Some(received)
    }

    /// The event that SDKs need instead of the upstream's `response.done`.
    pub(crate) fn done(&self) -> Option<Bytes> {
        self.marks.done.lock().clone()
    }

    /// The event that SDKs need behind the upstream's last one, if the answer is whole without it.
    pub(crate) fn missing_terminator(&self) -> Option<Bytes> {
        let terminator = match self.dialect() {
            Dialect::OpenAiChat => DONE,
            Dialect::Anthropic => MESSAGE_STOP,
            _ => return None,
        };
        let is_missing = self.last_event().is_none() && self.is_finished();
        is_missing.then(|| Bytes::from_static(terminator))
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

    /// The number of events in the stream so far: see
    /// [`StreamReader::events`](crate::llm::stream::StreamReader::events).
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
        self.finished().is_some()
    }

    /// Whether the upstream has said that the answer is whole or has failed.
    pub(crate) fn has_stopped(&self) -> bool {
        self.last_event().is_some()
            || match self.dialect() {
                // A chat answer has a stop reason as soon as one of its choices has finished.
                Dialect::OpenAiChat => self.is_finished(),
                _ => self.marks.stop_reason.lock().is_some(),
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
        self.marks.stop_reason.lock().clone()
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
    /// atomic stores, and allocates nothing. The result says whether the answer is whole, or has
    /// failed.
    #[inline(always)]
    pub(super) fn publish(&self, reader: &StreamReader) -> bool {
        let marks = &*self.marks;
        let store = |cell: &AtomicU64, value| cell.store(value, Ordering::Release);
        store(&marks.boundary, reader.boundary());
        store(&marks.position, reader.position());
        store(&marks.progressed, reader.progressed());
        store(&marks.events, reader.events());
        store(&marks.heartbeats, reader.heartbeats());
        store(&marks.sequence, reader.next_sequence());
        let finish = reader.finish();
        let is_finished = finish == Finish::Finished;
        let at = if is_finished { reader.boundary() } else { 0 };
        store(&marks.finished, at);
        let store_mark = |cell, offset: Option<u64>| {
            if let Some(offset) = offset {
                store(cell, offset);
            }
        };
        store_mark(&marks.commit, reader.commit());
        store_mark(&marks.error, reader.error());
        store_mark(&marks.terminator, reader.terminator());
        if let Some(reason) = reader.stop_reason() {
            let mut stored = marks.stop_reason.lock();
            // Of several choices the last one counts.
            if stored.as_deref() != Some(reason) {
                *stored = Some(reason.into());
            }
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
        match finish {
            Finish::Truncated => false,
            Finish::Finished => true,
            _ => self.publish_end(reader, finish),
        }
    }

    /// Publishes the marks of a stream that has ended, or of which the dialect is not known. The
    /// result says whether it has ended.
    #[cold]
    fn publish_end(&self, reader: &StreamReader, finish: Finish) -> bool {
        let marks = &*self.marks;
        let says_nothing = reader.says_nothing();
        marks.says_nothing.store(says_nothing, Ordering::Release);
        if finish == Finish::Unknown {
            return false;
        }
        marks.has_last.store(true, Ordering::Release);
        *marks.done.lock() = reader.done().cloned();
        true
    }
}

/// How long the body of a whole answer may stay open without a frame, before it counts as ended.
///
/// Some upstreams leave their connection open behind the last event.
const LINGER: Duration = Duration::from_secs(2);

/// The end of an answer that is whole, and has not been waited for since its last event.
const WHOLE: Nanos = 0;

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
    /// Whether the stream has a floor on its speed, for which its text is counted, too.
    has_floor: bool,
    /// The time at which an answer that is whole or has failed counts as ended: see [`LINGER`].
    /// `WHOLE` before the first `Pending` behind it; `NEVER` for any other answer.
    ends_at: Nanos,
    /// The number of events that are more than signs of life, once the answer is whole; `u64::MAX`
    /// once it has its last event.
    parts: u64,
    #[cfg(feature = "metrics")]
    pub(super) chunks: crate::run::StreamChunks,
}

impl SpeedMarks {
    /// Publishes what the stream has generated so far.
    #[cold]
    #[inline(never)]
    fn note(&self, reader: &StreamReader, has_content: bool) {
        let stated = reader.usage().map_or(0, |usage| usage.output_tokens);
        let generated = stated.saturating_mul(BYTES_PER_TOKEN);
        let generated = generated.saturating_add(reader.unstated_bytes());
        self.generated.store(generated, Ordering::Release);
        if has_content {
            self.contents.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl MarkingReader {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            reader: StreamReader::new(dialect),
            marks: ResponseMarks::new(),
            meter: None,
            has_floor: false,
            ends_at: NEVER,
            parts: 0,
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
        self.note(seen)
    }

    /// Reads the stream's last event, if the blank line behind that is missing. The transport has
    /// ended cleanly.
    pub(crate) fn end(&mut self) -> ChunkSummary {
        let seen = self.reader.end();
        self.note(seen)
    }

    /// The time at which the answer counts as ended, if it is whole and no further event comes.
    pub(super) const fn ends_at(&self) -> Nanos {
        self.ends_at
    }

    #[inline]
    pub(super) const fn lingers(&self) -> bool {
        self.ends_at != NEVER
    }

    /// Begins to wait for the end of a whole answer, at a `Pending`; returns when it counts as ended.
    pub(super) fn linger(&mut self, now: Nanos) -> Nanos {
        if self.ends_at == WHOLE {
            let until = || now.saturating_add(nanos(LINGER));
            self.ends_at = if self.marks.ends_soon() {
                until()
            } else {
                NEVER
            };
        }
        self.ends_at
    }

    /// Begins the wait for the end of a whole answer anew, unless only signs of life have come, or
    /// what an upstream sends behind the last event.
    #[cold]
    fn note_whole(&mut self) {
        let parts = match self.marks.last_event() {
            Some(_) => u64::MAX,
            None => self.reader.parts(),
        };
        if std::mem::replace(&mut self.parts, parts) != parts {
            self.ends_at = WHOLE;
        }
    }

    #[inline(always)]
    fn note(&mut self, seen: ChunkSummary) -> ChunkSummary {
        #[cfg(feature = "metrics")]
        if seen.content {
            self.chunks.count();
        }
        if self.marks.publish(&self.reader) {
            self.note_whole();
        } else {
            self.ends_at = NEVER;
        }
        if self.reader.take_usage_news() {
            *self.marks.marks.usage.lock() = self.reader.usage();
        }
        if let Some(meter) = &mut self.meter {
            let unstated = estimated_tokens(self.reader.unstated_bytes());
            meter.set(self.reader.usage(), unstated);
        }
        if self.has_floor {
            self.marks.marks.speed.note(&self.reader, seen.content);
        }
        seen
    }

    /// Starts to collect the text of the response, and to count its tokens.
    ///
    /// The text is collected if the run [keeps](Run::keep_partial) texts. The tokens are counted if
    /// `counts` is set, and the run or a run above it counts tokens; and for a floor on the stream's
    /// speed.
    pub(super) fn begin(&mut self, run: &Run, counts: bool) {
        if let Some(partial) = run.node().begin_partial() {
            self.reader.keep_text(partial);
        }
        if let Some(meter) = run.tokens().meter().filter(|_| counts) {
            self.reader.count_generated();
            self.meter = Some(Box::new(meter));
        }
        if run.attempts().has_floor() {
            self.begin_speed(run);
        }
    }

    #[cold]
    fn begin_speed(&mut self, run: &Run) {
        self.reader.count_generated();
        self.has_floor = true;
        let is_unproven = &self.marks.marks.speed.is_unproven;
        is_unproven.store(run.attempts().has_own_floor(), Ordering::Release);
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
            Finish::Truncated => {
                let mut cut = Truncated::new(self.reader.position());
                cut.is_unframed = self.reader.is_unframed();
                Err(cut)
            }
            _ => Ok(()),
        }
    }
}
