//! What the runs of one owner come to, together.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{RunRegistry, owner::Owner};
use crate::run::{LimitHit, LimitKind, Run, RunGuard, RunId, TerminalReason};

/// How many runs an owner may have open, and how many turns in an hour, whatever
/// ids they have: for [`RunLayer::owner_caps`](crate::RunLayer::owner_caps).
///
/// ```
/// use tower_agent::registry::OwnerCaps;
///
/// let caps = OwnerCaps::new().max_open_runs(20).turns_per_hour(600);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnerCaps {
    max_open_runs: Option<u32>,
    turns_per_hour: Option<u32>,
}

/// What is known of owners who have something open, or had a turn lately.
#[derive(Debug)]
pub(crate) struct Owners {
    epoch: Instant,
    known: Mutex<OwnerTable>,
}

#[derive(Debug, Default)]
struct OwnerTable {
    by_owner: HashMap<u128, Account>,
    /// When it was last looked for owners to be forgotten.
    swept: u64,
}

#[derive(Debug, Default)]
struct Account {
    open: u32,
    /// Minutes since the epoch and the turns in each, oldest first; those without
    /// any are not there.
    minutes: VecDeque<(u64, u32)>,
    refusals: OwnerCapLog,
    /// Requests beyond a cap that are read all the same.
    held: u32,
}

/// A run that counts as its owner's until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenRun {
    owners: Arc<Owners>,
    owner: u128,
}

/// How many minutes may be told apart; one more than an hour, of which the first and
/// the last are not whole, so that no hour has more turns than it may.
const MINUTES: u64 = 61;

impl OwnerCaps {
    /// No cap.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            max_open_runs: None,
            turns_per_hour: None,
        }
    }

    /// At most so many runs that are not over, a request without an id being one.
    ///
    /// # Panics
    ///
    /// If `runs` is zero.
    #[must_use]
    pub const fn max_open_runs(mut self, runs: u32) -> Self {
        assert!(runs > 0, "an owner must have at least one run");
        self.max_open_runs = Some(runs);
        self
    }

    /// At most so many turns in any hour, counted by the minute: a turn is given back
    /// 60 to 61 minutes after it.
    ///
    /// # Panics
    ///
    /// If `turns` is zero.
    #[must_use]
    pub const fn turns_per_hour(mut self, turns: u32) -> Self {
        assert!(turns > 0, "an owner must have at least one turn");
        self.turns_per_hour = Some(turns);
        self
    }
}

impl RunRegistry {
    /// From now on what the runs of each owner come to is counted.
    pub(crate) fn count_owners(&self) -> &Arc<Owners> {
        self.shared.owners.get_or_init(|| Arc::new(Owners::new()))
    }

    /// Whether a request with this id is not one of a new run.
    pub(crate) fn is_taken(&self, owner: Owner, id: &RunId) -> bool {
        let run = self.get(owner, id);
        run.is_some_and(|run| run.terminal_reason() != Some(TerminalReason::Completed))
    }
}

impl Owners {
    pub(super) fn new() -> Self {
        Self {
            epoch: Instant::now(),
            known: Mutex::default(),
        }
    }

    /// A new run of this owner, which is a turn as well or not.
    ///
    /// # Errors
    ///
    /// The cap that forbids it; nothing is counted then.
    pub(crate) fn open(
        self: &Arc<Self>,
        owner: Owner,
        caps: OwnerCaps,
        turn: bool,
    ) -> Result<OpenRun, LimitHit> {
        self.with(owner.0, |account, minute| {
            if let Some(cap) = caps.max_open_runs.filter(|cap| account.open >= *cap) {
                return Err(reached(LimitKind::OpenRuns(cap)));
            }
            if turn {
                account.take(minute, caps)?;
            }
            account.open += 1;
            Ok(())
        })?;
        Ok(OpenRun {
            owners: Arc::clone(self),
            owner: owner.0,
        })
    }

    /// A turn of a run that is open.
    ///
    /// # Errors
    ///
    /// The cap that forbids it; nothing is counted then.
    pub(crate) fn turn(&self, owner: Owner, caps: OwnerCaps) -> Result<(), LimitHit> {
        self.with(owner.0, |account, minute| account.take(minute, caps))
    }

    /// A request of this owner was refused. Answers how many were since that was told
    /// last, if it is to be told now.
    pub(super) fn refused(&self, owner: Owner, cap: LimitKind) -> Option<u64> {
        let now = self.epoch.elapsed();
        self.with(owner.0, |account, _| account.refusals.count(cap, now))
    }

    /// Whether one more request of this owner may be read though it is over a cap.
    pub(super) fn take_place(&self, owner: Owner, most: u32) -> bool {
        self.with(owner.0, |account, _| {
            let is_free = account.held < most;
            account.held += u32::from(is_free);
            is_free
        })
    }

    pub(super) fn leave_place(&self, owner: Owner) {
        self.with(owner.0, |account, _| {
            account.held = account.held.saturating_sub(1);
        });
    }

    fn lock(&self) -> MutexGuard<'_, OwnerTable> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, owner: u128, f: impl FnOnce(&mut Account, u64) -> R) -> R {
        let minute = self.epoch.elapsed().as_secs() / 60;
        let mut known = self.lock();
        if known.swept != minute {
            known.swept = minute;
            known.by_owner.retain(|_, account| {
                account.forget(minute);
                account.open > 0 || account.held > 0 || !account.is_forgotten(minute)
            });
        }
        let account = known.by_owner.entry(owner).or_default();
        account.forget(minute);
        f(account, minute)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().by_owner.len()
    }
}

impl RunGuard for OpenRun {}

impl Drop for OpenRun {
    fn drop(&mut self) {
        self.owners.with(self.owner, |account, _| {
            account.open = account.open.saturating_sub(1);
        });
    }
}

impl Account {
    fn forget(&mut self, minute: u64) {
        let old = |(at, _): &(u64, u32)| at + MINUTES <= minute;
        while self.minutes.front().is_some_and(old) {
            self.minutes.pop_front();
        }
    }

    /// Whether nothing of the last hour is known any more.
    fn is_forgotten(&self, minute: u64) -> bool {
        let refused = self
            .refusals
            .told_since((minute + 1).saturating_sub(MINUTES));
        self.minutes.is_empty() && !refused
    }

    fn take(&mut self, minute: u64, caps: OwnerCaps) -> Result<(), LimitHit> {
        let Some(cap) = caps.turns_per_hour else {
            return Ok(());
        };
        let taken: u32 = self.minutes.iter().map(|(_, turns)| turns).sum();
        if taken >= cap {
            return Err(reached(LimitKind::TurnsPerHour(cap)));
        }
        match self.minutes.back_mut() {
            Some((at, turns)) if *at == minute => *turns += 1,
            _ => self.minutes.push_back((minute, 1)),
        }
        Ok(())
    }
}

const fn reached(measure: LimitKind) -> LimitHit {
    LimitHit {
        limit: None,
        measure,
    }
}

/// There is one line of each cap in so long.
const RHYTHM: Duration = Duration::from_secs(60);

/// What one owner was refused, by cap.
#[derive(Debug, Default)]
pub(crate) struct OwnerCapLog {
    open_runs: Untold,
    turns_per_hour: Untold,
}

#[derive(Debug, Default)]
struct Untold {
    /// When it was told last.
    told: Option<Duration>,
    /// How often it happened since.
    refused: u64,
}

/// An owner is at its cap, for whoever reads it later.
#[derive(Debug, serde::Serialize)]
pub(crate) struct OwnerRefused {
    cap: &'static str,
    limit: u32,
    /// How many requests, since this was told last.
    refused: u64,
    owner: Owner,
    run: Option<RunId>,
    session: Option<Arc<str>>,
}

impl OwnerCapLog {
    /// Something was refused once more. Answers how often it was since that was told
    /// last, if it is to be told now.
    pub(crate) fn count(&mut self, cap: LimitKind, now: Duration) -> Option<u64> {
        let untold = match cap {
            LimitKind::OpenRuns(_) => &mut self.open_runs,
            LimitKind::TurnsPerHour(_) => &mut self.turns_per_hour,
            _ => return None,
        };
        untold.refused = untold.refused.saturating_add(1);
        if untold.told.is_some_and(|told| now < told + RHYTHM) {
            return None;
        }
        untold.told = Some(now);
        Some(std::mem::take(&mut untold.refused))
    }

    /// Whether something was told in this minute since the epoch, or after it.
    pub(crate) fn told_since(&self, minute: u64) -> bool {
        let told = [self.open_runs.told, self.turns_per_hour.told];
        let mut minutes = told.into_iter().flatten().map(|told| told.as_secs() / 60);
        minutes.any(|told| told >= minute)
    }
}

impl RunRegistry {
    /// An owner's cap refused a request, of a run that there is or of none: that is
    /// told once in a while. Not for who holds a lock: it calls what is the program's.
    pub(crate) fn tell_refused(&self, owner: Owner, cap: LimitHit, run: Option<&Run>) {
        let (name, limit) = match cap.measure {
            LimitKind::OpenRuns(limit) => ("max_open_runs", limit),
            LimitKind::TurnsPerHour(limit) => ("turns_per_hour", limit),
            _ => return,
        };
        let Some(refused) = self.count_owners().refused(owner, cap.measure) else {
            return;
        };
        let told = OwnerRefused {
            cap: name,
            limit,
            refused,
            owner,
            run: run.map(Run::id),
            session: run.and_then(Run::session),
        };
        tracing::warn!(
            target: "tower_agent",
            reason = TerminalReason::TurnCap.as_str(),
            cap = name,
            limit,
            refused,
            %owner,
            run = told.run.as_ref().map(tracing::field::display),
            "an owner is at its cap"
        );
        if let Some(trajectory) = self.shared.trajectory.get() {
            trajectory.refuse_owner(&told);
        }
    }
}
