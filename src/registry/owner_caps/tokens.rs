//! The tokens of an owner.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, Weak},
};

use tokio::time::Instant;

use super::{
    MINUTES, Moment, Owners,
    calendar::{PeriodCount, Periods},
    caps::OwnerSpent,
    forget,
    shared::NumberedCount,
};
use crate::{
    lock::Lock,
    registry::store::StoreCell,
    run::{Spending, TokenAccount},
};

/// The tokens of one owner in the last hour, and in the present periods of the calendar.
#[derive(Debug)]
pub(crate) struct OwnerTokens {
    epoch: Instant,
    periods: Arc<Periods>,
    counts: Lock<TokenCounts>,
    owner: u128,
    owners: Weak<Owners>,
    store: StoreCell,
}

#[derive(Debug, Default)]
pub(super) struct TokenCounts {
    pub(super) by_minute: BTreeMap<u64, NumberedCount<Spending>>,
    /// What was spent in each period.
    pub(super) periods: [PeriodCount<Spending>; 3],
    /// The number of the last counts that other replicas were told.
    stated: u64,
    elsewhere: SpentElsewhere,
}

/// What the other replicas have spent.
#[derive(Debug, Default)]
struct SpentElsewhere {
    /// The tokens of the last hour, and the minute in which they were learned.
    hour: Option<(Spending, u64)>,
    periods: [PeriodCount<Spending>; 3],
}

impl OwnerTokens {
    /// Begins to count. The other replicas have spent this `elsewhere`.
    pub(super) fn new(
        owners: &Arc<Owners>,
        owner: u128,
        elsewhere: &OwnerSpent,
        now: Moment,
    ) -> Self {
        let tokens = Self {
            epoch: owners.epoch,
            periods: Arc::clone(&owners.periods),
            counts: Lock::default(),
            owner,
            owners: Arc::downgrade(owners),
            store: Arc::clone(&owners.store),
        };
        tokens.learn(elsewhere, now);
        tokens
    }

    fn now(&self) -> Moment {
        Moment {
            minute: self.epoch.elapsed().as_secs() / 60,
            periods: self.periods.present(),
        }
    }

    /// The tokens in each minute of the last hour.
    fn recent(&self, now: Moment) -> MutexGuard<'_, TokenCounts> {
        let mut counts = self.counts.lock();
        forget(&mut counts.by_minute, now.minute);
        counts
    }

    /// The same, for counts of this number that are about to be told.
    pub(super) fn state(&self, number: u64, now: Moment) -> MutexGuard<'_, TokenCounts> {
        let mut counts = self.recent(now);
        counts.stated = number;
        counts
    }

    /// What was spent in the last hour and in the present periods, of all replicas.
    pub(crate) fn spent(&self) -> OwnerSpent {
        self.spent_at(self.now())
    }

    pub(super) fn spent_at(&self, now: Moment) -> OwnerSpent {
        let counts = self.recent(now);
        let elsewhere = &counts.elsewhere;
        let hour = counts.here();
        let others = elsewhere.hour;
        let others = others.filter(|(_, learned)| learned + MINUTES > now.minute);
        OwnerSpent {
            hour: others.map_or(hour, |(spent, _)| hour.plus(spent)),
            periods: std::array::from_fn(|of| {
                now.periods[of].map_or_else(Spending::default, |present| {
                    let here = counts.periods[of].in_period(present);
                    here.plus(elsewhere.periods[of].in_period(present))
                })
            }),
        }
    }

    pub(super) fn is_nothing_spent_here(&self, now: Moment) -> bool {
        let counts = self.recent(now);
        let mut periods = counts.periods.iter().zip(now.periods);
        counts.here().is_nothing()
            && periods.all(|(count, present)| {
                present.is_none_or(|present| count.in_period(present).is_nothing())
            })
    }

    /// Records what the other replicas have spent.
    pub(super) fn learn(&self, spent: &OwnerSpent, now: Moment) {
        let elsewhere = &mut self.counts.lock().elsewhere;
        elsewhere.hour = Some((spent.hour, now.minute));
        for (of, present) in now.periods.into_iter().enumerate() {
            if let Some(present) = present {
                elsewhere.periods[of].set(present, spent.periods[of]);
            }
        }
    }
}

impl TokenCounts {
    fn here(&self) -> Spending {
        let minutes = self.by_minute.values().map(NumberedCount::get);
        minutes.fold(Spending::default(), Spending::plus)
    }
}

impl TokenAccount for OwnerTokens {
    /// Adds an increase to the present minute and periods; takes a decrease from the newest minutes,
    /// and from the present periods. The answer may have begun in an earlier one.
    fn replace(&self, before: Spending, now: Spending) {
        let at = self.now();
        let mut counts = self.recent(at);
        let stated = counts.stated;
        let (more, mut less) = (now.minus(before), before.minus(now));
        for (count, present) in counts.periods.iter_mut().zip(at.periods) {
            if let Some(present) = present {
                let spent = count.in_period(present).plus(more).minus(less);
                count.set(present, spent);
            }
        }
        for sum in counts.by_minute.values_mut().rev() {
            if less == Spending::default() {
                break;
            }
            let count = sum.get();
            sum.set(count.minus(less), stated);
            less = less.minus(count);
        }
        let sum = counts.by_minute.entry(at.minute).or_default();
        sum.set(sum.get().plus(more), stated);
        drop(counts);
        if self.store.get().is_some() {
            if let Some(owners) = self.owners.upgrade() {
                owners.tell(self.owner);
            }
        }
    }
}
