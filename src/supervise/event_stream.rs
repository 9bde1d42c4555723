use http::{HeaderMap, StatusCode};

use super::marks::ResponseMarks;
use crate::{
    headers::{is_plain, names_events},
    llm::{
        dialect::{Dialect, Finish, Truncated},
        stream::{ChunkSummary, Partial, StreamReader},
    },
};

/// An event stream that this layer judges, and the published marks.
#[derive(Debug)]
pub(crate) struct Stream {
    judge: StreamReader,
    judged: ResponseMarks,
}

impl Stream {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self {
            judge: StreamReader::new(dialect),
            judged: ResponseMarks::new(),
        }
    }

    /// Whether a response with this head is a readable event stream.
    pub(crate) fn is_events(status: StatusCode, headers: &HeaderMap) -> bool {
        status.is_success() && names_events(headers) && is_plain(headers)
    }

    pub(crate) const fn judged(&self) -> &ResponseMarks {
        &self.judged
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) -> ChunkSummary {
        let seen = self.judge.push(chunk);
        self.judged.publish(&self.judge);
        seen
    }

    /// Collects the text of the response in `partial` from now on.
    pub(super) fn keep_text(&mut self, partial: Partial) {
        self.judge.keep_text(partial);
    }

    /// Returns the partial text of the response, if it is collected, emptied if the
    /// response is complete.
    pub(super) fn kept_text(&self) -> Option<&Partial> {
        let kept = self.judge.kept_text()?;
        if matches!(self.judge.finish(), Finish::Complete | Finish::Finished) {
            kept.clear();
        }
        Some(kept)
    }

    pub(crate) const fn boundary(&self) -> u64 {
        self.judge.boundary()
    }

    /// Checks whether the stream is complete if its body ends cleanly at this point.
    ///
    /// # Errors
    ///
    /// The stream is [`Truncated`] if the terminator of its dialect is missing.
    pub(crate) fn finish(&self) -> Result<(), Truncated> {
        match self.judge.finish() {
            Finish::Truncated => Err(Truncated::new(self.judge.position())),
            _ => Ok(()),
        }
    }
}
