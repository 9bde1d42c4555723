//! The reader of an event stream, and its marks: offsets of the events that matter to layers.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    event_shape::{Match, Shape},
    generated_text::GeneratedText,
    partial_text::{Partial, read_text},
};
use crate::{
    dialect::{
        Anthropic, Detected, Dialect, Finish, Grammar, OpenAiChat, OpenAiResponses, StreamFailure,
        StreamState, Usage, detect, is_done, report_sequence,
    },
    json_scanner::{Scanner, Text},
    sse::{Event, EventKind, EventVerdict, Splitter},
};

/// The reader of an event stream, which keeps the offsets of the events that matter to layers.
///
/// An offset is the number of bytes from the stream's start to the event's [`end`](Event::end).
///
/// If the blank line that ends the event is a CRLF, the end is between the CR and the LF. As with
/// [`Splitter`], the offsets do not depend on how the bytes are cut into chunks.
#[derive(Debug)]
pub struct StreamReader {
    splitter: Splitter,
    marks: StreamMarks,
}

impl StreamReader {
    /// Creates a reader at the start of a stream.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        Self {
            splitter: Splitter::new(),
            marks: StreamMarks {
                dialect,
                ..StreamMarks::default()
            },
        }
    }

    /// Collects the text of the answer in `partial`, from the next event on.
    #[doc(hidden)]
    pub fn keep_text(&mut self, partial: Partial) {
        self.marks.partial = Some(partial);
    }

    /// Switches on the count of the bytes of text that the model generates.
    ///
    /// The method is called before the first event. [`unstated_bytes`](Self::unstated_bytes)
    /// returns the count.
    #[doc(hidden)]
    pub fn count_generated(&mut self) {
        self.marks.generated.get_or_insert_default();
    }

    /// Whether the stream's merged usage has changed since the last call of this method.
    ///
    /// A number that is not greater than an earlier one changes nothing.
    #[inline]
    #[doc(hidden)]
    pub const fn take_usage_news(&mut self) -> bool {
        std::mem::replace(&mut self.marks.has_usage_news, false)
    }

    /// The bytes of generated text since the upstream last stated a new number of output tokens.
    ///
    /// The number has no meaning unless the text is [counted](Self::count_generated).
    #[doc(hidden)]
    pub const fn unstated_bytes(&self) -> u64 {
        self.marks.unstated
    }

    /// The partial text of the answer, if it is collected.
    #[doc(hidden)]
    pub const fn kept_text(&self) -> Option<&Partial> {
        self.marks.partial.as_ref()
    }

    #[cfg(test)]
    pub(super) const fn forget_shape(&mut self) {
        self.marks.shape.forget();
    }

    /// The number of events that were classified by their shape, without a walk over their JSON.
    #[cfg(test)]
    pub(super) const fn shape_hits(&self) -> u64 {
        self.marks.shape.hits
    }

    /// Reads the next bytes of the stream, and classifies each event that they complete.
    pub fn push(&mut self, chunk: &[u8]) -> ChunkSummary {
        let Self { splitter, marks } = self;
        let mut seen = ChunkSummary::default();
        splitter.push(chunk, |event| marks.mark(&event, &mut seen));
        seen
    }

    /// Ends the stream: reads its last event if the blank line behind that is missing.
    ///
    /// Such an event counts only if its data is a whole JSON object or `[DONE]`. Of any other, a
    /// part may be lost. Call this method once, after a clean end of the stream's transport.
    pub fn end(&mut self) -> ChunkSummary {
        let Self { splitter, marks } = self;
        let mut seen = ChunkSummary::default();
        splitter.finish(is_whole_data, |event| marks.mark(&event, &mut seen));
        seen
    }

    /// The dialect of the stream. [`Dialect::Any`] is replaced once an event shows the dialect.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.marks.dialect
    }

    /// The number of the stream's bytes that were read so far.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.splitter.position()
    }

    /// The greatest offset so far at which the stream may be cut: see
    /// [`Splitter::boundary`].
    #[must_use]
    pub const fn boundary(&self) -> u64 {
        self.splitter.boundary()
    }

    /// The offset behind the stream's first event with content.
    #[must_use]
    pub const fn commit(&self) -> Option<u64> {
        self.marks.commit
    }

    /// The offset behind the stream's first event with content that is more than
    /// reasoning.
    #[must_use]
    pub const fn text(&self) -> Option<u64> {
        self.marks.text
    }

    /// The offset behind the stream's explicit terminator event.
    #[must_use]
    pub const fn terminator(&self) -> Option<u64> {
        self.marks.terminator
    }

    /// The offset behind the event by which the upstream reported an error.
    ///
    /// An error event after the terminator does not count.
    #[must_use]
    pub const fn error(&self) -> Option<u64> {
        self.marks.error
    }

    /// The number of events in the stream so far that are more than signs of life.
    #[doc(hidden)]
    pub const fn parts(&self) -> u64 {
        self.marks.events - self.marks.lives
    }

    /// Whether the stream has no event, but JSON without a field, which SDKs ignore.
    #[doc(hidden)]
    pub const fn is_unframed(&self) -> bool {
        self.marks.has_bare && self.marks.events == 0
    }

    /// Whether the stream so far has no part of an answer: JSON without a field alone, or behind
    /// pings nothing but a terminator. In chat, events without choices are not a part of one.
    #[doc(hidden)]
    pub fn says_nothing(&self) -> bool {
        let marks = &self.marks;
        let has_part = || match marks.dialect {
            Dialect::OpenAiChat => marks.stream.choices.has_any(),
            _ => marks.events > marks.lives + 1,
        };
        let states = marks.usage_or_stop();
        self.is_unframed()
            || marks.terminator.is_some() && marks.commit.is_none() && !states && !has_part()
    }

    /// The offset behind the stream's latest event that was content or progress, or 0.
    #[must_use]
    pub const fn progressed(&self) -> u64 {
        self.marks.progressed
    }

    /// The number of events in the stream so far, without comments, and without JSON that has no
    /// field and reports no error.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.marks.events
    }

    /// The number of comments and pings in the stream so far. The opening ping of an Anthropic
    /// stream is left out.
    ///
    /// The first ping of an Anthropic stream before its first content does not count:
    /// that API begins every stream with a ping, whether or not others follow.
    #[must_use]
    pub const fn heartbeats(&self) -> u64 {
        self.splitter.comments() + self.marks.pings
    }

    /// The content of the event by which the upstream reported an error.
    #[must_use]
    pub fn failure(&self) -> Option<&StreamFailure> {
        self.marks.error.and(self.marks.stream.failure())
    }

    /// The tokens that the answer has used, merged over all events of the stream.
    #[must_use]
    pub const fn usage(&self) -> Option<Usage> {
        self.marks.stream.usage()
    }

    /// The reason why the model stopped, in the upstream's words, cut at 1 KiB.
    ///
    /// The stop reason is `finish_reason`, `stop_reason`, or the reason of an incomplete
    /// response.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&str> {
        self.marks.stream.stop_reason()
    }

    /// The event that ends the answer for SDKs, if the upstream ended it by another one.
    #[doc(hidden)]
    pub const fn done(&self) -> Option<&Bytes> {
        self.marks.stream.done()
    }

    /// The sequence number of an event that would be appended to the stream now.
    ///
    /// In the Responses dialect the number is one more than that of the last event. A custom
    /// grammar may report numbers too; in any other dialect the result is 0.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.marks.stream.next_sequence()
    }

    /// The id of the answer, at most 256 bytes.
    ///
    /// In the Responses dialect the first events carry the id. A custom grammar may report an id
    /// too; in any other dialect the result is `None`.
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        self.marks.stream.response_id()
    }

    /// The id of the answer, and the offset behind the event that carried the id.
    #[inline]
    #[doc(hidden)]
    pub fn response_id_end(&self) -> Option<(&Arc<str>, u64)> {
        self.marks
            .stream
            .shared_response_id()
            .zip(self.marks.id_end)
    }

    /// Returns how complete the stream would be if its transport ended cleanly at this point.
    #[inline]
    #[must_use]
    pub fn finish(&self) -> Finish {
        let marks = &self.marks;
        if marks.error.is_some() {
            Finish::Failed
        } else if marks.terminator.is_some() {
            Finish::Complete
        } else {
            marks
                .dialect
                .grammar()
                .map_or(Finish::Unknown, |grammar| grammar.finish(&marks.stream))
        }
    }
}

#[derive(Debug, Default)]
struct StreamMarks {
    dialect: Dialect,
    stream: StreamState,
    commit: Option<u64>,
    text: Option<u64>,
    terminator: Option<u64>,
    error: Option<u64>,
    /// Whether JSON without a field came that reports no error.
    has_bare: bool,
    id_end: Option<u64>,
    progressed: u64,
    events: u64,
    /// The pings that count as heartbeats.
    pings: u64,
    /// The events that are only signs of life.
    lives: u64,
    /// Whether the ping that comes at the start of every Anthropic stream was already read.
    has_opening_ping: bool,
    /// The partial text of the answer, if it is collected.
    partial: Option<Partial>,
    shape: Shape,
    /// The reader of the generated text in an event, if that text is counted.
    generated: Option<Box<GeneratedText>>,
    /// Whether the stream's merged usage has changed since the last `take_usage_news`.
    ///
    /// A number that is not greater than an earlier one changes nothing.
    has_usage_news: bool,
    /// The bytes that the model has generated since the upstream last stated a new number of output
    /// tokens.
    unstated: u64,
}

impl StreamMarks {
    #[inline(always)]
    fn mark(&mut self, event: &Event<'_>, seen: &mut ChunkSummary) {
        self.events += 1;
        let (verdict, text) = match self.shape.matches(event) {
            Some(Match {
                verdict,
                sequence,
                generated,
                text,
            }) => {
                if let Some(sequence) = sequence {
                    self.stream.report_sequence(sequence);
                }
                self.unstated += generated;
                (verdict, text)
            }
            None => (self.walk(event), None),
        };
        if verdict.kind != EventKind::Content {
            return self.mark_other(event, verdict.kind, seen);
        }
        seen.content = true;
        seen.progress = true;
        self.progressed = event.end;
        if self.text.is_none() {
            self.mark_first(event, verdict);
        }
        if self.partial.is_some() && !verdict.reasoning {
            self.collect(event, text);
        }
    }

    /// Marks the stream's first content and its first text; called until there is text.
    #[inline(never)]
    fn mark_first(&mut self, event: &Event<'_>, verdict: EventVerdict) {
        self.commit.get_or_insert(event.end);
        if !verdict.reasoning {
            self.text.get_or_insert(event.end);
        }
    }

    /// Collects the text of an event; `text` is what its shape has found.
    #[inline(never)]
    fn collect(&mut self, event: &Event<'_>, text: Option<Text<'_>>) {
        let Some(partial) = &self.partial else {
            return;
        };
        match text {
            Some(text) => partial.push(text),
            None => read_text(self.dialect, event, &mut |text| partial.push(text)),
        }
        if event.elided() > 0 {
            partial.fill();
        }
    }

    /// Marks an event that is not content.
    #[inline(never)]
    fn mark_other(&mut self, event: &Event<'_>, kind: EventKind, seen: &mut ChunkSummary) {
        match kind {
            EventKind::Content => {}
            EventKind::Progress => {
                seen.progress = true;
                self.progressed = event.end;
            }
            EventKind::Prelude => {
                if self.stream.response_id().is_some() {
                    self.id_end.get_or_insert(event.end);
                }
            }
            EventKind::Life => self.ping(),
            EventKind::Terminator => {
                seen.ended = true;
                self.terminator.get_or_insert(event.end);
                if let Some(partial) = &self.partial {
                    partial.complete();
                }
            }
            EventKind::Error => {
                seen.ended = true;
                if self.terminator.is_none() && self.error.is_none() {
                    self.error = Some(event.end);
                    if self.stream.failure().is_none() {
                        self.stream.report_failure(StreamFailure::read(event.data));
                    }
                    self.stream
                        .note_form(event.name == b"error", event.is_bare());
                }
            }
        }
    }

    /// Whether the upstream has stated a usage or a stop reason.
    fn usage_or_stop(&self) -> bool {
        self.stream.usage().is_some() || self.stream.stop_reason().is_some()
    }

    #[cold]
    fn ping(&mut self) {
        self.lives += 1;
        let opens = matches!(self.dialect, Dialect::Anthropic) && self.commit.is_none();
        if opens && !std::mem::replace(&mut self.has_opening_ping, true) {
            return;
        }
        self.pings += 1;
    }

    /// Classifies an event that does not match the shape, by a walk over its JSON.
    #[inline(never)]
    fn walk(&mut self, event: &Event<'_>) -> EventVerdict {
        if self.error.is_some() {
            // Nothing behind an error counts: an attempt or the caller's stream ends there, however
            // much one chunk brings. No event has a shape behind it, so each comes here.
            return EventKind::Prelude.into();
        }
        let before = self.stream.usage();
        let verdict = self.judge(event);
        let usage = self.stream.usage();
        if usage != before {
            self.has_usage_news = true;
        }
        // No tokens for a text say nothing: some upstreams state zero with every answer.
        let output = |usage: Option<Usage>| usage.map_or(0, |usage| usage.output_tokens);
        let is_content = verdict.kind == EventKind::Content;
        let reader = self.generated.as_mut().filter(|_| is_content);
        // What was dropped from a long event counts as what is left of it does.
        let elided = |generated: u64| if generated > 0 { event.elided() } else { 0 };
        let generated = reader.map(|reader| reader.read(event.data));
        let generated = generated.map(|generated| generated + elided(generated));
        if output(usage) != output(before) {
            // The new number includes the text of this event.
            self.unstated = 0;
        } else {
            self.unstated += generated.unwrap_or(0);
        }
        if verdict.kind != EventKind::Content {
            self.shape.forget();
            return verdict;
        }
        let (mut text, mut texts) = (None, 0);
        if self.partial.is_some() {
            read_text(self.dialect, event, &mut |part| {
                text = Some(part);
                texts += 1;
            });
        }
        let text = text.filter(|_| texts == 1);
        self.shape
            .record(self.dialect, event, verdict, text, generated);
        verdict
    }

    /// Classifies JSON that stands in the stream without a field: an error, or nothing to an SDK.
    #[cold]
    fn judge_bare(&mut self, json: &[u8]) -> EventVerdict {
        if StreamFailure::is_in(json, self.events == 1) {
            return EventKind::Error.into();
        }
        self.events -= 1;
        self.has_bare = true;
        EventKind::Prelude.into()
    }

    #[inline]
    fn judge(&mut self, event: &Event<'_>) -> EventVerdict {
        if event.name == b"error" {
            if matches!(self.dialect, Dialect::OpenAiResponses) {
                report_sequence(event, &mut self.stream);
            }
            return EventKind::Error.into();
        }
        if event.is_bare() {
            return self.judge_bare(event.data);
        }
        let stream = &mut self.stream;
        match self.dialect {
            Dialect::OpenAiChat => OpenAiChat.judge(event, stream),
            Dialect::OpenAiResponses => OpenAiResponses.judge(event, stream),
            Dialect::Anthropic => Anthropic.judge(event, stream),
            Dialect::Custom(grammar) => grammar.judge(event, stream),
            Dialect::Any => match detect(event) {
                Detected::As(dialect) => {
                    self.dialect = dialect;
                    self.judge(event)
                }
                Detected::Undecided(kind) => kind.into(),
            },
        }
    }
}

/// Whether the data of an event without its blank line is whole: a JSON object, or `[DONE]`.
#[must_use]
pub fn is_whole_data(data: &[u8]) -> bool {
    is_done(data) || Scanner::document(data, |json, _| json.skip()).is_ok()
}

/// The kinds of events that one chunk of a stream completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkSummary {
    /// Whether the chunk completed at least one event with content.
    pub content: bool,
    /// Whether the chunk completed at least one event with content or progress.
    pub progress: bool,
    /// Whether the chunk completed the terminator or an error event.
    pub ended: bool,
}
