use std::sync::{Arc, LazyLock};

use memchr::memmem::Finder;

use super::stream_failure::{MAX_TEXT, StreamFailure};
use crate::llm::json::{Scan, Scanner};

/// The longest id of an answer that is kept, in bytes.
///
/// A longer id is ignored, not cut: a cut id could equal another one.
const MAX_ID: usize = 256;

/// The token counts of an answer, as the upstream reports them, in its own way of
/// counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// The tokens of the prompt, without Anthropic's cached tokens, which that API counts
    /// apart.
    pub input_tokens: u64,
    /// The tokens of the answer.
    pub output_tokens: u64,
}

static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));

impl Usage {
    /// Reads the token usage from the body of a complete answer that is no event stream.
    ///
    /// The usage is the top-level `usage`, with the keys of any dialect.
    pub(crate) fn of_answer(body: &[u8]) -> Option<Self> {
        // Most bodies without usage are recognized by this search, and not parsed.
        USAGE.find(body)?;
        let Tokens { input, output } =
            Tokens::within(body, &[Tokens::PROMPT, Tokens::INPUT]).ok()?;
        input.or(output)?;
        Some(Self {
            input_tokens: input.unwrap_or(0),
            output_tokens: output.unwrap_or(0),
        })
    }
}

/// The token counts of a `usage` object, each if present.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tokens {
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
}

/// The keys of the two counts in a `usage` object: of the prompt's tokens, and of the answer's.
type TokenNames = [&'static [u8]; 2];

impl Tokens {
    /// The names of the token counts in OpenAI's chat.
    pub(super) const PROMPT: TokenNames = [b"prompt_tokens", b"completion_tokens"];

    /// The names of the token counts in all dialects but OpenAI's chat.
    pub(super) const INPUT: TokenNames = [b"input_tokens", b"output_tokens"];

    #[inline]
    pub(super) fn read(json: &mut Scanner<'_>, names: &[TokenNames]) -> Scan<Self> {
        let mut tokens = Self::default();
        json.object(|json, key| {
            if names.iter().any(|[input, _]| key == *input) {
                tokens.input = json.integer()?;
            } else if names.iter().any(|[_, output]| key == *output) {
                tokens.output = json.integer()?;
            } else {
                json.skip()?;
            }
            Ok(())
        })?;
        Ok(tokens)
    }

    /// Reads the token counts in the `usage` of an object.
    pub(super) fn within(object: &[u8], names: &[TokenNames]) -> Scan<Self> {
        let [usage] = Scanner::members(object, [b"usage"])?;
        usage.map_or(Ok(Self::default()), |usage| {
            Self::read(&mut Scanner::new(usage), names)
        })
    }
}

/// The state that a [`Grammar`](crate::llm::dialect::Grammar) keeps of one stream.
#[derive(Debug, Default)]
pub struct StreamState {
    usage: Option<Usage>,
    stop_reason: Option<Box<str>>,
    failure: Option<Box<StreamFailure>>,
    next_sequence: u64,
    response_id: Option<Arc<str>>,
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
        if input_tokens.is_none() && output_tokens.is_none() {
            return;
        }
        let usage = self.usage.get_or_insert_default();
        usage.input_tokens = usage.input_tokens.max(input_tokens.unwrap_or(0));
        usage.output_tokens = usage.output_tokens.max(output_tokens.unwrap_or(0));
    }

    #[inline]
    pub(super) fn report_tokens(&mut self, tokens: Tokens) {
        self.report_usage(tokens.input, tokens.output);
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

    /// Stores whether the event that reported the failure is named `error`.
    pub(crate) fn name_failure(&mut self, is_named: bool) {
        if let Some(failure) = &mut self.failure {
            failure.is_named = is_named;
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
    /// [`EventKind::Prelude`](crate::llm::sse::EventKind::Prelude). An empty id, one of more
    /// than 256 bytes, and one that is not UTF-8 are ignored.
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
