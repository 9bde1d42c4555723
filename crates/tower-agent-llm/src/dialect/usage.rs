//! The tokens that answers state.

use crate::json_scanner::{Scan, Scanner};

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

impl Usage {
    /// Reads a `usage` object with the keys of any dialect.
    pub(crate) fn of_object(usage: &[u8]) -> Option<Self> {
        let names = [Tokens::PROMPT, Tokens::INPUT];
        let tokens = Tokens::read(&mut Scanner::new(usage), &names).ok()?;
        tokens.usage()
    }

    /// Reads the `timings` of llama.cpp.
    pub(crate) fn of_timings(timings: &[u8]) -> Option<Self> {
        Tokens::of_timings(timings).ok()?.usage()
    }

    /// The tokens of the prompt that came from no cache, counted in the same way for all dialects.
    #[must_use]
    #[doc(hidden)]
    pub const fn uncached_input(&self) -> u64 {
        let uncached = self.input_tokens.saturating_sub(self.cached_within);
        uncached.saturating_add(self.cache_written)
    }

    /// Adds the tokens of another answer.
    #[doc(hidden)]
    pub fn add(&mut self, more: Self) {
        self.merge(more, u64::saturating_add);
    }

    /// Merges what a later event of the same answer states: running totals, of which the greater
    /// one stays.
    ///
    /// Upstreams other than Anthropic may begin a message with the whole prompt as its input, and
    /// end it with what came from no cache, beside the cached tokens. Then the later input stays:
    /// the earlier one has the cached tokens in it.
    pub(super) fn update(&mut self, later: Self) {
        let beside = |usage: &Self| {
            let cached = usage.cached_input_tokens - usage.cached_within;
            cached.saturating_add(usage.cache_written)
        };
        let cached = beside(&later);
        let whole = later.input_tokens.saturating_add(cached);
        let is_whole = (cached..=whole).contains(&self.input_tokens);
        if cached > 0 && beside(self) == 0 && is_whole {
            self.input_tokens = later.input_tokens;
        }
        self.merge(later, u64::max);
    }

    pub(super) fn merge(&mut self, other: Self, of: impl Fn(u64, u64) -> u64) {
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
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    /// The cached tokens that the API includes in the input tokens.
    cached: u64,
    /// The cached tokens that the API counts apart from the input tokens.
    cached_beside: u64,
    cache_written: u64,
}

/// What a `usage` object has beside its counts, and what changes them.
#[derive(Debug, Default)]
struct Corrections {
    /// Whether the keys are those of OpenAI's chat, in which all cached tokens are input tokens.
    is_chat: bool,
    /// The tokens of input and output. Some upstreams count reasoning here, and not in the output.
    total: Option<u64>,
    /// The sums of Anthropic's `iterations`, of which the other counts leave some out: input,
    /// output, read from the cache, and written to it.
    iterations: Option<[u64; 4]>,
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
        let mut corrections = Corrections::default();
        json.object(|json, key| {
            if names.iter().any(|[input, _]| key == *input) {
                corrections.is_chat = key == Self::PROMPT[0];
                tokens.input = json.count()?;
            } else if names.iter().any(|[_, output]| key == *output) {
                tokens.output = json.count()?;
            } else {
                tokens.read_other(json, key, &mut corrections)?;
            }
            Ok(())
        })?;
        let has_sums = corrections.total.is_some() || corrections.iterations.is_some();
        if corrections.is_chat || has_sums {
            tokens.correct(&corrections);
        }
        Ok(tokens)
    }

    /// Reads a count of cached tokens, or a correction; the keys of the APIs do not collide.
    fn read_other(
        &mut self,
        json: &mut Scanner<'_>,
        key: &[u8],
        corrections: &mut Corrections,
    ) -> Scan<()> {
        let count = |json: &mut Scanner<'_>| Ok(json.count()?.unwrap_or(0));
        match key {
            b"prompt_tokens_details" | b"input_tokens_details" => {
                json.object(|json, key| {
                    match key {
                        b"cached_tokens" => self.cached = self.cached.max(count(json)?),
                        _ => json.skip()?,
                    }
                    Ok(())
                })?;
            }
            // DeepSeek states it by the first key, Moonshot by the second.
            b"prompt_cache_hit_tokens" | b"cached_tokens" => {
                self.cached = self.cached.max(count(json)?);
            }
            b"cache_read_input_tokens" => self.cached_beside = count(json)?,
            b"cache_creation_input_tokens" => self.cache_written = count(json)?,
            b"total_tokens" => corrections.total = json.count()?,
            b"iterations" => corrections.read_iterations(json)?,
            _ => json.skip()?,
        }
        Ok(())
    }

    fn correct(&mut self, corrections: &Corrections) {
        if let Some([input, output, cached, written]) = corrections.iterations {
            (self.input, self.output) = (Some(input), Some(output));
            (self.cached_beside, self.cache_written) = (cached, written);
            return;
        }
        if corrections.is_chat {
            // A proxy of Anthropic's API that answers in chat has its keys beside `prompt_tokens`.
            self.cached = self.cached.max(self.cached_beside);
            (self.cached_beside, self.cache_written) = (0, 0);
        }
        // What the total has beside the prompt is billed as output, such as xAI's reasoning.
        if let (Some(total), Some(input @ 1..)) = (corrections.total, self.input) {
            self.output = self.output.max(Some(total.saturating_sub(input)));
        }
    }

    /// The usage with these counts; `None` if they are neither of a prompt nor of an answer.
    #[inline]
    pub(super) fn usage(self) -> Option<Usage> {
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

    /// Reads the `timings` of llama.cpp, which its last event has also if no usage was asked for.
    #[cold]
    pub(super) fn of_timings(timings: &[u8]) -> Scan<Self> {
        let [prompt, cached, predicted] =
            Scanner::members(timings, [b"prompt_n", b"cache_n", b"predicted_n"])?;
        let count = |span: Option<&[u8]>| match span {
            Some(span) => Scanner::new(span).count(),
            None => Ok(None),
        };
        let (prompt, cached) = (count(prompt)?, count(cached)?.unwrap_or(0));
        Ok(Self {
            input: prompt.map(|prompt| prompt.saturating_add(cached)),
            output: count(predicted)?,
            cached,
            ..Self::default()
        })
    }

    /// Whether the counts say nothing.
    pub(super) const fn is_empty(&self) -> bool {
        self.input.is_none() && self.output.is_none()
    }

    /// Reads the token counts in the `usage` of an object.
    pub(super) fn within(object: &[u8], names: &[TokenNames]) -> Scan<Self> {
        let [usage] = Scanner::members(object, [b"usage"])?;
        usage.map_or(Ok(Self::default()), |usage| {
            Self::read(&mut Scanner::new(usage), names)
        })
    }
}

impl Corrections {
    fn read_iterations(&mut self, json: &mut Scanner<'_>) -> Scan<()> {
        const KEYS: [&[u8]; 4] = [
            b"input_tokens",
            b"output_tokens",
            b"cache_read_input_tokens",
            b"cache_creation_input_tokens",
        ];
        json.array(|json| {
            let mut counts = [0; 4];
            let is_one = json.object(|json, key| {
                match KEYS.iter().position(|known| key == *known) {
                    Some(at) => counts[at] = json.count()?.unwrap_or(0),
                    None => json.skip()?,
                }
                Ok(())
            })?;
            // One that generated nothing was declined, and is not billed.
            if is_one && counts[1] > 0 {
                let sums = self.iterations.get_or_insert_default();
                for (sum, count) in sums.iter_mut().zip(counts) {
                    *sum = sum.saturating_add(count);
                }
            }
            Ok(())
        })?;
        Ok(())
    }
}
