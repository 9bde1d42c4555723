use std::sync::Arc;

use memchr::memmem;

use super::stream_failure::StreamFailure;
use crate::llm::json::Scanner;

/// Bytes kept of a text that upstream sent.
pub(crate) const MAX_TEXT: usize = 1024;

/// Bytes of the longest id that is kept: half of one would be another's.
const MAX_ID: usize = 256;

/// Tokens that upstream says it used, in its own way of counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the prompt. Anthropic counts cached ones apart; they are not in here.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
}

impl Usage {
    /// What a whole answer that is no stream says at its top: `usage`, with the
    /// names of any of the dialects.
    pub(crate) fn of_answer(body: &[u8]) -> Option<Self> {
        // What says nothing of it is not parsed.
        memmem::find(body, b"\"usage\"")?;
        let (mut input, mut output) = (None, None);
        let read = Scanner::document(body, |json, key| match key {
            b"usage" => {
                (input, output) = (None, None);
                json.object(|json, key| {
                    match key {
                        b"input_tokens" | b"prompt_tokens" => input = json.integer()?,
                        b"output_tokens" | b"completion_tokens" => output = json.integer()?,
                        _ => json.skip()?,
                    }
                    Ok(())
                })
                .map(drop)
            }
            _ => json.skip(),
        });
        read.ok()?;
        input.or(output)?;
        Some(Self {
            input_tokens: input.unwrap_or(0),
            output_tokens: output.unwrap_or(0),
        })
    }
}

/// What a [`Grammar`](crate::llm::dialect::Grammar) remembers of one stream, from event to event.
#[derive(Debug, Default)]
pub struct StreamState {
    usage: Option<Usage>,
    stop_reason: Option<Box<str>>,
    failure: Option<Box<StreamFailure>>,
    next_sequence: u64,
    response_id: Option<Arc<str>>,
    pub(crate) choices: ChatChoices,
}

/// Which choices of a chat answer appeared, and which of them finished.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChatChoices {
    seen: u128,
    finished: u128,
    /// An index beyond 127: nobody can tell any more whether every choice finished.
    overflow: bool,
}

impl StreamState {
    pub(crate) const fn new() -> Self {
        Self {
            usage: None,
            stop_reason: None,
            failure: None,
            next_sequence: 0,
            response_id: None,
            choices: ChatChoices {
                seen: 0,
                finished: 0,
                overflow: false,
            },
        }
    }

    /// What upstream reported so far.
    #[must_use]
    pub const fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Takes counts of one event. They are running totals, so the greater one stays.
    pub fn report_usage(&mut self, input_tokens: Option<u64>, output_tokens: Option<u64>) {
        if input_tokens.is_none() && output_tokens.is_none() {
            return;
        }
        let usage = self.usage.get_or_insert_default();
        usage.input_tokens = usage.input_tokens.max(input_tokens.unwrap_or(0));
        usage.output_tokens = usage.output_tokens.max(output_tokens.unwrap_or(0));
    }

    /// Why the model stopped, in upstream's words.
    #[must_use]
    pub fn stop_reason(&self) -> Option<&str> {
        self.stop_reason.as_deref()
    }

    /// Keeps why the model stopped, cut at 1 KiB.
    pub fn report_stop(&mut self, reason: &[u8]) {
        let reason = String::from_utf8_lossy(&reason[..reason.len().min(MAX_TEXT)]);
        if self.stop_reason() != Some(&*reason) {
            self.stop_reason = Some(reason.into());
        }
    }

    /// What upstream said when it failed.
    #[must_use]
    pub fn failure(&self) -> Option<&StreamFailure> {
        self.failure.as_deref()
    }

    /// Keeps the failure; the first one stays.
    pub fn report_failure(&mut self, failure: StreamFailure) {
        self.failure.get_or_insert_with(|| Box::new(failure));
    }

    /// Whether the event of the failure is called `error`.
    pub(crate) fn name_failure(&mut self, is_named: bool) {
        if let Some(failure) = &mut self.failure {
            failure.is_named = is_named;
        }
    }

    /// The sequence number that an event appended now should carry.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Takes the sequence number of one event.
    pub const fn report_sequence(&mut self, sequence: u64) {
        self.next_sequence = sequence.saturating_add(1);
    }

    /// The id of the answer.
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        self.response_id.as_deref()
    }

    /// Keeps the answer's id, to be told with an event of the prelude; the first one stays. An empty
    /// one, one of more than 256 bytes, and one that is no UTF-8 are none.
    pub fn report_response_id(&mut self, id: &[u8]) {
        if self.response_id.is_some() || id.is_empty() || id.len() > MAX_ID {
            return;
        }
        self.response_id = std::str::from_utf8(id).ok().map(Arc::from);
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

    pub(crate) const fn all_finished(&self) -> bool {
        self.seen != 0 && self.seen == self.finished && !self.overflow
    }
}
