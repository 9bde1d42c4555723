//! The counts of owners at other replicas: what is asked, told and learned.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{Account, CalendarPeriod, MINUTES, Moment, Owner, OwnerCaps, OwnerSpent, Owners};
use crate::{
    lock::Lock,
    registry::store::{
        OwnerCounts, OwnerElsewhere, OwnerMinute, OwnerPeriod, OwnerQuestion, PeriodElsewhere,
        RunNews,
    },
    run::{Spending, TokensSpent},
};

/// A count, and the number of the first counts told that have it.
#[derive(Debug, Default)]
pub(super) struct NumberedCount<T> {
    count: T,
    changed: u64,
}

impl<T: Copy> NumberedCount<T> {
    pub(super) const fn get(&self) -> T {
        self.count
    }

    /// Replaces the count after the counts of the number `stated` were made.
    pub(super) fn set(&mut self, count: T, stated: u64) {
        self.count = count;
        self.changed = stated + 1;
    }

    /// Whether a store that knows the counts of the number `known` may not have this one.
    const fn is_news(&self, known: u64) -> bool {
        self.changed > known
    }
}

/// What an account knows of the other replicas, and what they know of it.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// The number of the last counts that were told, or that came with a question.
    pub(super) stated: u64,
    /// The number of the last counts that the store has answered, since it may have lost some.
    known: u64,
    /// The number of the last counts when the store may have lost them.
    lost: u64,
    counts: OwnerElsewhere,
    /// When these were learned; `None` if never.
    learned: Option<u64>,
    /// The requests that wait for the store, or were just answered: how many of them open a run.
    runs_asked: u32,
    /// How many of them take a turn, and the minute in which they asked.
    turns_asked: (u64, u32),
    /// How many requests that wait for the store, or were just answered, take a turn.
    turns_waiting: u32,
}

impl Elsewhere {
    /// The counts of the others, as far as they are of the last hour.
    pub(super) fn recent(&self, minute: u64) -> Option<&OwnerElsewhere> {
        let learned = self.learned.filter(|at| at + MINUTES > minute);
        learned.map(|_| &self.counts)
    }

    /// The counts of the others in a present period.
    pub(super) fn in_period(
        &self,
        period: CalendarPeriod,
        now: Moment,
    ) -> Option<&PeriodElsewhere> {
        let counts = self.counts.periods[period as usize].as_ref();
        counts.filter(|it| now.is_in(period, it.began))
    }

    /// What the others have spent, as far as it counts now.
    pub(super) fn spent(&self, now: Moment) -> OwnerSpent {
        let hour = self.recent(now.minute);
        OwnerSpent {
            hour: hour.map_or_else(Spending::default, |counts| counts.spent.into()),
            periods: CalendarPeriod::ALL.map(|period| {
                let counts = self.in_period(period, now);
                counts.map_or_else(Spending::default, |counts| counts.spent.into())
            }),
        }
    }

    /// Whether there is something to remember.
    pub(super) fn is_of_use(&self, now: Moment) -> bool {
        let hour = self.recent(now.minute).is_some_and(|counts| {
            let mut hour = *counts;
            hour.periods = [None; 3];
            hour != OwnerElsewhere::default()
        });
        let asked = self.runs_asked > 0 || self.turns_waiting > 0;
        let mut periods = CalendarPeriod::ALL.into_iter();
        let is_used = |period| {
            let counts = self.in_period(period, now);
            counts.is_some_and(|it| it.turns > 0 || it.spent != TokensSpent::default())
        };
        hour || asked || periods.any(is_used)
    }
}

/// A request that has asked the store about its owner, until the caps have counted it.
///
/// Its drop gives back what the store has granted and the request did not take.
#[derive(Debug)]
pub(crate) struct OwnerAsk {
    owners: Arc<Owners>,
    owner: u128,
    number: u64,
    /// Whether the request asked for a run, and has not opened it.
    opens: bool,
    /// The minute in which the request asked for a turn that it has not taken.
    turn: Option<u64>,
    /// Whether the request waits for a turn.
    waits: bool,
    answer: Option<OwnerElsewhere>,
    /// Whether the run is another replica's, which counts it.
    joins: bool,
}

impl OwnerAsk {
    /// Records the store's answer. The request `joins` if another replica has its run.
    pub(crate) fn learn(&mut self, answer: OwnerElsewhere, joins: bool) {
        self.owners.learn(Owner(self.owner), self.number, answer);
        self.answer = Some(answer);
        self.joins = joins;
    }

    pub(super) const fn answer(&self) -> Option<&OwnerElsewhere> {
        self.answer.as_ref()
    }

    pub(super) const fn joins(&self) -> bool {
        self.joins
    }

    /// Counts the run as opened. Returns whether the store has granted it.
    pub(super) fn take_run(&mut self, account: &mut Account) -> bool {
        let asked = std::mem::take(&mut self.opens);
        account.elsewhere.runs_asked -= u32::from(asked);
        asked && self.answer.is_some()
    }

    /// Counts the turn as taken in this minute. Returns whether the store has granted it.
    pub(super) fn take_turn(&mut self, account: &mut Account, minute: u64) -> bool {
        account.elsewhere.turns_waiting -= u32::from(std::mem::take(&mut self.waits));
        if self.turn != Some(minute) {
            return false;
        }
        self.turn = None;
        account.elsewhere.give_back_turn(minute);
        self.answer.is_some()
    }
}

impl Elsewhere {
    fn give_back_turn(&mut self, asked_in: u64) {
        let (minute, asked) = &mut self.turns_asked;
        if *minute == asked_in {
            *asked -= 1;
        }
    }
}

impl Drop for OwnerAsk {
    fn drop(&mut self) {
        if !self.opens && self.turn.is_none() && !self.waits {
            return;
        }
        self.owners.with_telling(self.owner, |account, _| {
            account.elsewhere.runs_asked -= u32::from(self.opens);
            account.elsewhere.turns_waiting -= u32::from(self.waits);
            if let Some(minute) = self.turn {
                account.elsewhere.give_back_turn(minute);
                let stated = account.elsewhere.stated;
                let turns = account.minutes.entry(minute).or_default();
                turns.set(turns.get(), stated);
            }
            ((), true)
        });
    }
}

/// A request's extension: what it asked the store about its owner.
#[derive(Clone, Debug)]
pub(crate) struct AskedOwner(Arc<Lock<Option<OwnerAsk>>>);

impl AskedOwner {
    pub(crate) fn new(ask: OwnerAsk) -> Self {
        Self(Arc::new(Lock::new(Some(ask))))
    }

    /// Takes what the request asked, which the caps then count.
    pub(crate) fn take(extensions: &http::Extensions) -> Option<OwnerAsk> {
        extensions.get::<Self>()?.0.lock().take()
    }
}

impl Owners {
    pub(super) fn is_shared(&self) -> bool {
        self.store.get().is_some()
    }

    /// The question of a request that comes under `caps`; `None` if none of them needs one. The
    /// request `opens` a run, unless the registry holds it.
    pub(crate) fn ask(
        self: &Arc<Self>,
        owner: Owner,
        caps: OwnerCaps,
        opens: bool,
        is_turn: bool,
    ) -> Option<(OwnerQuestion, OwnerAsk)> {
        let max_open_runs = caps.max_open_runs.filter(|_| opens);
        let is_turn = is_turn && caps.caps_turns();
        if !self.is_shared() || !(max_open_runs.is_some() || is_turn || caps.caps_tokens()) {
            return None;
        }
        let opens = max_open_runs.is_some();
        let (counts, turn) = self.with(owner.0, |account, now| {
            let elsewhere = &mut account.elsewhere;
            elsewhere.runs_asked += u32::from(opens);
            elsewhere.turns_waiting += u32::from(is_turn);
            if is_turn {
                let asked = &mut elsewhere.turns_asked;
                if asked.0 != now.minute {
                    *asked = (now.minute, 0);
                }
                asked.1 += 1;
            }
            let counts = self.state(owner, account, now);
            (counts, is_turn.then_some(now.minute))
        });
        let ask = OwnerAsk {
            owners: Arc::clone(self),
            owner: owner.0,
            number: counts.number,
            opens,
            turn,
            waits: is_turn,
            answer: None,
            joins: false,
        };
        let question = OwnerQuestion {
            counts,
            max_open_runs,
            turns_per_hour: caps.turns_of_hour().filter(|_| is_turn),
            turns_per_period: caps.turns_of_periods().map(|cap| cap.filter(|_| is_turn)),
        };
        Some((question, ask))
    }

    /// Records what the other replicas have counted, in answer to the counts of this number.
    pub(crate) fn learn(&self, owner: Owner, number: u64, counts: OwnerElsewhere) {
        let now = self.now();
        let mut known = self.known.lock();
        // An owner that is forgotten has nothing to count.
        let Some(account) = known.by_owner.get_mut(&owner.0) else {
            return;
        };
        let elsewhere = &mut account.elsewhere;
        // An answer that was overtaken by a later one says nothing new.
        if number < elsewhere.known {
            return;
        }
        if number > elsewhere.lost {
            elsewhere.known = number;
        }
        elsewhere.learned = Some(now.minute);
        let former = std::mem::replace(&mut elsewhere.counts, counts);
        for (period, former) in elsewhere.counts.periods.iter_mut().zip(former.periods) {
            // The counts that were answered told of no period.
            *period = period.or(former);
        }
        if let Some(tokens) = &account.tokens {
            tokens.learn(&elsewhere.spent(now), now);
        }
    }

    /// Tells all counts of the last hour: the store may have lost them.
    pub(crate) fn tell_all(&self) {
        let owners: Vec<_> = self.known.lock().by_owner.keys().copied().collect();
        for owner in owners {
            self.with_telling(owner, |account, now| {
                account.elsewhere.known = 0;
                account.elsewhere.lost = account.elsewhere.stated;
                let has_counts = account.open > 0 || !account.is_forgotten(now);
                ((), has_counts)
            });
        }
    }

    /// Tells what this owner's runs have used here.
    pub(super) fn tell(&self, owner: u128) {
        self.with_telling(owner, |_, _| ((), true));
    }

    /// Calls `f` with the account, and tells the other replicas of it if `f` says so.
    pub(super) fn with_telling<R>(
        &self,
        owner: u128,
        f: impl FnOnce(&mut Account, Moment) -> (R, bool),
    ) -> R {
        let (result, counts) = self.with(owner, |account, now| {
            let (result, has_changed) = f(account, now);
            let tells = has_changed && self.is_shared();
            (
                result,
                tells.then(|| self.state(Owner(owner), account, now)),
            )
        });
        if let (Some(store), Some(counts)) = (self.store.get(), counts) {
            store.tell(RunNews::Counted(counts));
        }
        result
    }

    /// What the store may not know of this account.
    fn state(&self, owner: Owner, account: &mut Account, now: Moment) -> OwnerCounts {
        // Under the lock of the accounts, so that of two counts the later has the higher number.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let elsewhere = &mut account.elsewhere;
        elsewhere.stated = number;
        let (known, asked) = (elsewhere.known, elsewhere.turns_asked);
        let turns_asked = if asked.0 == now.minute { asked.1 } else { 0 };
        let tokens = account.tokens.as_ref();
        let tokens = tokens.map(|tokens| tokens.state(number, now));
        let turns_of_periods = account.turns_of_periods(now);
        let periods = CalendarPeriod::ALL.into_iter().filter_map(|period| {
            let of = period as usize;
            let present = now.periods[of]?;
            let spent = tokens.as_ref().map(|it| it.periods[of].in_period(present));
            Some(OwnerPeriod {
                turns: turns_of_periods[of],
                turns_asked: account.elsewhere.turns_waiting,
                spent: spent.unwrap_or_default().into(),
                ..OwnerPeriod::new(period, present.began, present.ends)
            })
        });
        let periods = periods.collect();
        let turns = account.minutes.iter();
        let mut changed: BTreeSet<u64> = turns
            .filter_map(|(at, turns)| turns.is_news(known).then_some(*at))
            .collect();
        if let Some(tokens) = &tokens {
            let news = tokens.by_minute.iter().filter(|(_, it)| it.is_news(known));
            changed.extend(news.map(|(at, _)| *at));
        }
        if turns_asked > 0 {
            changed.insert(now.minute);
        }
        let minutes = changed.into_iter().map(|number| {
            let began = self.epoch + Duration::from_secs(60 * number);
            let turns = account.minutes.get(&number).map_or(0, NumberedCount::get);
            let spent = tokens.as_ref().and_then(|it| it.by_minute.get(&number));
            OwnerMinute {
                turns,
                spent: spent
                    .map_or_else(Spending::default, NumberedCount::get)
                    .into(),
                ..OwnerMinute::new(number, began)
            }
        });
        let minutes = minutes.collect();
        OwnerCounts {
            open_runs: account.open,
            open_runs_asked: account.elsewhere.runs_asked,
            minute: now.minute,
            turns_asked,
            minutes,
            periods,
            ..OwnerCounts::new(owner, number)
        }
    }
}
