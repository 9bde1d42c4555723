//! The counts of owners in the store of one process.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use super::{OwnerCounts, OwnerElsewhere, OwnerPeriod, OwnerQuestion, PeriodElsewhere};
use crate::{
    registry::{CalendarPeriod, Owner},
    run::{Spending, TokensSpent},
};

/// How long a minute counts from its beginning.
const HOUR: Duration = Duration::from_secs(61 * 60);

/// How long the open runs of a replica count that gives no sign of life.
const ALIVE: Duration = Duration::from_secs(30);

/// The counts of owners, of all replicas.
#[derive(Debug, Default)]
pub(super) struct StoredOwners {
    by_owner: HashMap<Owner, HashMap<u64, StoredCounts>>,
    periods: HashMap<(Owner, CalendarPeriod, SystemTime), StoredPeriod>,
    /// When each replica was lost that is not there now.
    lost: HashMap<u64, Instant>,
    swept: Option<Instant>,
}

/// What one replica has counted for one owner.
#[derive(Debug, Default)]
struct StoredCounts {
    number: u64,
    open_runs: u32,
    minutes: BTreeMap<u64, StoredMinute>,
}

#[derive(Debug)]
struct StoredMinute {
    began: Instant,
    turns: u32,
    spent: Spending,
}

/// What the replicas have counted for one owner in a period.
#[derive(Debug)]
struct StoredPeriod {
    /// When it ends, by the clock of the sweeps.
    ends: Instant,
    /// The number, the turns and the tokens of each replica.
    counts: HashMap<u64, (u64, u32, Spending)>,
}

impl StoredPeriod {
    /// Takes the counts of this number, with as many turns of those asked for as the cap leaves. Returns
    /// what the others have.
    fn take(
        &mut self,
        replica: u64,
        number: u64,
        period: &OwnerPeriod,
        cap: Option<u32>,
    ) -> PeriodElsewhere {
        let (mut turns, mut spent) = (0_u32, Spending::default());
        for (_, other) in self.counts.iter().filter(|(at, _)| **at != replica) {
            turns = turns.saturating_add(other.1);
            spent = spent.plus(other.2);
        }
        let ours = self.counts.entry(replica).or_default();
        let left = cap.map_or(ours.1, |cap| cap.saturating_sub(turns));
        let granted = granted(period.turns, period.turns_asked, left);
        if number > ours.0 {
            *ours = (number, granted, period.spent.into());
        } else {
            ours.1 = ours.1.max(granted);
        }
        PeriodElsewhere {
            turns,
            spent: spent.into(),
            ..PeriodElsewhere::new(period.began)
        }
    }
}

impl StoredCounts {
    fn turns(&self) -> u32 {
        let turns = self.minutes.values().map(|minute| minute.turns);
        turns.fold(0, u32::saturating_add)
    }

    fn spent(&self) -> Spending {
        let spent = self.minutes.values().map(|minute| minute.spent);
        spent.fold(Spending::default(), Spending::plus)
    }

    fn forget(&mut self, now: Instant) {
        self.minutes.retain(|_, minute| now < minute.began + HOUR);
    }
}

/// What a replica has of which it may have more: `asked` more as far as others leave it, and never
/// less than it has.
fn granted(have: u32, asked: u32, left: u32) -> u32 {
    have.saturating_add(asked).min(left.max(have))
}

impl StoredOwners {
    /// The replica is there from now on, or it is lost.
    pub(super) fn set_lost(&mut self, replica: u64, is_lost: bool) {
        if is_lost {
            self.lost.entry(replica).or_insert_with(Instant::now);
        } else {
            self.lost.remove(&replica);
        }
    }

    pub(super) fn answer(&mut self, replica: u64, question: &OwnerQuestion) -> OwnerElsewhere {
        let caps = (question.max_open_runs, question.turns_per_hour);
        let elsewhere = self.take(replica, &question.counts, caps);
        self.take_periods(
            replica,
            &question.counts,
            question.turns_per_period,
            elsewhere,
        )
    }

    pub(super) fn tell(&mut self, replica: u64, counts: &OwnerCounts) -> OwnerElsewhere {
        let elsewhere = self.take(replica, counts, (None, None));
        self.take_periods(replica, counts, [None; 3], elsewhere)
    }

    fn take_periods(
        &mut self,
        replica: u64,
        counts: &OwnerCounts,
        caps: [Option<u32>; 3],
        mut elsewhere: OwnerElsewhere,
    ) -> OwnerElsewhere {
        for period in &counts.periods {
            let key = (counts.owner, period.period, period.began);
            let stored = self.periods.entry(key).or_insert_with(|| {
                let lasts = period.ends.duration_since(period.began);
                StoredPeriod {
                    // Later than it does: only its memory depends on it.
                    ends: Instant::now() + lasts.unwrap_or_default(),
                    counts: HashMap::new(),
                }
            });
            let of = period.period as usize;
            let others = stored.take(replica, counts.number, period, caps[of]);
            elsewhere.periods[of] = Some(others);
        }
        elsewhere
    }

    fn take(
        &mut self,
        replica: u64,
        counts: &OwnerCounts,
        (max_open_runs, turns_per_hour): (Option<u32>, Option<u32>),
    ) -> OwnerElsewhere {
        let now = Instant::now();
        self.sweep(now);
        let all = self.by_owner.entry(counts.owner).or_default();
        let mut elsewhere = OwnerElsewhere::default();
        let mut spent = Spending::default();
        for (at, other) in all.iter_mut().filter(|(at, _)| **at != replica) {
            other.forget(now);
            let lost = self.lost.get(at);
            if lost.is_none_or(|lost| now < *lost + ALIVE) {
                elsewhere.open_runs = elsewhere.open_runs.saturating_add(other.open_runs);
            }
            elsewhere.turns = elsewhere.turns.saturating_add(other.turns());
            spent = spent.plus(other.spent());
        }
        elsewhere.spent = TokensSpent::from(spent);

        let ours = all.entry(replica).or_default();
        ours.forget(now);
        let is_newer = counts.number > ours.number;
        ours.number = ours.number.max(counts.number);
        let before = ours.minutes.get(&counts.minute).map_or(0, |it| it.turns);
        for minute in &counts.minutes {
            let stored = ours.minutes.entry(minute.number);
            let is_unknown = matches!(stored, std::collections::btree_map::Entry::Vacant(_));
            let stored = stored.or_insert(StoredMinute {
                began: minute.began,
                turns: 0,
                spent: Spending::default(),
            });
            if is_newer || is_unknown {
                (stored.turns, stored.spent) = (minute.turns, minute.spent.into());
            }
        }
        let others = elsewhere.turns;
        let rest = ours.turns();
        if let Some(present) = ours.minutes.get_mut(&counts.minute) {
            let rest = rest.saturating_sub(present.turns);
            let left = turns_per_hour.map_or(before, |cap| {
                cap.saturating_sub(others).saturating_sub(rest)
            });
            let stated = counts.minutes.iter().find(|it| it.number == counts.minute);
            if let Some(stated) = stated {
                let turns = granted(stated.turns, counts.turns_asked, left);
                present.turns = if is_newer { turns } else { turns.max(before) };
            }
        }
        let left = max_open_runs.map_or(ours.open_runs, |cap| {
            cap.saturating_sub(elsewhere.open_runs)
        });
        let open = granted(counts.open_runs, counts.open_runs_asked, left);
        ours.open_runs = if is_newer {
            open
        } else {
            open.max(ours.open_runs)
        };
        elsewhere
    }

    /// Forgets, once a minute, the owners of which nothing counts.
    fn sweep(&mut self, now: Instant) {
        if self
            .swept
            .is_some_and(|at| now < at + Duration::from_secs(60))
        {
            return;
        }
        self.swept = Some(now);
        self.periods.retain(|_, period| now < period.ends);
        let lost = &self.lost;
        self.by_owner.retain(|_, replicas| {
            replicas.retain(|at, counts| {
                counts.forget(now);
                let is_alive = lost.get(at).is_none_or(|lost| now < *lost + ALIVE);
                !counts.minutes.is_empty() || (is_alive && counts.open_runs > 0)
            });
            !replicas.is_empty()
        });
        let has_counts = |at: &u64| self.by_owner.values().any(|it| it.contains_key(at));
        self.lost
            .retain(|at, lost| now < *lost + ALIVE || has_counts(at));
    }
}
