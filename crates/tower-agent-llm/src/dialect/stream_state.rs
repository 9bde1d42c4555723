use std::sync::Arc;

use bytes::Bytes;

use super::{
    stream_failure::{MAX_TEXT, StreamFailure},
    usage::{Tokens, Usage},
};
use crate::json_scanner::Scanner;

/// The longest id of an answer that is kept, in bytes.
///
/// A longer id is ignored, not cut: a cut id could equal another one.
const MAX_ID: usize = 256;

/// The state that a [`Grammar`](crate::dialect::Grammar) keeps of one stream.
#[derive(Debug, Default)]
pub struct StreamState {
    usage: Option<Usage>,
    stop_reason: Option<Box<str>>,
    failure: Option<Box<StreamFailure>>,
    next_sequence: u64,
    response_id: Option<Arc<str>>,
    /// The part of the prompt that the upstream has read, as it last stated it.
    prompt_progress: u64,
    /// The event that ends the answer for SDKs, if the upstream ended it by another one.
    done: Option<Bytes>,
    /// Whether the upstream has sent the event that ends the answer for SDKs.
    is_ended: bool,
    pub(crate) choices: ChatChoices,
}

/// The choices of a chat answer that appeared, and those that finished, one bit per index.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChatChoices {
    seen: u128,
    finished: u128,
    /// Whether a choice had an index beyond 127, so that it is unknown whether every
    /// choice finished.
    overflow: bool,
}

impl StreamState {
    /// The token usage that the upstream has reported in the stream so far.
    #[must_use]
    pub const fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Merges the token counts of one event into the stream's usage.
    ///
    /// Token counts are running totals, so of two values the greater one stays.
    pub fn report_usage(&mut self, input_tokens: Option<u64>, output_tokens: Option<u64>) {
        let mut tokens = Tokens::default();
        (tokens.input, tokens.output) = (input_tokens, output_tokens);
        self.report_tokens(tokens);
    }

    #[inline]
    pub(super) fn report_tokens(&mut self, tokens: Tokens) {
        if let Some(later) = tokens.usage() {
            self.usage.get_or_insert_default().update(later);
        }
    }

    /// The reason why the model stopped, in the upstream's words.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&str> {
        self.stop_reason.as_deref()
    }

    /// Stores the reason why the model stopped, cut at 1 KiB.
    pub fn report_stop(&mut self, reason: &[u8]) {
        let reason = String::from_utf8_lossy(&reason[..reason.len().min(MAX_TEXT)]);
        if self.stop_reason() != Some(&*reason) {
            self.stop_reason = Some(reason.into());
        }
    }

    /// The failure that the upstream reported in the stream.
    #[must_use]
    pub fn failure(&self) -> Option<&StreamFailure> {
        self.failure.as_deref()
    }

    /// Stores a failure that the upstream reported; the stream's first one stays.
    pub fn report_failure(&mut self, failure: StreamFailure) {
        self.failure.get_or_insert_with(|| Box::new(failure));
    }

    /// Stores whether the event that reported the failure is named `error`, and whether SDKs
    /// ignore the form of it.
    pub(crate) fn note_form(&mut self, is_named: bool, is_bare: bool) {
        if let Some(failure) = &mut self.failure {
            failure.is_bare |= is_bare;
            failure.is_named = is_named && !failure.is_bare;
        }
    }

    /// The sequence number of an event that would be appended to the stream now.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Stores the sequence number of the stream's latest event; the next one is one more.
    pub const fn report_sequence(&mut self, sequence: u64) {
        self.next_sequence = sequence.saturating_add(1);
    }

    /// The id of the answer.
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        self.response_id.as_deref()
    }

    /// Stores the id of the answer; the stream's first one stays.
    ///
    /// A grammar should call this method only for an event that it classifies as
    /// [`EventKind::Prelude`](crate::sse::EventKind::Prelude). An empty id, one of more
    /// than 256 bytes, and one that is not UTF-8 are ignored.
    pub fn report_response_id(&mut self, id: &[u8]) {
        if self.response_id.is_some() || id.is_empty() || id.len() > MAX_ID {
            return;
        }
        self.response_id = std::str::from_utf8(id).ok().map(Arc::from);
    }

    /// Whether a `prompt_progress` states that more of the prompt is read than before.
    #[cold]
    pub(super) fn has_prompt_grown(&mut self, progress: &[u8]) -> bool {
        let [processed] = Scanner::members(progress, [b"processed"]).unwrap_or_default();
        let processed = processed.unwrap_or(progress);
        let processed = Scanner::new(processed).count().ok().flatten().unwrap_or(0);
        let has_grown = processed > self.prompt_progress;
        self.prompt_progress = self.prompt_progress.max(processed);
        has_grown
    }

    /// Records that the upstream has sent the event that ends the answer for SDKs.
    pub(super) fn end(&mut self) {
        self.is_ended = true;
        self.done = None;
    }

    /// Keeps the response of a `response.done` as the event that it replaces.
    pub(super) fn keep_done(&mut self, is_incomplete: bool, response: &[u8]) {
        if self.is_ended {
            return;
        }
        let kind = if is_incomplete {
            "incomplete"
        } else {
            "completed"
        };
        let sequence = self.next_sequence;
        let mut event = format!(
            "event: response.{kind}\ndata: {{\"type\":\"response.{kind}\",\
             \"sequence_number\":{sequence},\"response\":"
        )
        .into_bytes();
        // The lines of a document would each need a field; in JSON a line end is white space.
        event.extend(response.iter().map(|byte| match byte {
            b'\n' | b'\r' => b' ',
            byte => *byte,
        }));
        event.extend_from_slice(b"}\n\n");
        self.done = Some(event.into());
    }

    /// The event that ends the answer for SDKs, if the upstream ended it by another one.
    pub(crate) const fn done(&self) -> Option<&Bytes> {
        self.done.as_ref()
    }

    pub(crate) const fn shared_response_id(&self) -> Option<&Arc<str>> {
        self.response_id.as_ref()
    }
}

impl ChatChoices {
    pub(crate) fn see(&mut self, index: u64, finished: bool) {
        if index >= u64::from(u128::BITS) {
            self.overflow = true;
            return;
        }
        self.seen |= 1 << index;
        self.finished |= u128::from(finished) << index;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.seen |= other.seen;
        self.finished |= other.finished;
        self.overflow |= other.overflow;
    }

    /// Whether any choice has appeared.
    pub(crate) const fn has_any(&self) -> bool {
        self.seen != 0 || self.overflow
    }

    pub(crate) const fn all_finished(&self) -> bool {
        self.seen != 0 && self.seen == self.finished && !self.overflow
    }
}
