//! The owner of runs, and the counts of its open runs, turns and tokens against its caps.

mod calendar;
mod caps;
mod owner;
mod refusal;
mod shared;
mod tokens;

pub use self::{
    calendar::{Calendar, CalendarPeriod, UtcCalendar},
    caps::OwnerCaps,
    owner::Owner,
};

pub(crate) use self::{
    calendar::Periods,
    shared::{AskedOwner, OwnerAsk},
    tokens::OwnerTokens,
};

use std::{
    collections::{BTreeMap, HashMap, btree_map::OccupiedEntry},
    sync::{Arc, atomic::AtomicU64},
    time::SystemTime,
};

use tokio::time::Instant;

use self::{
    calendar::{PeriodCount, PresentPeriods},
    caps::OwnerSpent,
    refusal::{REPORT_INTERVAL, RefusalCount},
    shared::{Elsewhere, NumberedCount},
};
use super::{RunRegistry, store::StoreCell};
use crate::{
    lock::Lock,
    registry::store::OwnerElsewhere,
    run::{CapWindow, LimitHit, LimitKind, RunGuard},
};

/// The counts of owners. An owner can be forgotten once it has no open run, and no turn, tokens or
/// report of the last hour, or of a period that a cap counts in.
#[derive(Debug)]
pub(crate) struct Owners {
    epoch: Instant,
    known: Lock<OwnerTable>,
    /// The store by which other replicas learn of the counts; unset without one.
    store: StoreCell,
    /// The number of counts that were told or asked about so far.
    numbers: AtomicU64,
    periods: Arc<Periods>,
}

/// The minute since the epoch, and the periods of the calendar, at one moment.
#[derive(Clone, Copy, Debug)]
struct Moment {
    minute: u64,
    periods: PresentPeriods,
}

impl Moment {
    /// Whether the present period of this kind began then.
    fn is_in(&self, period: CalendarPeriod, began: SystemTime) -> bool {
        self.periods[period as usize].is_some_and(|present| present.began == began)
    }
}

#[derive(Debug, Default)]
struct OwnerTable {
    by_owner: HashMap<u128, Account>,
    /// The minute, since the epoch, in which old accounts were last removed.
    swept: u64,
}

#[derive(Debug, Default)]
struct Account {
    open: u32,
    /// The turns in each minute with turns; the minutes count from the epoch.
    minutes: BTreeMap<u64, NumberedCount<u32>>,
    /// The turns in each period of the calendar.
    periods: [PeriodCount<u32>; 3],
    /// The tokens; `None` until a layer that caps tokens counts.
    tokens: Option<Arc<OwnerTokens>>,
    /// The refused requests, by the name of the cap.
    refusals: BTreeMap<&'static str, RefusalCount>,
    elsewhere: Elsewhere,
}

/// A guard that counts a run as open for its owner until it is dropped.
#[derive(Debug)]
pub(crate) struct OpenRun {
    owners: Arc<Owners>,
    owner: u128,
    /// Whether the run counts: one that another replica opened counts there.
    is_counted: bool,
    /// Whether a cap makes other replicas count the run, too.
    is_told: bool,
}

/// The number of minutes in which turns and tokens count against the hourly caps. The number is
/// one more than an hour has: the first and the last minute are not whole, and no hour may exceed
/// a cap.
const MINUTES: u64 = 61;

impl RunRegistry {
    /// Returns the counts of each owner's runs, turns and tokens. The registry counts from the
    /// first call of this method on.
    pub(crate) fn count_owners(&self) -> &Arc<Owners> {
        let new = || {
            let periods = Arc::clone(&self.state.periods);
            Arc::new(Owners::new(self.state.parts.cell(), periods))
        };
        self.state.owners.get_or_init(new)
    }

    /// Sets the calendar by whose days, weeks and months the caps of owners count.
    ///
    /// With another calendar a period that begins at another moment counts anew.
    pub fn set_calendar(&self, calendar: impl Calendar) {
        self.state.periods.set_calendar(Arc::new(calendar));
    }

    /// Whether a layer has set caps on owners in this registry.
    pub(crate) fn has_caps(&self) -> bool {
        self.state.owners.get().is_some()
    }
}

impl Owners {
    pub(super) fn new(store: StoreCell, periods: Arc<Periods>) -> Self {
        Self {
            epoch: Instant::now(),
            known: Lock::default(),
            store,
            numbers: AtomicU64::new(0),
            periods,
        }
    }

    /// Counts what `caps` count from now on.
    pub(crate) fn count_for(&self, caps: &OwnerCaps) {
        for period in caps.capped_periods() {
            self.periods.count(period);
        }
    }

    /// Counts a new run of this owner. With `turn`, the request that opened the run also counts as
    /// a turn, if turns are capped. `asked` is what the request asked the store.
    ///
    /// # Errors
    ///
    /// The cap that refuses the run; a refused run is not counted.
    pub(crate) fn open(
        self: &Arc<Self>,
        owner: Owner,
        caps: OwnerCaps,
        turn: bool,
        mut asked: Option<&mut OwnerAsk>,
    ) -> Result<OpenRun, LimitHit> {
        let joins = asked.as_ref().is_some_and(|asked| asked.joins());
        let is_told = caps.max_open_runs.is_some();
        self.with_telling(owner.0, |account, now| {
            let answer = asked.as_ref().and_then(|asked| asked.answer());
            if let Err(cap) = account.check(caps, now, !joins, turn, answer) {
                return (Err(cap), false);
            }
            let mut tells = account.count_turn(now, caps, turn, &mut asked);
            if !joins {
                account.open += 1;
                let asked = asked.as_mut();
                let is_granted = asked.is_some_and(|asked| asked.take_run(account));
                tells |= is_told && !is_granted;
            }
            (Ok(()), tells)
        })?;
        Ok(OpenRun {
            owners: Arc::clone(self),
            owner: owner.0,
            is_counted: !joins,
            is_told,
        })
    }

    /// Counts a new run of this owner that no cap refuses.
    pub(super) fn open_uncapped(self: &Arc<Self>, owner: Owner) -> OpenRun {
        self.with_telling(owner.0, |account, _| {
            account.open += 1;
            ((), true)
        });
        OpenRun {
            owners: Arc::clone(self),
            owner: owner.0,
            is_counted: true,
            is_told: true,
        }
    }

    /// Admits a request of this owner in a run that is open already. Counts it as a turn if it is
    /// one and turns are capped.
    ///
    /// # Errors
    ///
    /// The cap that refuses the request; a refused turn is not counted.
    pub(crate) fn request(
        &self,
        owner: Owner,
        caps: OwnerCaps,
        is_turn: bool,
        mut asked: Option<&mut OwnerAsk>,
    ) -> Result<(), LimitHit> {
        self.with_telling(owner.0, |account, now| {
            let answer = asked.as_ref().and_then(|asked| asked.answer());
            if let Err(cap) = account.check(caps, now, false, is_turn, answer) {
                return (Err(cap), false);
            }
            let tells = account.count_turn(now, caps, is_turn, &mut asked);
            (Ok(()), tells)
        })
    }

    /// Gives back a turn of this owner that was counted then, and in the periods that had begun.
    pub(super) fn give_turn_back(&self, owner: Owner, counted: Instant) {
        let minute = counted.saturating_duration_since(self.epoch).as_secs() / 60;
        let counted = self.periods.now().checked_sub(counted.elapsed());
        self.with_telling(owner.0, |account, now| {
            let Some(turns) = account.minutes.get_mut(&minute) else {
                return ((), false);
            };
            turns.set(turns.get().saturating_sub(1), account.elsewhere.stated);
            for (count, present) in account.periods.iter_mut().zip(now.periods) {
                let present = present.filter(|it| counted.is_some_and(|at| it.began <= at));
                if let Some(present) = present {
                    count.set(present, count.in_period(present).saturating_sub(1));
                }
            }
            ((), true)
        });
    }

    /// Whether a cap refuses a request of this owner now; with `is_new` it opens a run.
    pub(super) fn is_at_cap(
        &self,
        owner: Owner,
        caps: OwnerCaps,
        is_new: bool,
        is_turn: bool,
    ) -> bool {
        self.with(owner.0, |account, now| {
            let checked = account.check(caps, now, is_new, is_turn, None);
            checked.is_err()
        })
    }

    /// The count of this owner's tokens, which begins now if it did not before.
    pub(super) fn tokens(self: &Arc<Self>, owner: Owner) -> Arc<OwnerTokens> {
        self.with(owner.0, |account, now| {
            let elsewhere = account.elsewhere.spent(now);
            let new = || Arc::new(OwnerTokens::new(self, owner.0, &elsewhere, now));
            Arc::clone(account.tokens.get_or_insert_with(new))
        })
    }

    /// Counts a request of this owner that the cap of this name refused. Returns the number of
    /// refusals since the last report, if a report is due now.
    pub(super) fn refused(&self, owner: Owner, cap: &'static str) -> Option<u64> {
        let now = self.epoch.elapsed();
        self.with(owner.0, |account, _| {
            let count = account.refusals.entry(cap).or_default();
            count.refused = count.refused.saturating_add(1);
            if count.reported.is_some_and(|at| now < at + REPORT_INTERVAL) {
                return None;
            }
            count.reported = Some(now);
            Some(std::mem::take(&mut count.refused))
        })
    }

    fn minute(&self) -> u64 {
        self.epoch.elapsed().as_secs() / 60
    }

    fn now(&self) -> Moment {
        Moment {
            minute: self.minute(),
            periods: self.periods.present(),
        }
    }

    fn with<R>(&self, owner: u128, f: impl FnOnce(&mut Account, Moment) -> R) -> R {
        let now = self.now();
        let mut known = self.known.lock();
        if known.swept != now.minute {
            known.swept = now.minute;
            known.by_owner.retain(|_, account| {
                forget(&mut account.minutes, now.minute);
                account.open > 0 || !account.is_forgotten(now)
            });
        }
        let account = known.by_owner.entry(owner).or_default();
        forget(&mut account.minutes, now.minute);
        f(account, now)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.lock().by_owner.len()
    }
}

impl RunGuard for OpenRun {}

impl Drop for OpenRun {
    fn drop(&mut self) {
        if self.is_counted {
            self.owners.with_telling(self.owner, |account, _| {
                account.open = account.open.saturating_sub(1);
                ((), self.is_told)
            });
        }
    }
}

impl Account {
    /// Whether the account has no turns, tokens or reports of the last hour or of a present period.
    fn is_forgotten(&self, now: Moment) -> bool {
        let mut reports = self.refusals.values().filter_map(|count| count.reported);
        // A stream that is under way still holds the count, and adds to it.
        let counts = |tokens: &Arc<OwnerTokens>| {
            Arc::strong_count(tokens) > 1 || !tokens.is_nothing_spent_here(now)
        };
        self.minutes.is_empty()
            && self.turns_of_periods(now).iter().all(|turns| *turns == 0)
            && !self.elsewhere.is_of_use(now)
            && !self.tokens.as_ref().is_some_and(counts)
            && !reports.any(|at| at.as_secs() / 60 + MINUTES > now.minute)
    }

    /// The turns in the present periods, here.
    fn turns_of_periods(&self, now: Moment) -> [u32; 3] {
        std::array::from_fn(|of| now.periods[of].map_or(0, |it| self.periods[of].in_period(it)))
    }

    /// Checks the caps on open runs, for a request that opens one, on tokens, and for a turn on
    /// turns. `answer` is what the store said to this request.
    fn check(
        &self,
        caps: OwnerCaps,
        now: Moment,
        is_new: bool,
        is_turn: bool,
        answer: Option<&OwnerElsewhere>,
    ) -> Result<(), LimitHit> {
        let elsewhere = self.elsewhere.recent(now.minute);
        // What the others gave back after the answer was granted to nobody here.
        let most = |counts: [Option<u32>; 2]| counts.into_iter().flatten().max().unwrap_or(0);
        let open_runs = caps.max_open_runs.filter(|_| is_new);
        let of_runs = || most([elsewhere, answer].map(|it| it.map(|it| it.open_runs)));
        let is_full = |cap: &u32| self.open.saturating_add(of_runs()) >= *cap;
        if let Some(cap) = open_runs.filter(is_full) {
            return Err(reached(LimitKind::OpenRuns(cap)));
        }
        if caps.caps_tokens() {
            let spent = match &self.tokens {
                Some(tokens) => tokens.spent_at(now),
                None => self.elsewhere.spent(now),
            };
            if let Some(limit) = caps.token_limit(&spent, false) {
                return Err(reached(LimitKind::Tokens(limit)));
            }
        }
        if !is_turn {
            return Ok(());
        }
        if let Some(cap) = caps.turns_of_hour() {
            let turns = self.minutes.values().map(NumberedCount::get).sum::<u32>();
            let others = most([elsewhere, answer].map(|it| it.map(|it| it.turns)));
            if turns.saturating_add(others) >= cap {
                return Err(reached(LimitKind::OwnerTurns(cap, CapWindow::Hour)));
            }
        }
        let here = self.turns_of_periods(now);
        for period in CalendarPeriod::ALL {
            let of = period as usize;
            let Some(cap) = caps.turns_of_periods()[of] else {
                continue;
            };
            let elsewhere = self.elsewhere.in_period(period, now).map(|it| it.turns);
            let answered = answer.and_then(|it| it.periods[of]);
            let answered = answered.filter(|it| now.is_in(period, it.began));
            let others = most([elsewhere, answered.map(|it| it.turns)]);
            if here[of].saturating_add(others) >= cap {
                return Err(reached(LimitKind::OwnerTurns(cap, period.into())));
            }
        }
        Ok(())
    }

    /// Counts a turn, if the request is one and turns are capped. Returns whether the store does
    /// not know of it.
    fn count_turn(
        &mut self,
        now: Moment,
        caps: OwnerCaps,
        is_turn: bool,
        asked: &mut Option<&mut OwnerAsk>,
    ) -> bool {
        if !is_turn || !caps.caps_turns() {
            return false;
        }
        let stated = self.elsewhere.stated;
        let turns = self.minutes.entry(now.minute).or_default();
        turns.set(turns.get() + 1, stated);
        for (count, present) in self.periods.iter_mut().zip(now.periods) {
            if let Some(present) = present {
                count.set(present, count.in_period(present).saturating_add(1));
            }
        }
        let asked = asked.as_mut();
        !asked.is_some_and(|asked| asked.take_turn(self, now.minute))
    }
}

/// Removes the minutes that are more than an hour before `minute`.
fn forget<T>(minutes: &mut BTreeMap<u64, T>, minute: u64) {
    let is_old = |first: &OccupiedEntry<'_, u64, T>| first.key() + MINUTES <= minute;
    while let Some(first) = minutes.first_entry().filter(is_old) {
        first.remove();
    }
}

const fn reached(kind: LimitKind) -> LimitHit {
    LimitHit { limit: None, kind }
}
