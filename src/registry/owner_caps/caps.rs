//! The caps of an owner.

use super::CalendarPeriod;
use crate::run::{CapWindow, Raised, Spending, TokenCaps, TokenLimit};

/// Caps on an owner's open runs, and on its turns and tokens in an hour, a day, a week and a month.
///
/// The caps hold over all ids of the owner, and [`OwnerCapLayer`](crate::OwnerCapLayer) enforces
/// them. The hour slides; days, weeks and months are those of the registry's
/// [calendar](crate::RunRegistry::set_calendar), by default of UTC.
///
/// ```
/// use tower_agent::registry::OwnerCaps;
///
/// use tower_agent::TokenCaps;
///
/// let caps = OwnerCaps::new()
///     .max_open_runs(20)
///     .turns_per_hour(600)
///     .tokens_per_month(TokenCaps::new().max_cost(500.0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnerCaps {
    pub(super) max_open_runs: Option<u32>,
    hour: WindowCaps,
    periods: [WindowCaps; 3],
}

/// The caps in one window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct WindowCaps {
    turns: Option<u32>,
    tokens: TokenCaps,
}

impl WindowCaps {
    const fn new() -> Self {
        Self {
            turns: None,
            tokens: TokenCaps::new(),
        }
    }

    const fn turns(mut self, turns: u32) -> Self {
        assert!(turns > 0, "an owner must have at least one turn");
        self.turns = Some(turns);
        self
    }

    const fn tokens(mut self, caps: TokenCaps) -> Self {
        self.tokens = caps;
        self
    }
}

const DAY: usize = CalendarPeriod::Day as usize;
const WEEK: usize = CalendarPeriod::Week as usize;
const MONTH: usize = CalendarPeriod::Month as usize;

impl OwnerCaps {
    /// Makes caps of which none is set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            max_open_runs: None,
            hour: WindowCaps::new(),
            periods: [WindowCaps::new(); 3],
        }
    }

    /// Sets the number of open runs of one owner at which its requests open no further run. A
    /// request without an id counts as one run.
    ///
    /// # Panics
    ///
    /// Panics if `runs` is zero.
    #[must_use]
    pub const fn max_open_runs(mut self, runs: u32) -> Self {
        assert!(runs > 0, "an owner must have at least one run");
        self.max_open_runs = Some(runs);
        self
    }

    /// Sets the maximum of turns of one owner in any hour, counted by the minute. A turn counts for
    /// 60 to 61 minutes.
    ///
    /// # Panics
    ///
    /// Panics if `turns` is zero.
    #[must_use]
    pub const fn turns_per_hour(mut self, turns: u32) -> Self {
        self.hour = self.hour.turns(turns);
        self
    }

    /// Sets caps on the tokens of one owner in any hour, and on their cost, counted by the minute.
    /// A token counts for 60 to 61 minutes.
    ///
    /// The [`token_cap`](crate::layers::token_cap#what-is-counted) module says how tokens are
    /// counted and estimated.
    #[must_use]
    pub const fn tokens_per_hour(mut self, caps: TokenCaps) -> Self {
        self.hour = self.hour.tokens(caps);
        self
    }

    /// Sets the maximum of turns of one owner in a day of the calendar.
    ///
    /// The count is in memory: a restart forgets it, unless the replicas
    /// [share](crate::RunRegistry::share) a store that does not.
    ///
    /// # Panics
    ///
    /// Panics if `turns` is zero.
    #[must_use]
    pub const fn turns_per_day(mut self, turns: u32) -> Self {
        self.periods[DAY] = self.periods[DAY].turns(turns);
        self
    }

    /// Sets the maximum of turns of one owner in a week of the calendar, in memory like
    /// [those of a day](Self::turns_per_day).
    ///
    /// # Panics
    ///
    /// Panics if `turns` is zero.
    #[must_use]
    pub const fn turns_per_week(mut self, turns: u32) -> Self {
        self.periods[WEEK] = self.periods[WEEK].turns(turns);
        self
    }

    /// Sets the maximum of turns of one owner in a month of the calendar, in memory like
    /// [those of a day](Self::turns_per_day).
    ///
    /// # Panics
    ///
    /// Panics if `turns` is zero.
    #[must_use]
    pub const fn turns_per_month(mut self, turns: u32) -> Self {
        self.periods[MONTH] = self.periods[MONTH].turns(turns);
        self
    }

    /// Sets caps on the tokens of one owner in a day of the calendar, and on their cost. The count is in
    /// memory like [that of turns](Self::turns_per_day).
    ///
    /// Tokens of an answer count when they come, and what an upstream states later that an answer
    /// has used counts then.
    #[must_use]
    pub const fn tokens_per_day(mut self, caps: TokenCaps) -> Self {
        self.periods[DAY] = self.periods[DAY].tokens(caps);
        self
    }

    /// Sets caps on the tokens of one owner in a week of the calendar, and on their cost: see
    /// [`tokens_per_day`](Self::tokens_per_day).
    #[must_use]
    pub const fn tokens_per_week(mut self, caps: TokenCaps) -> Self {
        self.periods[WEEK] = self.periods[WEEK].tokens(caps);
        self
    }

    /// Sets caps on the tokens of one owner in a month of the calendar, and on their cost: see
    /// [`tokens_per_day`](Self::tokens_per_day).
    #[must_use]
    pub const fn tokens_per_month(mut self, caps: TokenCaps) -> Self {
        self.periods[MONTH] = self.periods[MONTH].tokens(caps);
        self
    }

    /// The cap on the turns of an hour.
    pub(super) const fn turns_of_hour(&self) -> Option<u32> {
        self.hour.turns
    }

    /// The caps on the turns of each period of the calendar.
    pub(super) fn turns_of_periods(&self) -> [Option<u32>; 3] {
        self.periods.map(|caps| caps.turns)
    }

    /// Whether a cap on turns is set.
    pub(in crate::registry) fn caps_turns(&self) -> bool {
        let mut periods = self.periods.iter();
        self.hour.turns.is_some() || periods.any(|caps| caps.turns.is_some())
    }

    /// Whether a cap on tokens or cost is set.
    pub(crate) fn caps_tokens(&self) -> bool {
        let mut periods = self.periods.iter();
        self.hour.tokens.is_set() || periods.any(|caps| caps.tokens.is_set())
    }

    /// The periods of the calendar in which something is capped.
    pub(super) fn capped_periods(&self) -> impl Iterator<Item = CalendarPeriod> {
        let is_capped = |period: &CalendarPeriod| {
            let caps = self.periods[*period as usize];
            caps.turns.is_some() || caps.tokens.is_set()
        };
        CalendarPeriod::ALL.into_iter().filter(is_capped)
    }

    /// The first cap on tokens or cost that what was `spent` in the hour and in each period has
    /// reached; or, if it `must_exceed`, that it has exceeded.
    pub(crate) fn token_limit(&self, spent: &OwnerSpent, must_exceed: bool) -> Option<TokenLimit> {
        let hour = (&self.hour, &spent.hour, CapWindow::Hour);
        let periods = CalendarPeriod::ALL.map(|period| {
            let at = period as usize;
            (&self.periods[at], &spent.periods[at], period.into())
        });
        std::iter::once(hour)
            .chain(periods)
            .find_map(|(caps, spent, window)| {
                let limit = match must_exceed {
                    true => caps.tokens.exceeded(spent, &Raised::NONE),
                    false => caps.tokens.reached(spent, &Raised::NONE, 1.0),
                };
                limit.map(|limit| limit.of_owner(window))
            })
    }
}

/// What an owner has spent in the last hour, and in each present period of the calendar.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnerSpent {
    pub(super) hour: Spending,
    pub(super) periods: [Spending; 3],
}

impl From<CalendarPeriod> for CapWindow {
    fn from(period: CalendarPeriod) -> Self {
        match period {
            CalendarPeriod::Day => Self::Day,
            CalendarPeriod::Week => Self::Week,
            CalendarPeriod::Month => Self::Month,
        }
    }
}
