use std::sync::Arc;

use super::{
    marks::{ChunkSummary, StreamMarks},
    partial_text::Partial,
};
use crate::llm::{
    dialect::{Dialect, Finish, StreamFailure, Usage},
    sse::Splitter,
};

/// The observer of a stream's bytes, which keeps the offsets of the stream's marks.
///
/// All offsets count the bytes from the start of the stream, and point directly behind an
/// event. As with [`Splitter`], the offsets do not depend on how the bytes are cut into
/// chunks.
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

    /// Collects the text of the answer in `partial` from now on.
    pub(crate) fn keep_text(&mut self, partial: Partial) {
        self.marks.partial = Some(partial);
    }

    /// The partial text of the answer, if it is collected.
    pub(crate) const fn kept_text(&self) -> Option<&Partial> {
        self.marks.partial.as_ref()
    }

    /// Reads the next bytes of the stream, and judges each event that they complete.
    pub fn push(&mut self, chunk: &[u8]) -> ChunkSummary {
        let Self { splitter, marks } = self;
        let mut seen = ChunkSummary::default();
        splitter.push(chunk, |event| marks.mark(&event, &mut seen));
        seen
    }

    /// The dialect of the stream; one that was [`Dialect::Any`] changes when it is
    /// detected.
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

    /// The offset behind the stream's latest event that was content or progress, or 0.
    #[must_use]
    pub const fn progressed(&self) -> u64 {
        self.marks.progressed
    }

    /// The number of events in the stream so far, without comments.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.marks.events
    }

    /// The number of comments and pings in the stream so far, which are signs of life
    /// only.
    ///
    /// The first ping of an Anthropic stream before its first content does not count:
    /// that API begins every stream with a ping, whether or not others follow.
    #[must_use]
    pub const fn heartbeats(&self) -> u64 {
        self.splitter.comments() + self.marks.pings.count
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

    /// The reason why the model stopped, in the upstream's words, at most 1 KiB.
    ///
    /// The stop reason is `finish_reason`, `stop_reason`, or the reason of an incomplete
    /// response.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&str> {
        self.marks.stream.stop_reason()
    }

    /// The sequence number of an event that would be appended to the stream now.
    ///
    /// In the Responses dialect the number is one more than that of the last event, in
    /// any other dialect 0.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.marks.stream.next_sequence()
    }

    /// The id of the answer, at most 256 bytes.
    ///
    /// In the Responses dialect the first events carry the id; in any other dialect it is
    /// `None`.
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        self.marks.stream.response_id()
    }

    /// The id of the answer, and the offset behind the event that carried the id.
    pub(crate) fn response_id_end(&self) -> Option<(&Arc<str>, u64)> {
        self.marks
            .stream
            .shared_response_id()
            .zip(self.marks.id_end)
    }

    /// Judges the stream's completeness if its transport ends cleanly at this point.
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
