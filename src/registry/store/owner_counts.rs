//! What a replica has counted for an owner, and asks about the counts of the others.

use std::time::SystemTime;

use tokio::time::Instant;

use crate::{
    registry::{CalendarPeriod, Owner},
    run::TokensSpent,
};

/// What one replica has counted for an owner.
///
/// All numbers are absolute, so the same counts twice change nothing. A store adds up those of all
/// replicas.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct OwnerCounts {
    /// The owner.
    pub owner: Owner,
    /// The number of these counts among those of this replica. Later counts have higher numbers, and
    /// what comes late counts no more.
    pub number: u64,
    /// The open runs of this replica.
    pub open_runs: u32,
    /// How many runs the requests open that wait for the store.
    pub open_runs_asked: u32,
    /// The number of the present minute, by the replica's own clock.
    pub minute: u64,
    /// How many turns the requests take in the present minute that wait for the store.
    pub turns_asked: u32,
    /// The minutes of the last hour that the store may not know, with the present one if turns are
    /// asked for. A minute that the store knows already is replaced.
    pub minutes: Vec<OwnerMinute>,
    /// The present periods of the calendar in which something is capped.
    pub periods: Vec<OwnerPeriod>,
}

impl OwnerCounts {
    /// Makes counts of this number: of no open run, and of no minute.
    #[must_use]
    pub const fn new(owner: Owner, number: u64) -> Self {
        Self {
            owner,
            number,
            open_runs: 0,
            open_runs_asked: 0,
            minute: 0,
            turns_asked: 0,
            minutes: Vec::new(),
            periods: Vec::new(),
        }
    }
}

/// What one replica has counted for an owner in a period of the calendar.
///
/// A store counts it until the period ends, also after the replica has stopped. Periods of one kind are
/// told apart by when they began, so all replicas need one calendar.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct OwnerPeriod {
    /// The kind of period.
    pub period: CalendarPeriod,
    /// When it began, by the replica's clock and calendar.
    pub began: SystemTime,
    /// When it ends, likewise.
    pub ends: SystemTime,
    /// The turns in this period.
    pub turns: u32,
    /// How many turns the requests take that wait for the store.
    pub turns_asked: u32,
    /// The tokens in this period, and their cost.
    pub spent: TokensSpent,
}

impl OwnerPeriod {
    /// Makes a period in which nothing was counted.
    #[must_use]
    pub fn new(period: CalendarPeriod, began: SystemTime, ends: SystemTime) -> Self {
        Self {
            period,
            began,
            ends,
            turns: 0,
            turns_asked: 0,
            spent: TokensSpent::default(),
        }
    }
}

/// What one replica has counted for an owner in a minute.
///
/// A store counts the minute for 61 minutes from its beginning.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct OwnerMinute {
    /// The number of the minute among those of the replica.
    pub number: u64,
    /// When the minute began. Clocks of replicas differ, so a store takes the time since then.
    pub began: Instant,
    /// The turns in this minute.
    pub turns: u32,
    /// The tokens in this minute, and their cost.
    pub spent: TokensSpent,
}

impl OwnerMinute {
    /// Makes a minute in which nothing was counted.
    #[must_use]
    pub fn new(number: u64, began: Instant) -> Self {
        Self {
            number,
            began,
            turns: 0,
            spent: TokensSpent::default(),
        }
    }
}

/// A question about an owner: see [`RunStore::ask_owner`](super::RunStore::ask_owner).
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct OwnerQuestion {
    /// What this replica has counted, with what its requests ask for.
    pub counts: OwnerCounts,
    /// The cap on the open runs of all replicas; `None` if the request opens none, or nothing caps
    /// them.
    pub max_open_runs: Option<u32>,
    /// The cap on the turns of all replicas in an hour; `None` if the request takes none, or nothing
    /// caps them.
    pub turns_per_hour: Option<u32>,
    /// The caps on the turns of all replicas in the present day, week and month, likewise. The counts have
    /// each period with a cap.
    pub turns_per_period: [Option<u32>; 3],
}

impl OwnerQuestion {
    /// Makes a question that asks for no run and no turn.
    #[must_use]
    pub const fn new(counts: OwnerCounts) -> Self {
        Self {
            counts,
            max_open_runs: None,
            turns_per_hour: None,
            turns_per_period: [None; 3],
        }
    }
}

/// What the other replicas have counted for an owner.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnerElsewhere {
    /// Their open runs, with those that were granted.
    pub open_runs: u32,
    /// Their turns of the last hour, with those that were granted.
    pub turns: u32,
    /// Their tokens of the last hour, and the cost.
    pub spent: TokensSpent,
    /// What they have counted in the day, week and month of which the counts told; `None` of a period
    /// of which they did not.
    pub periods: [Option<PeriodElsewhere>; 3],
}

/// What the other replicas have counted for an owner in a period of the calendar.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeriodElsewhere {
    /// When the period began.
    pub began: SystemTime,
    /// Their turns, with those that were granted.
    pub turns: u32,
    /// Their tokens, and the cost.
    pub spent: TokensSpent,
}

impl PeriodElsewhere {
    /// Makes the counts of a period in which the others have counted nothing.
    #[must_use]
    pub fn new(began: SystemTime) -> Self {
        Self {
            began,
            turns: 0,
            spent: TokensSpent::default(),
        }
    }
}
