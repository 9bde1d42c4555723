//! What an operator adds to the limits of one run.

use std::time::Duration;

/// So many more turns, tokens, so much more cost and time for one run: see
/// [`Run::extend`](crate::Run::extend).
///
/// ```
/// use std::time::Duration;
/// use tower_agent::RunExtension;
///
/// let more = RunExtension::new().turns(10).cost(2.0);
/// let longer = RunExtension::new().time(Duration::from_secs(600));
/// ```
#[must_use = "an extension has no effect before a run gets it"]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunExtension {
    pub(in crate::run) turns: Option<u32>,
    pub(in crate::run) tokens: Option<u64>,
    pub(in crate::run) cost: Option<f64>,
    pub(in crate::run) time: Option<Duration>,
}

impl RunExtension {
    /// Makes an extension by nothing.
    pub const fn new() -> Self {
        Self {
            turns: None,
            tokens: None,
            cost: None,
            time: None,
        }
    }

    /// Adds so many turns to the cap on turns.
    pub const fn turns(mut self, turns: u32) -> Self {
        self.turns = Some(turns);
        self
    }

    /// Adds so many tokens to each of the caps on tokens: that on output, and that on all tokens.
    pub const fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = Some(tokens);
        self
    }

    /// Adds so much to the cap on the cost, in the currency of the candidates'
    /// [prices](crate::Candidate::price).
    ///
    /// # Panics
    ///
    /// The setter panics if the cost is negative, infinite or not a number.
    pub const fn cost(mut self, cost: f64) -> Self {
        assert!(
            cost >= 0.0 && cost.is_finite(),
            "a cost to add must be a number from 0 on"
        );
        self.cost = Some(cost);
        self
    }

    /// Adds so much to the run's ceiling and timeout.
    pub const fn time(mut self, time: Duration) -> Self {
        self.time = Some(time);
        self
    }
}
