use bytes::Bytes;
use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode};
use http_body::Body;

use super::{
    stream_marks::{BodyForm, MarkingReader, PossibleStream, ResponseMarks},
    unary_tokens::UnaryTokens,
    undecided::UndecidedBody,
};
use crate::{
    body::{AnnouncedLength, has_body},
    llm::{
        GenAiOperation, WholeAnswer,
        dialect::{Dialect, Truncated},
        failure::{Failure, FailureClass},
    },
    run::{NEVER, Nanos, NotCounted, ResetOn, Run, TerminalReason},
    wall_clock::wall_clock,
};

/// The facts of a request that a layer needs to read the response.
///
/// The facts are the dialect of the request, and whether the method is HEAD.
#[derive(Debug, Default)]
pub(crate) struct ResponseFacts {
    dialect: Dialect,
    head: bool,
}

/// Returns the dialect that a request's path names, or else the one in its extensions. Without
/// either, returns [`Dialect::Any`].
#[inline]
pub(crate) fn dialect_of<B>(request: &Request<B>) -> Dialect {
    match Dialect::from_path(request.uri().path()) {
        Dialect::Any => request.extensions().get().copied().unwrap_or_default(),
        known => known,
    }
}

/// The operation of a request, for its span and its metrics.
pub(crate) fn operation_of<B>(request: &Request<B>) -> &'static GenAiOperation {
    GenAiOperation::of(request.uri().path(), dialect_of(request))
}

/// Observes a response body: its progress, its completeness, and the failure that it reports.
#[derive(Debug)]
pub(crate) struct Observer {
    mode: ObserverMode,
    passed: u64,
    /// Whether a body that is not an event stream has had nothing but white space so far, with
    /// which some upstreams keep a connection open before their answer.
    is_blank: bool,
    announced: AnnouncedLength,
    failed: Option<FailureClass>,
    /// The upstream's strongest sign of life that is not yet recorded on the node.
    unnoted: Option<ResetOn>,
    /// The number of the stream's heartbeats that were already added to the run's count.
    heartbeats: u64,
    /// Whether the response's usage and stop reason have been stored on the node.
    is_reported: bool,
    /// Whether the run adds the response's token usage to its own count. False if the response is
    /// [`NotCounted`], or if a [`UnaryTokens`] of this or of an inner layer adds the usage.
    counts: bool,
    /// Whether the response is [`NotCounted`]: no upstream is paid for it.
    is_free: bool,
}

#[derive(Debug)]
enum ObserverMode {
    /// Not an event stream: every byte counts as progress, except leading white space.
    Bytes,
    /// Not an event stream, in the layer that counts its tokens.
    Counting(Box<UnaryTokens>),
    /// The innermost layer of an event stream: it classifies each event.
    Classifying(Box<MarkingReader>),
    /// An outer layer of an event stream: it reads the marks of the layer that classifies.
    ReadingMarks {
        marks: ResponseMarks,
        /// The offset behind the latest progress, as it was at the last `Pending`.
        progressed: u64,
    },
    /// The first bytes, which tell whether the body is an event stream, have not come.
    Undecided(Box<UndecidedForm>),
}

/// The form of a body, before its first bytes.
#[derive(Debug)]
struct UndecidedForm {
    source: FormSource,
    tokens: TokenCount,
}

/// The count of the tokens of an answer, if it is not an event stream.
#[derive(Debug)]
enum TokenCount {
    /// No layer counts.
    None,
    Own(Box<UnaryTokens>),
    /// An inner layer counts.
    Inner,
}

/// The source of the decision whether a body is an event stream.
#[derive(Debug)]
enum FormSource {
    /// The innermost layer reads the first bytes.
    Own(Box<UndecidedBody>),
    /// An inner layer reads them.
    Marks(ResponseMarks),
}

impl ObserverMode {
    // The function is out of line, because most answers that a layer observes are not streams.
    #[inline(never)]
    fn of_events(
        facts: ResponseFacts,
        extensions: &mut Extensions,
        run: &Run,
        counts: bool,
    ) -> Self {
        if let Some(marks) = extensions.get::<ResponseMarks>() {
            return Self::ReadingMarks {
                marks: marks.clone(),
                progressed: 0,
            };
        }
        let mut reader = Box::new(MarkingReader::new(facts.dialect));
        reader.begin(run, counts);
        extensions.insert(reader.marks().clone());
        Self::Classifying(reader)
    }
}

impl ObserverMode {
    /// For a body whose head names no event stream.
    #[inline]
    fn of_bytes<B>(facts: &ResponseFacts, answer: &mut Response<B>, run: &Run) -> Self {
        match run.attempts().asks_for_stream() && !facts.head {
            true => Self::of_unknown(facts.dialect, answer, run),
            false => Self::Bytes,
        }
    }

    /// For a body that may be an event stream, although its head does not name one.
    #[cold]
    fn of_unknown<B>(dialect: Dialect, answer: &mut Response<B>, run: &Run) -> Self {
        if let Some(PossibleStream(marks)) = answer.extensions().get() {
            return Self::undecided(FormSource::Marks(marks.clone()));
        }
        let body = UndecidedBody::of(answer, dialect, run);
        body.map_or(Self::Bytes, |body| Self::undecided(FormSource::Own(body)))
    }

    fn undecided(source: FormSource) -> Self {
        let tokens = TokenCount::None;
        Self::Undecided(Box::new(UndecidedForm { source, tokens }))
    }
}

impl ResponseFacts {
    /// Whether a response with this head is a successful, uncompressed event stream.
    pub(crate) fn is_events(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        // An announced length of zero does not matter: an event stream without its
        // terminator is truncated.
        has_body(self.head, status) && MarkingReader::is_events(status, headers)
    }

    #[inline]
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        Self {
            dialect: dialect_of(request),
            // A successful CONNECT has no body either, but no model call is a CONNECT.
            head: request.method() == Method::HEAD,
        }
    }
}

/// Returns the failure class of a response, by its head; `None` if it is not a failure.
///
/// A [`Failure`] that an inner layer put into the response's extensions counts before the
/// status: such a layer also finds an error under a good status.
fn failed<B>(answer: &Response<B>) -> Option<FailureClass> {
    let classified = answer.extensions().get::<Failure>();
    let classified = classified.map(|failure| failure.class);
    classified.or_else(|| FailureClass::from_status(answer.status()))
}

impl Observer {
    /// Reads the head of the answer to `run`, and creates the observer of its body.
    ///
    /// The first layer that sees an event stream classifies its events, and adds the stream's
    /// marks to the response's extensions. Outer layers follow these marks.
    #[inline]
    pub(crate) fn new<B: Body>(facts: ResponseFacts, answer: &mut Response<B>, run: &Run) -> Self {
        let announced = AnnouncedLength::of_response(facts.head, answer);
        let counts = answer.extensions().get::<NotCounted>().is_none();
        let mode = if facts.is_events(answer.status(), answer.headers()) {
            ObserverMode::of_events(facts, answer.extensions_mut(), run, counts)
        } else {
            ObserverMode::of_bytes(&facts, answer, run)
        };
        Self {
            mode,
            passed: 0,
            is_blank: true,
            announced,
            failed: failed(answer),
            unnoted: None,
            heartbeats: 0,
            is_reported: false,
            counts,
            is_free: !counts,
        }
    }

    /// Begins to count the tokens of an answer that is not an event stream.
    ///
    /// The observer leaves out an answer that is failed, compressed or marked as [`NotCounted`]. It
    /// also leaves out one with tokens that an inner layer counts, and counts nothing if no run
    /// does.
    #[inline(never)]
    pub(super) fn count_answer<B>(&mut self, answer: &mut Response<B>, run: &Run) {
        let is_whole = matches!(self.mode, ObserverMode::Bytes | ObserverMode::Undecided(..));
        if !is_whole || self.failed.is_some() || !self.counts {
            return;
        }
        if let Some(counted) = UnaryTokens::of(answer, run) {
            match &mut self.mode {
                ObserverMode::Undecided(form) => {
                    form.tokens = counted.map_or(TokenCount::Inner, TokenCount::Own);
                }
                mode => {
                    self.counts = false;
                    *mode = counted.map_or(ObserverMode::Bytes, ObserverMode::Counting);
                }
            }
        }
    }

    /// Counts the data of a frame. The innermost layer of an event stream classifies its events.
    #[inline]
    pub(crate) fn frame(&mut self, data: &Bytes) {
        self.passed += data.len() as u64;
        let progress = match &mut self.mode {
            // The layer that classifies the events also notes them on the node.
            ObserverMode::ReadingMarks { .. } => return,
            ObserverMode::Classifying(reader) => reader.push(data).progress,
            _ if self.is_blank => return self.first_frame(data),
            ObserverMode::Counting(tokens) => {
                tokens.push(data);
                true
            }
            ObserverMode::Bytes | ObserverMode::Undecided(..) => true,
        };
        if progress {
            self.unnoted = Some(ResetOn::Content);
        } else {
            self.unnoted = self.unnoted.or(Some(ResetOn::AnyByte));
        }
    }

    /// Counts a frame of a body that is not an event stream, or may be one, of which nothing but
    /// white space has come: that is not a part of an answer.
    #[cold]
    #[inline(never)]
    fn first_frame(&mut self, data: &Bytes) {
        if let ObserverMode::Undecided(..) = self.mode {
            return self.frame_of_unknown(data);
        }
        if let ObserverMode::Counting(tokens) = &mut self.mode {
            tokens.push(data);
        }
        self.is_blank = data.trim_ascii_start().is_empty();
        self.unnoted = match self.is_blank {
            true => self.unnoted.or(Some(ResetOn::AnyByte)),
            false => Some(ResetOn::Content),
        };
    }

    /// Counts a frame of a body of which it is not known whether it is an event stream.
    #[cold]
    fn frame_of_unknown(&mut self, data: &Bytes) {
        let ObserverMode::Undecided(undecided) = &mut self.mode else {
            return;
        };
        let form = match &mut undecided.source {
            FormSource::Own(body) => body.push(data),
            FormSource::Marks(marks) => marks.form(),
        };
        if form == BodyForm::Unknown {
            self.unnoted = self.unnoted.or(Some(ResetOn::AnyByte));
            return;
        }
        let ObserverMode::Undecided(undecided) =
            std::mem::replace(&mut self.mode, ObserverMode::Bytes)
        else {
            return;
        };
        let UndecidedForm { source, tokens } = *undecided;
        self.mode = match (form, source, tokens) {
            (BodyForm::Events, FormSource::Own(body), _) => {
                ObserverMode::Classifying(body.into_reader(self.counts))
            }
            (BodyForm::Events, FormSource::Marks(marks), _) => {
                let progressed = 0;
                ObserverMode::ReadingMarks { marks, progressed }
            }
            (_, _, TokenCount::Own(tokens)) => {
                self.counts = false;
                ObserverMode::Counting(tokens)
            }
            (_, _, TokenCount::Inner) => {
                self.counts = false;
                ObserverMode::Bytes
            }
            (_, _, TokenCount::None) => ObserverMode::Bytes,
        };
        self.passed -= data.len() as u64;
        self.frame(data);
    }

    /// Handles the clean end of the body: the last event of a stream may lack its blank line.
    #[inline]
    pub(crate) fn end(&mut self) {
        if let ObserverMode::Classifying(reader) = &mut self.mode {
            if reader.boundary() < self.passed {
                reader.end();
            }
        }
    }

    /// The time at which the answer counts as ended, if it is whole and no further frame comes;
    /// `NEVER` for any other. Called at a `Pending`.
    #[cold]
    pub(super) fn linger(&mut self, now: Nanos) -> Nanos {
        match &mut self.mode {
            ObserverMode::Classifying(reader) => reader.linger(now),
            _ => NEVER,
        }
    }

    /// Whether the answer is whole or has failed, so that it [lingers](Self::linger).
    #[inline]
    pub(super) const fn lingers(&self) -> bool {
        matches!(&self.mode, ObserverMode::Classifying(reader) if reader.lingers())
    }

    /// Times the stream's first chunk with content, if the last frame was that chunk.
    #[cfg(feature = "metrics")]
    #[inline]
    pub(crate) fn time_first_chunk(&mut self, run: &Run) {
        if let ObserverMode::Classifying(reader) = &mut self.mode {
            if reader.chunks.is_first() {
                reader.chunks.time(crate::run::nanos(run.now()));
            }
        }
    }

    /// Whether there was progress since the last [`note`](Self::note), or since the last
    /// [`wait`](Self::wait).
    ///
    /// In the layer that reads the events or bytes itself, only progress since the last `note`
    /// counts. In an outer layer, which reads that layer's marks, only progress since the last
    /// `wait` counts.
    pub(crate) fn has_progressed(&self) -> bool {
        match &self.mode {
            ObserverMode::ReadingMarks { marks, progressed } => *progressed != marks.progressed(),
            _ => self.unnoted == Some(ResetOn::Content),
        }
    }

    /// Prepares for [`has_progressed`](Self::has_progressed), at a `Pending`, after the
    /// [`note`](Self::note) of the frames so far.
    pub(crate) fn wait(&mut self) {
        if let ObserverMode::ReadingMarks { marks, progressed } = &mut self.mode {
            *progressed = marks.progressed();
        }
    }

    /// Marks the response as complete: the caller gets its trailers, which are its last frame.
    pub(crate) fn trailers(&mut self) {
        self.announced = AnnouncedLength::NOTHING;
    }

    /// Whether the upstream sent progress or a sign of life since the last [`note`](Self::note), or
    /// the answer is [about to end](Self::linger). Always false if an inner layer notes them.
    pub(crate) const fn has_news(&self) -> bool {
        self.unnoted.is_some() || self.lingers()
    }

    /// Records at `now`, on the node and its ancestors, the signs of life since the last call.
    ///
    /// The method does nothing if no frame has come since then, or if an inner layer notes the
    /// frames.
    #[inline]
    pub(crate) fn note(&mut self, run: &Run, now: Nanos) {
        if let Some(sign) = self.unnoted.take() {
            #[cfg(feature = "metrics")]
            if let ObserverMode::Classifying(reader) = &mut self.mode {
                reader.chunks.time(now);
            }
            run.node().record_at(sign, now);
            self.note_heartbeats(run);
        }
    }

    /// Adds the stream's heartbeats since the last call to the run's count.
    ///
    /// Only the layer that classifies the stream's events adds its heartbeats, so that each
    /// counts once.
    fn note_heartbeats(&mut self, run: &Run) {
        if let ObserverMode::Classifying(reader) = &self.mode {
            let count = reader.marks().heartbeats();
            let new = count - std::mem::replace(&mut self.heartbeats, count);
            if new > 0 {
                run.beat_of_stream(new);
            }
        }
    }

    /// Stores usage, stop reason and partial text of the response on the node.
    ///
    /// The caller calls this method once no more of the response is read. Only the first call has
    /// an effect. The innermost layer that reads an event stream stores these values; of any other
    /// response only the usage is stored, by the layer that counts its tokens.
    #[inline]
    pub(crate) fn report(&mut self, run: &Run) {
        let reads = matches!(
            self.mode,
            ObserverMode::Classifying(_) | ObserverMode::Counting(_)
        );
        if reads && !self.is_reported {
            self.is_reported = true;
            self.report_answer(run);
        }
    }

    /// Takes the usage that the whole response states from a walk of it.
    pub(super) fn take_stated(&mut self, answer: &WholeAnswer) {
        if let ObserverMode::Counting(tokens) = &mut self.mode {
            tokens.take_stated(answer);
        }
    }

    fn report_answer(&mut self, run: &Run) {
        if let ObserverMode::Counting(tokens) = &mut self.mode {
            tokens.report(run);
        }
        if let ObserverMode::Classifying(reader) = &self.mode {
            let marks = reader.marks();
            #[cfg(feature = "metrics")]
            run.node().store_chunks(reader.chunks);
            let usage = marks.usage().filter(|_| self.counts);
            run.node().report(usage, marks.stop_reason().as_ref());
            if let Some(partial) = reader.kept_text() {
                run.node().end_partial(partial);
            }
            self.note_heartbeats(run);
        }
    }

    /// Whether a usage found in the response is still to be added to the run's count.
    ///
    /// False if the response is marked as [`NotCounted`], or if this or an inner layer counts the
    /// usage already.
    pub(crate) const fn counts(&self) -> bool {
        self.counts
    }

    /// Whether the response costs nothing: it is marked as [`NotCounted`].
    pub(crate) const fn is_free(&self) -> bool {
        self.is_free
    }

    /// The marks of the event stream, set by this or an inner layer. `None` for other responses.
    pub(crate) fn marks(&self) -> Option<&ResponseMarks> {
        match &self.mode {
            ObserverMode::Bytes | ObserverMode::Counting(_) | ObserverMode::Undecided(..) => None,
            ObserverMode::Classifying(reader) => Some(reader.marks()),
            ObserverMode::ReadingMarks { marks, .. } => Some(marks),
        }
    }

    /// The reason why the model stopped, in the upstream's words.
    pub(crate) fn stop_reason(&self) -> Option<std::sync::Arc<str>> {
        self.marks().and_then(ResponseMarks::stop_reason)
    }

    /// Whether a content event was read; of a response that is not an event stream, any byte but
    /// white space.
    pub(crate) fn has_content(&self) -> bool {
        self.marks()
            .map_or(!self.is_blank, |marks| marks.commit().is_some())
    }

    /// Whether the stream has sent a comment or a ping that counts as a heartbeat.
    pub(crate) fn has_heartbeats(&self) -> bool {
        self.marks().is_some_and(|marks| marks.heartbeats() > 0)
    }

    /// Checks whether the stream would be complete if it ended at this point.
    ///
    /// Only the layer that classifies the stream's events returns an error for a truncated one.
    ///
    /// # Errors
    ///
    /// The stream is [`Truncated`] if the terminator of its dialect is missing.
    pub(crate) fn finish(&self) -> Result<(), Truncated> {
        match &self.mode {
            ObserverMode::Classifying(reader) => reader.finish(),
            _ => Ok(()),
        }
    }

    /// Whether the caller has received the complete response.
    ///
    /// The response is complete with the body's announced length, the trailers, or the event that
    /// ends the stream. A stream that is finished is complete without that event once a layer has
    /// ended it: if the caller leaves before, usage may follow.
    pub(crate) fn is_complete(&self) -> bool {
        self.has_all() || self.is_closed()
    }

    fn is_closed(&self) -> bool {
        self.marks().is_some_and(ResponseMarks::is_closed) && self.is_finished()
    }

    /// Ends a finished answer, for which no layer waits any more.
    pub(super) fn close(&self) {
        if let Some(marks) = self.marks().filter(|marks| marks.finished().is_some()) {
            marks.close();
        }
    }

    /// Whether the answer is complete at `now` for a layer that waits. `is_end` says that the layer
    /// would end the node now; then it does not wait for what may follow a finished answer.
    pub(super) fn is_complete_at(&self, now: Nanos, is_end: bool) -> bool {
        self.has_all() || self.is_finished() && (is_end || self.has_ended(now))
    }

    /// Whether the answer has [lingered](Self::linger) for so long that it counts as ended.
    pub(super) fn has_ended(&self, now: Nanos) -> bool {
        match &self.mode {
            ObserverMode::Classifying(reader) => reader.ends_at() <= now,
            _ => false,
        }
    }

    /// Whether the stream so far is a whole answer, with or without the event that ends it.
    pub(super) fn has_answer(&self) -> bool {
        let terminator = self.marks().and_then(ResponseMarks::terminator);
        terminator.is_some_and(|at| self.passed >= at) || self.is_finished()
    }

    /// Whether the caller has the event that ends the stream, or all announced bytes.
    fn has_all(&self) -> bool {
        // Nothing follows an upstream's own error event, so it ends the stream as a
        // terminator does.
        let last = self.marks().and_then(ResponseMarks::last_event);
        last.is_some_and(|at| self.passed >= at) || self.announced.is_reached(self.passed)
    }

    /// Whether the caller has a finished answer, without the event that ends the stream.
    fn is_finished(&self) -> bool {
        let finished = self.marks().and_then(ResponseMarks::finished);
        finished.is_some_and(|at| self.passed >= at)
    }

    /// Whether the head of the response says that it is a failure.
    pub(super) const fn is_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The terminal reason for the node of a body that ended without a transport error.
    ///
    /// The reason is `Failed` for an error event, a failed head or a missing terminator, else
    /// `Completed`.
    pub(crate) fn verdict(&self) -> TerminalReason {
        let failure = self.marks().and_then(ResponseMarks::failure);
        let class = failure.map(|failure| Failure::of_stream(failure, wall_clock()).class);
        let cut = || self.finish().err().map(|cut| Failure::of_error(&cut).class);
        match class.or(self.failed).or_else(cut) {
            Some(class) => TerminalReason::Failed(class),
            None => TerminalReason::Completed,
        }
    }
}
