use std::sync::{Arc, LazyLock};

use memchr::memmem::Finder;

use super::stream_failure::{MAX_TEXT, StreamFailure};
use crate::llm::json_scanner::{Scan, Scanner};

/// The longest id of an answer that is kept, in bytes.
///
/// A longer id is ignored, not cut: a cut id could equal another one.
const MAX_ID: usize = 256;

/// The token counts of an answer, as the upstream reports and counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// The tokens of the prompt, without Anthropic's cached tokens, which that API counts
    /// apart.
    pub input_tokens: u64,
    /// The tokens of the answer.
    pub output_tokens: u64,
    /// The tokens of the prompt that the upstream read from its cache: in OpenAI's APIs some of
    /// the input tokens, in Anthropic's beside them.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_input_tokens: u64,
    /// The cached tokens that the API includes in the input tokens.
    #[serde(skip)]
    cached_within: u64,
    /// The tokens that the upstream wrote to its cache and counts apart from the input tokens.
    #[serde(skip)]
    cache_written: u64,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(tokens: &u64) -> bool {
    *tokens == 0
}

static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\""));
static REASON: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"reason\""));

impl Usage {
    /// Reads a `usage` object with the keys of any dialect.
    pub(crate) fn of_object(usage: &[u8]) -> Option<Self> {
        let names = [Tokens::PROMPT, Tokens::INPUT];
        let tokens = Tokens::read(&mut Scanner::new(usage), &names).ok()?;
        tokens.usage()
    }

    /// The tokens of the prompt that came from no cache, counted in the same way for all dialects.
    pub(crate) const fn uncached_input(&self) -> u64 {
        let uncached = self.input_tokens.saturating_sub(self.cached_within);
        uncached.saturating_add(self.cache_written)
    }

    /// Adds the tokens of another answer.
    pub(crate) fn add(&mut self, more: Self) {
        self.merge(more, u64::saturating_add);
    }

    fn merge(&mut self, other: Self, of: impl Fn(u64, u64) -> u64) {
        self.input_tokens = of(self.input_tokens, other.input_tokens);
        self.output_tokens = of(self.output_tokens, other.output_tokens);
        self.cached_input_tokens = of(self.cached_input_tokens, other.cached_input_tokens);
        self.cached_within = of(self.cached_within, other.cached_within);
        self.cache_written = of(self.cache_written, other.cache_written);
    }
}

/// The token counts of a `usage` object; a missing count of cached tokens is 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tokens {
    input: Option<u64>,
    output: Option<u64>,
    /// The cached tokens that the API includes in the input tokens.
    cached: u64,
    /// The cached tokens that the API counts apart from the input tokens.
    cached_beside: u64,
    cache_written: u64,
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
                tokens.read_cached(json, key)?;
            }
            Ok(())
        })?;
        Ok(tokens)
    }

    /// Reads a count of cached tokens; the keys of the APIs do not collide.
    fn read_cached(&mut self, json: &mut Scanner<'_>, key: &[u8]) -> Scan<()> {
        let count = |json: &mut Scanner<'_>| Ok(json.integer()?.unwrap_or(0));
        match key {
            b"prompt_tokens_details" | b"input_tokens_details" => {
                json.object(|json, key| {
                    match key {
                        b"cached_tokens" => self.cached = count(json)?,
                        _ => json.skip()?,
                    }
                    Ok(())
                })?;
            }
            b"prompt_cache_hit_tokens" => self.cached = count(json)?,
            b"cache_read_input_tokens" => self.cached_beside = count(json)?,
            b"cache_creation_input_tokens" => self.cache_written = count(json)?,
            _ => json.skip()?,
        }
        Ok(())
    }

    /// The usage with these counts; `None` if they are neither of a prompt nor of an answer.
    #[inline]
    fn usage(self) -> Option<Usage> {
        if self.input.is_none() && self.output.is_none() {
            return None;
        }
        Some(Usage {
            input_tokens: self.input.unwrap_or(0),
            output_tokens: self.output.unwrap_or(0),
            cached_input_tokens: self.cached.max(self.cached_beside),
            cached_within: self.cached,
            cache_written: self.cache_written,
        })
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
    /// Reads usage and stop reason from the body of a complete answer that is no event stream.
    ///
    /// The values stand under the keys of any dialect. Of several choices the last one counts.
    pub(crate) fn of_answer(body: &[u8]) -> Self {
        let mut answer = Self::default();
        // Most bodies without these values are recognized by the searches, and not parsed.
        if USAGE.find(body).is_none() && REASON.find(body).is_none() {
            return answer;
        }
        match answer.read_answer(body) {
            Ok(()) => answer,
            // The values before a malformed part do not count.
            Err(_) => Self::default(),
        }
    }

    fn read_answer(&mut self, body: &[u8]) -> Scan<()> {
        Scanner::document(body, |json, key| {
            match key {
                b"usage" => {
                    self.report_tokens(Tokens::read(json, &[Tokens::PROMPT, Tokens::INPUT])?);
                }
                b"stop_reason" => self.read_stop(json)?,
                b"incomplete_details" => self.read_stop_in(json, b"reason")?,
                b"choices" => {
                    json.array(|json| self.read_stop_in(json, b"finish_reason"))?;
                }
                _ => json.skip()?,
            }
            Ok(())
        })
    }

    fn read_stop_in(&mut self, json: &mut Scanner<'_>, name: &[u8]) -> Scan<()> {
        json.object(|json, key| match key == name {
            true => self.read_stop(json),
            false => json.skip(),
        })?;
        Ok(())
    }

    fn read_stop(&mut self, json: &mut Scanner<'_>) -> Scan<()> {
        if let Some(reason) = json.text()?.filter(|reason| !reason.is_empty()) {
            self.report_stop(&reason.decoded());
        }
        Ok(())
    }

    /// The token usage that the upstream has reported in the stream so far.
    #[must_use]
    pub const fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Merges the token counts of one event into the stream's usage.
    ///
    /// Token counts are running totals, so of two values the greater one stays.
    pub fn report_usage(&mut self, input_tokens: Option<u64>, output_tokens: Option<u64>) {
        self.report_tokens(Tokens {
            input: input_tokens,
            output: output_tokens,
            ..Tokens::default()
        });
    }

    #[inline]
    pub(super) fn report_tokens(&mut self, tokens: Tokens) {
        if let Some(later) = tokens.usage() {
            self.usage.get_or_insert_default().merge(later, u64::max);
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
