use http::{HeaderMap, StatusCode, header};

use super::marks::ResponseMarks;
use crate::llm::{
    dialect::{Dialect, Finish, Truncated},
    stream::{ChunkSummary, Partial, StreamReader},
};

/// An event stream that this layer judges, and the marks it publishes.
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

    /// Whether an answer with this head is a stream of readable events.
    pub(crate) fn is_events(status: StatusCode, headers: &HeaderMap) -> bool {
        status.is_success() && is_event_stream(headers)
    }

    pub(crate) const fn judged(&self) -> &ResponseMarks {
        &self.judged
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) -> ChunkSummary {
        let seen = self.judge.push(chunk);
        self.judged.publish(&self.judge);
        seen
    }

    /// Keeps the text of the answer from now on.
    pub(super) fn keep_text(&mut self, partial: Partial) {
        self.judge.keep_text(partial);
    }

    /// The text that was kept; none of it if the answer is whole.
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

    /// What a clean end means after what was seen.
    ///
    /// # Errors
    ///
    /// If the terminator is missing.
    pub(crate) fn finish(&self) -> Result<(), Truncated> {
        match self.judge.finish() {
            Finish::Truncated => Err(Truncated::new(self.judge.position())),
            _ => Ok(()),
        }
    }
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    names_events(headers) && is_plain(headers)
}

/// Whether the body is as it was written, and not compressed.
pub(crate) fn is_plain(headers: &HeaderMap) -> bool {
    let plain =
        |encoding: &http::HeaderValue| encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    headers.get(header::CONTENT_ENCODING).is_none_or(plain)
}

/// Whether the content type is that of a stream of events, readable or not.
pub(crate) fn names_events(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(header::CONTENT_TYPE) else {
        return false;
    };
    let essence = b"text/event-stream";
    let value = content_type.as_bytes();
    value.len() >= essence.len()
        && value[..essence.len()].eq_ignore_ascii_case(essence)
        && value
            .get(essence.len())
            .is_none_or(|b| matches!(b, b';' | b' ' | b'\t'))
}
