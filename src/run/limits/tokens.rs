//! The tokens of a run and their cost, counted while answers stream, and the caps on them.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{
    llm::dialect::Usage,
    lock::Lock,
    run::{
        limit_kind::{TokenLimit, TokenMeasure},
        limits::{PauseAtCap, RunAdjustments, RunExtension, SharedRun},
    },
};

/// The units of cost in one unit of the program's currency. A price per million tokens with six
/// decimal places is a whole number of units per token.
const UNITS: f64 = 1e12;

/// The price of a candidate's tokens, in any one currency.
///
/// ```
/// use tower_agent::{Candidate, run::Price};
///
/// // 2.50 for a million tokens of prompts, 1.25 if they are cached, 10 for answers.
/// let price = Price::per_million(2.5, 10.0).cached_input(1.25);
/// let candidate = Candidate::new("large").price(price);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// The prices of one token, in units.
    input: u64,
    cached_input: u64,
    output: u64,
}

impl Price {
    /// The highest price for a million tokens.
    pub const MAX: f64 = 1e9;

    /// Makes the price of a million tokens of prompts, and of a million tokens of answers.
    ///
    /// Cached input costs nothing unless [set](Self::cached_input). Six decimal places count.
    ///
    /// # Panics
    ///
    /// The constructor panics if a price is negative, not a number, or greater than
    /// [`MAX`](Self::MAX).
    #[must_use]
    pub const fn per_million(input: f64, output: f64) -> Self {
        Self {
            input: per_token(input),
            cached_input: 0,
            output: per_token(output),
        }
    }

    /// Sets the price of a million tokens of prompts that the upstream reads from its cache.
    ///
    /// # Panics
    ///
    /// The setter panics if the price is negative, not a number, or greater than
    /// [`MAX`](Self::MAX).
    #[must_use]
    pub const fn cached_input(mut self, price: f64) -> Self {
        self.cached_input = per_token(price);
        self
    }
}

const fn per_token(per_million: f64) -> u64 {
    assert!(
        per_million >= 0.0 && per_million <= Price::MAX,
        "a price must be a number from 0 to Price::MAX"
    );
    (per_million * (UNITS / 1e6) + 0.5) as u64
}

/// Caps on the tokens of a run, or on those of an owner in a window of time, and on their cost.
/// Serializes to JSON as its caps that are set.
///
/// A [`TokenCapLayer`](crate::TokenCapLayer) enforces those of a run, an
/// [`OwnerCapLayer`](crate::OwnerCapLayer) those of an owner.
///
/// ```
/// use tower_agent::TokenCaps;
///
/// let caps = TokenCaps::new().max_output_tokens(20_000).max_cost(0.5);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct TokenCaps {
    #[serde(rename = "max_output_tokens", skip_serializing_if = "Option::is_none")]
    output: Option<u32>,
    #[serde(rename = "max_total_tokens", skip_serializing_if = "Option::is_none")]
    total: Option<u32>,
    #[serde(rename = "max_cost", skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    #[serde(skip)]
    counts_cached: bool,
}

impl TokenCaps {
    /// Makes caps of which none is set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            output: None,
            total: None,
            cost: None,
            counts_cached: false,
        }
    }

    /// Sets the most tokens of answers, with those of reasoning and of tool calls; `None` is no
    /// cap.
    ///
    /// # Panics
    ///
    /// The setter panics if the number is zero.
    #[must_use]
    pub fn max_output_tokens(mut self, tokens: impl Into<Option<u32>>) -> Self {
        self.output = above_zero(tokens.into());
        self
    }

    /// Sets the most tokens of prompts and answers together; `None` sets no cap. Cached tokens of
    /// prompts count only [if set](Self::count_cached_input).
    ///
    /// # Panics
    ///
    /// The setter panics if the number is zero.
    #[must_use]
    pub fn max_total_tokens(mut self, tokens: impl Into<Option<u32>>) -> Self {
        self.total = above_zero(tokens.into());
        self
    }

    /// Sets the most that the tokens may cost, in the currency of the candidates'
    /// [prices](crate::Candidate::price); `None` sets no cap. Tokens of a candidate without a price
    /// cost nothing.
    ///
    /// # Panics
    ///
    /// The setter panics if the cost is not a number greater than zero.
    #[must_use]
    pub fn max_cost(mut self, cost: impl Into<Option<f64>>) -> Self {
        self.cost = above_zero(cost.into());
        self
    }

    /// Sets whether the cached tokens of prompts count in the [total](Self::max_total_tokens);
    /// they do not by default.
    #[must_use]
    pub const fn count_cached_input(mut self, counts: bool) -> Self {
        self.counts_cached = counts;
        self
    }

    /// The caps, raised by so much.
    pub(crate) fn raised(&self, by: &Raised) -> Self {
        let raised = |cap: Option<u32>, more| {
            let cap = by.tokens(cap?, more);
            Some(u32::try_from(cap).unwrap_or(u32::MAX))
        };
        Self {
            output: raised(self.output, by.output),
            total: raised(self.total, by.total),
            cost: self.cost.map(|cost| by.cost(cost)),
            counts_cached: self.counts_cached,
        }
    }

    /// Whether a cap is set.
    pub(crate) const fn is_set(&self) -> bool {
        self.output.is_some() || self.total.is_some() || self.cost.is_some()
    }

    /// The first cap, raised by so much, of which `spent` has reached this `part`.
    pub(crate) fn reached(&self, spent: &Spending, by: &Raised, part: f64) -> Option<TokenLimit> {
        self.find(spent, by, |used, cap| used >= part * cap)
    }

    /// The first cap, raised by so much, that `spent` exceeds.
    pub(crate) fn exceeded(&self, spent: &Spending, by: &Raised) -> Option<TokenLimit> {
        self.find(spent, by, |used, cap| used > cap)
    }

    fn find(
        &self,
        spent: &Spending,
        by: &Raised,
        is_over: impl Fn(f64, f64) -> bool,
    ) -> Option<TokenLimit> {
        self.find_all(spent, by, is_over).next()
    }

    fn find_all(
        &self,
        spent: &Spending,
        by: &Raised,
        is_over: impl Fn(f64, f64) -> bool,
    ) -> impl Iterator<Item = TokenLimit> {
        let spent = *spent;
        let (output, total) = (spent.output, spent.total(self.counts_cached));
        let tokens = |cap: Option<u32>, more| cap.map(|cap| by.tokens(cap, more) as f64);
        let cost = self.cost.map(|cost| by.cost(cost));
        let output_cap = tokens(self.output, by.output);
        let total_cap = tokens(self.total, by.total);
        let caps = [
            (output_cap, output as f64, TokenMeasure::Output),
            (total_cap, total as f64, TokenMeasure::Total),
            (cost, spent.cost(), TokenMeasure::Cost),
        ];
        caps.into_iter().filter_map(move |(cap, used, of)| {
            let cap = cap.filter(|cap| is_over(used, *cap))?;
            Some(TokenLimit::new(cap, of, spent.is_estimated(of)))
        })
    }
}

/// By how much the program has raised the caps on a run's tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Raised {
    /// How many times over the caps hold.
    times: u32,
    /// What is added to the cap on output, to that on all tokens, and to that on the cost.
    pub(super) output: u64,
    pub(super) total: u64,
    pub(super) cost: f64,
}

impl Raised {
    /// The caps as they were set.
    pub(crate) const NONE: Self = Self {
        times: 1,
        output: 0,
        total: 0,
        cost: 0.0,
    };

    /// A cap of so many tokens, of which `more` are added to one of its kind.
    const fn tokens(&self, cap: u32, more: u64) -> u64 {
        (cap as u64 * self.times as u64).saturating_add(more)
    }

    /// A cap of this cost.
    fn cost(&self, cap: f64) -> f64 {
        if self.times == 1 && self.cost == 0.0 {
            return cap;
        }
        // A message names the cap: three times 0.1 is 0.3, without the error of the product.
        ((cap * f64::from(self.times) + self.cost) * UNITS).round() / UNITS
    }

    /// Adds so much to the caps of a run that has `spent` so much. What the run has spent beyond a cap
    /// is added, too.
    fn add(&mut self, by: &RunExtension, caps: Option<&TokenCaps>, spent: &Spending) {
        let caps = caps.copied().unwrap_or_default();
        let over = |spent: u64, cap: Option<u32>, more| {
            cap.map_or(0, |cap| spent.saturating_sub(self.tokens(cap, more)))
        };
        if let Some(tokens) = by.tokens {
            let over_output = over(spent.output, caps.output, self.output);
            let total = spent.total(caps.counts_cached);
            let over_total = over(total, caps.total, self.total);
            let more = |added: u64, over| added.saturating_add(tokens).saturating_add(over);
            self.output = more(self.output, over_output);
            self.total = more(self.total, over_total);
        }
        if let Some(cost) = by.cost {
            let over = caps
                .cost
                .map_or(0.0, |cap| (spent.cost() - self.cost(cap)).max(0.0));
            self.cost += cost + over;
        }
    }
}

impl Default for Raised {
    fn default() -> Self {
        Self::NONE
    }
}

/// A layer's caps on the tokens of a run, and the part of a cap at which to send a notice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunTokenCaps {
    pub(crate) caps: TokenCaps,
    pub(crate) ask_at: Option<f64>,
    /// How the run waits at a cap; `None` if it ends there.
    pub(crate) pause: Option<PauseAtCap>,
    /// The part of a cap at which to send a notice that asks nobody.
    pub(crate) near_at: Option<f64>,
}

impl RunTokenCaps {
    /// The first cap, raised by so much, that a run is near that has `spent` so much.
    pub(crate) fn near(&self, spent: &Spending, by: &Raised) -> Option<TokenLimit> {
        self.caps.reached(spent, by, self.ask_at?)
    }

    /// All caps, raised by so much, of which a run that has `spent` so much has used the part at which
    /// to send a notice.
    pub(crate) fn all_near(
        &self,
        spent: &Spending,
        by: &Raised,
    ) -> impl Iterator<Item = TokenLimit> {
        let part = self.near_at.into_iter();
        part.flat_map(move |part| {
            self.caps
                .find_all(spent, by, move |used, cap| used >= part * cap)
        })
    }
}

fn above_zero<T: PartialOrd + Default>(cap: Option<T>) -> Option<T> {
    let is_cap = |cap: &T| *cap > T::default();
    assert!(
        cap.as_ref().is_none_or(is_cap),
        "a cap must allow something"
    );
    cap
}

/// Numbers of tokens and their cost. Sums and differences stop at the greatest number and at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spending {
    input: u64,
    cached_input: u64,
    output: u64,
    /// The part of `output` that no upstream has stated.
    estimated: u64,
    /// The part of `input` that no upstream has stated.
    estimated_input: u64,
    /// The cost, in [`UNITS`]: in 64 bits it could not exceed 18 million of the currency.
    cost: u128,
}

impl Spending {
    /// The tokens that an answer has used: those that its upstream has stated, and `estimated`
    /// tokens of the text since then.
    pub(crate) fn of(usage: Option<Usage>, estimated: u64, price: Option<Price>) -> Self {
        let usage = usage.unwrap_or_default();
        let (input, cached_input) = (usage.uncached_input(), usage.cached_input_tokens);
        let output = usage.output_tokens.saturating_add(estimated);
        let cost = price.map_or(0, |price| {
            let cost = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
            cost(input, price.input)
                .saturating_add(cost(cached_input, price.cached_input))
                .saturating_add(cost(output, price.output))
        });
        Self {
            input,
            cached_input,
            output,
            estimated,
            estimated_input: 0,
            cost,
        }
    }

    /// The tokens of a prompt that no upstream has stated.
    fn of_prompt(tokens: u64, price: Option<Price>) -> Self {
        let cost = price.map_or(0, |price| u128::from(tokens) * u128::from(price.input));
        Self {
            input: tokens,
            estimated_input: tokens,
            cost,
            ..Self::default()
        }
    }

    pub(crate) const fn is_nothing(&self) -> bool {
        // The estimates are parts of `input` and `output`.
        self.input | self.cached_input | self.output == 0 && self.cost == 0
    }

    pub(crate) const fn plus(self, more: Self) -> Self {
        Self {
            input: self.input.saturating_add(more.input),
            cached_input: self.cached_input.saturating_add(more.cached_input),
            output: self.output.saturating_add(more.output),
            estimated: self.estimated.saturating_add(more.estimated),
            estimated_input: self.estimated_input.saturating_add(more.estimated_input),
            cost: self.cost.saturating_add(more.cost),
        }
    }

    pub(crate) const fn minus(self, less: Self) -> Self {
        Self {
            input: self.input.saturating_sub(less.input),
            cached_input: self.cached_input.saturating_sub(less.cached_input),
            output: self.output.saturating_sub(less.output),
            estimated: self.estimated.saturating_sub(less.estimated),
            estimated_input: self.estimated_input.saturating_sub(less.estimated_input),
            cost: self.cost.saturating_sub(less.cost),
        }
    }

    /// Whether a part of these tokens is an estimate.
    const fn is_estimated(&self, of: TokenMeasure) -> bool {
        match of {
            TokenMeasure::Output => self.estimated > 0,
            TokenMeasure::Total | TokenMeasure::Cost => self.estimated | self.estimated_input > 0,
        }
    }

    const fn total(&self, with_cached: bool) -> u64 {
        let cached = if with_cached { self.cached_input } else { 0 };
        self.input
            .saturating_add(cached)
            .saturating_add(self.output)
    }

    fn cost(&self) -> f64 {
        self.cost as f64 / UNITS
    }
}

/// The tokens that a run has used, and their cost. Serializes to JSON as it stands.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct TokensSpent {
    /// The tokens of prompts that came from no cache, and those that were written into one.
    pub input_tokens: u64,
    /// The tokens of prompts that upstreams read from a cache.
    pub cached_input_tokens: u64,
    /// The tokens of answers, those under way included.
    pub output_tokens: u64,
    /// The part of the output tokens that is an estimate.
    pub estimated_tokens: u64,
    /// The part of the input tokens that is an estimate.
    pub estimated_input_tokens: u64,
    /// The cost, by the prices of the candidates.
    pub cost: f64,
}

impl From<Spending> for TokensSpent {
    fn from(spent: Spending) -> Self {
        Self {
            input_tokens: spent.input,
            cached_input_tokens: spent.cached_input,
            output_tokens: spent.output,
            estimated_tokens: spent.estimated,
            estimated_input_tokens: spent.estimated_input,
            cost: spent.cost(),
        }
    }
}

impl From<TokensSpent> for Spending {
    fn from(spent: TokensSpent) -> Self {
        Self {
            input: spent.input_tokens,
            cached_input: spent.cached_input_tokens,
            output: spent.output_tokens,
            estimated: spent.estimated_tokens,
            estimated_input: spent.estimated_input_tokens,
            // A number that is none, or below 0, is 0.
            cost: (spent.cost * UNITS).round() as u128,
        }
    }
}

/// The count of one run's tokens, those of answers that still stream included.
#[derive(Debug, Default)]
pub(crate) struct TokenLedger {
    spent: Lock<Spending>,
    /// The caps of the first layer that set some for the run.
    caps: OnceLock<RunTokenCaps>,
    /// By how much the program has raised the caps, and the number of times that it did.
    raised: Lock<Raised>,
    extensions: AtomicU32,
    /// One more than `extensions` was when a question about a near cap was last claimed; 0 before the
    /// first.
    claimed: AtomicU32,
    /// The same of the notices that ask nobody, by the cap's measure.
    near: [AtomicU32; 3],
    /// The token account of the run's owner.
    account: OnceLock<Arc<dyn TokenAccount>>,
}

/// A count of tokens beside that of a run, such as that of its owner.
pub(crate) trait TokenAccount: Send + Sync + fmt::Debug {
    /// Replaces one answer's earlier count, `before`, by its count `now`.
    fn replace(&self, before: Spending, now: Spending);
}

impl TokenLedger {
    pub(crate) fn spent(&self) -> Spending {
        *self.spent.lock()
    }

    /// Replaces one answer's earlier count, `before`, by its count `now`.
    fn replace(&self, before: Spending, now: Spending) {
        let mut spent = self.spent.lock();
        *spent = spent.minus(before).plus(now);
    }

    /// The caps of the run; `None` before its first request through a layer with caps.
    pub(crate) fn caps(&self) -> Option<&RunTokenCaps> {
        self.caps.get()
    }

    /// Sets the caps of the run, unless they are set.
    pub(crate) fn set_caps(&self, caps: RunTokenCaps) {
        self.caps.get_or_init(|| caps);
    }

    /// Counts the run's tokens in `account` too, from now on.
    pub(crate) fn count_in(&self, account: Arc<dyn TokenAccount>) {
        // A run has one owner, so a second account is the first one again.
        let _known = self.account.set(account);
    }

    /// By how much the program has raised the caps.
    pub(crate) fn raised(&self) -> Raised {
        // Few runs are extended: the others take no lock.
        match self.extensions.load(Ordering::Acquire) {
            0 => Raised::NONE,
            _ => *self.raised.lock(),
        }
    }

    /// Allows the run its caps once more.
    pub(crate) fn extend_once_more(&self) {
        self.raise(|raised| raised.times = raised.times.saturating_add(1));
    }

    /// Adds so much to the caps of the run, which has `spent` so much with its other parts.
    pub(crate) fn extend(&self, by: &RunExtension, spent: &Spending) {
        let caps = self.caps().map(|of_run| &of_run.caps);
        self.raise(|raised| raised.add(by, caps, spent));
    }

    /// Raises the caps to at least what was added elsewhere. Returns whether that is more than here.
    pub(crate) fn extend_to(&self, elsewhere: &RunAdjustments) -> bool {
        let here = self.raised();
        let is_more = elsewhere.output_tokens > here.output
            || elsewhere.total_tokens > here.total
            || elsewhere.cost > here.cost;
        if is_more {
            self.raise(|raised| {
                raised.output = raised.output.max(elsewhere.output_tokens);
                raised.total = raised.total.max(elsewhere.total_tokens);
                raised.cost = raised.cost.max(elsewhere.cost);
            });
        }
        is_more
    }

    fn raise(&self, change: impl FnOnce(&mut Raised)) {
        let mut raised = self.raised.lock();
        change(&mut raised);
        self.extensions.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the notice that a cap is near was claimed for the caps that hold now.
    pub(crate) fn is_notice_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire) > self.extensions.load(Ordering::Acquire)
    }

    /// Claims the question about a near cap, for the caps that hold now; true for the first caller.
    pub(crate) fn claim_notice(&self) -> bool {
        self.claim(&self.claimed)
    }

    /// Claims the notice that this cap is near, likewise.
    pub(crate) fn claim_near(&self, of: TokenMeasure) -> bool {
        self.claim(&self.near[of as usize])
    }

    fn claim(&self, claimed: &AtomicU32) -> bool {
        let now = self.extensions.load(Ordering::Acquire).saturating_add(1);
        claimed.load(Ordering::Acquire) < now && claimed.fetch_max(now, Ordering::AcqRel) < now
    }
}

/// A run whose tokens are counted.
#[derive(Debug)]
pub(crate) struct CountedRun {
    pub(crate) ledger: Arc<TokenLedger>,
    /// This replica's part of the run; `None` if the run is no other replica's.
    pub(crate) part: Option<Arc<SharedRun>>,
}

/// The count of one answer's tokens, or of one prompt's, in its run and in the runs above.
#[derive(Debug)]
pub(crate) struct TokenMeter {
    /// The nearest run and the runs above it, as far as these count tokens.
    runs: Vec<CountedRun>,
    /// The account of the owner that all these runs share.
    account: Option<Arc<dyn TokenAccount>>,
    price: Option<Price>,
    counted: Spending,
}

impl TokenMeter {
    /// Makes a meter that has counted nothing.
    pub(crate) fn new(runs: Vec<CountedRun>, price: Option<Price>) -> Self {
        let account = runs
            .iter()
            .find_map(|run| run.ledger.account.get().cloned());
        Self {
            runs,
            account,
            price,
            counted: Spending::default(),
        }
    }

    /// Replaces the tokens that the answer has used so far, in all counts.
    pub(crate) fn set(&mut self, usage: Option<Usage>, estimated: u64) {
        self.replace(Spending::of(usage, estimated, self.price));
    }

    /// Replaces the tokens of a prompt that no upstream has stated, in all counts.
    pub(crate) fn set_prompt(&mut self, tokens: u64) {
        self.replace(Spending::of_prompt(tokens, self.price));
    }

    fn replace(&mut self, now: Spending) {
        let before = std::mem::replace(&mut self.counted, now);
        if before != now {
            for run in &self.runs {
                run.ledger.replace(before, now);
                if let Some(part) = &run.part {
                    part.tell_spent(&run.ledger);
                }
            }
            if let Some(account) = &self.account {
                account.replace(before, now);
            }
        }
    }
}
