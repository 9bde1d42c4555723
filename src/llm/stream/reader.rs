use std::sync::Arc;

use super::{
    marks::{ChunkSummary, StreamMarks},
    partial_text::Partial,
};
use crate::llm::{
    dialect::{Dialect, Finish, StreamFailure, Usage},
    sse::Splitter,
};

/// Reads a stream as its bytes pass by and keeps the offsets that matter.
///
/// All offsets count the bytes fed, from the start of the stream, and point just past an event.
/// As with [`Splitter`], they do not depend on how the bytes were cut into chunks.
#[derive(Debug)]
pub struct StreamReader {
    splitter: Splitter,
    marks: StreamMarks,
}

impl StreamReader {
    /// A reader at the start of a stream.
    #[must_use]
    pub const fn new(dialect: Dialect) -> Self {
        Self {
            splitter: Splitter::new(),
            marks: StreamMarks::new(dialect),
        }
    }

    /// Keeps the text of the answer from now on.
    pub(crate) fn keep_text(&mut self, partial: Partial) {
        self.marks.partial = Some(partial);
    }

    /// What is kept.
    pub(crate) const fn kept_text(&self) -> Option<&Partial> {
        self.marks.partial.as_ref()
    }

    /// Feeds the next bytes and judges each event that they complete.
    pub fn push(&mut self, chunk: &[u8]) -> ChunkSummary {
        let Self { splitter, marks } = self;
        let mut seen = ChunkSummary::default();
        splitter.push(chunk, |event| marks.mark(&event, &mut seen));
        seen
    }

    /// The dialect; one that was [`Dialect::Any`] is here as detected.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.marks.dialect
    }

    /// Bytes fed so far.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.splitter.position()
    }

    /// Where the stream may be cut, as [`Splitter::boundary`].
    #[must_use]
    pub const fn boundary(&self) -> u64 {
        self.splitter.boundary()
    }

    /// The end of the first content event.
    #[must_use]
    pub const fn commit(&self) -> Option<u64> {
        self.marks.commit
    }

    /// The end of the first content event that holds more than reasoning.
    #[must_use]
    pub const fn text(&self) -> Option<u64> {
        self.marks.text
    }

    /// The end of the explicit terminator event.
    #[must_use]
    pub const fn terminator(&self) -> Option<u64> {
        self.marks.terminator
    }

    /// The end of upstream's error event. An error after the terminator does not count.
    #[must_use]
    pub const fn error(&self) -> Option<u64> {
        self.marks.error
    }

    /// The end of the latest event that was content or progress; 0 if there was none.
    #[must_use]
    pub const fn progressed(&self) -> u64 {
        self.marks.progressed
    }

    /// How many events there were, comments not counted.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.marks.events
    }

    /// How many signs of life there were that are nothing else: comments and pings.
    ///
    /// Not the first ping of an Anthropic stream before its first content: that API begins every
    /// stream with one, whether or not others follow.
    #[must_use]
    pub const fn heartbeats(&self) -> u64 {
        self.splitter.comments() + self.marks.pings.count
    }

    /// What upstream's error event said.
    #[must_use]
    pub fn failure(&self) -> Option<&StreamFailure> {
        self.marks.error.and(self.marks.stream.failure())
    }

    /// The tokens used, merged over all events.
    #[must_use]
    pub const fn usage(&self) -> Option<Usage> {
        self.marks.stream.usage()
    }

    /// Why the model stopped, in upstream's words, at most 1 KiB: `finish_reason`, `stop_reason`,
    /// or the reason of an incomplete response.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&str> {
        self.marks.stream.stop_reason()
    }

    /// The sequence number that an event appended now should carry: in the Responses dialect one
    /// more than the last, else 0.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.marks.stream.next_sequence()
    }

    /// The id of the answer, at most 256 bytes: in the Responses dialect as its first events said
    /// it, else `None`.
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        self.marks.stream.response_id()
    }

    /// The id of the answer, and the end of the event that said it.
    pub(crate) fn named(&self) -> Option<(&Arc<str>, u64)> {
        self.marks.stream.shared_response_id().zip(self.marks.named)
    }

    /// What a clean end of the transport would mean now.
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
