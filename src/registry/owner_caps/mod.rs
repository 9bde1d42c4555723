//! The owner of runs, and the counts of its open runs, turns and tokens against its caps.

mod shared;

pub(crate) use self::shared::{AskedOwner, OwnerAsk};

use std::{
    collections::{BTreeMap, HashMap, btree_map::OccupiedEntry},
    fmt,
    sync::{Arc, MutexGuard, Weak, atomic::AtomicU64},
    time::Duration,
};

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use self::shared::{Elsewhere, NumberedCount};
use super::{
    RunRegistry,
    secret::{DigestKeys, Purpose},
    store::StoreCell,
};
use crate::{
    headers::CREDENTIALS,
    lock::Lock,
    registry::store::OwnerElsewhere,
    run::{LimitHit, LimitKind, Run, RunGuard, RunId, Spending, TokenAccount, TokenCaps},
};

/// The owner of a run: a digest of the caller's credential.
///
/// The default owner is the program itself. Callers without a credential are another owner,
/// [`anonymous`](Self::anonymous): so no request without a key finds, joins or ends a run of the
/// program by its id. To find or end the runs of a server without keys, the program names that
/// owner.
///
/// The digest has a random key in each process, or that of a [`SharedSecret`](super::SharedSecret), and is never
/// printed. Records and logs show `program`, `anonymous`, or `owner-` and 16 hexadecimal digits that
/// are derived from the digest with another key; these texts only distinguish owners.
///
/// ```
/// # use tower_agent::{RunRegistry, TerminalReason};
/// use tower_agent::{Owner, registry::AbortOutcome};
///
/// # let registry = RunRegistry::new();
/// # let _run = registry.open(Owner::anonymous(), "r-1".parse()?);
/// // A run that a request without a key opened.
/// assert_eq!(registry.abort(Owner::anonymous(), &"r-1".parse()?), AbortOutcome::Ended);
///
/// let (one, two) = (Owner::of(b"sk-one"), Owner::of(b"sk-two"));
/// assert!(one.to_string().starts_with("owner-"));
/// assert_ne!(one.to_string(), two.to_string());
/// # Ok::<_, tower_agent::InvalidRunId>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub(crate) u128);

impl Owner {
    /// Makes the one owner that stands for all callers without a credential.
    #[must_use]
    pub fn anonymous() -> Self {
        Self::of(b"")
    }

    /// Makes the owner of a credential, or of another text that identifies the caller.
    #[must_use]
    pub fn of(credential: &[u8]) -> Self {
        Self(DigestKeys::in_use().wide(Purpose::Owner, credential))
    }

    /// The owner of the credential in a request's headers.
    ///
    /// The credential is the key in the first present header of `authorization`, `x-api-key`,
    /// `api-key` and `x-goog-api-key`, without a scheme before it, such as `Bearer`. Without any of
    /// these headers the owner is [`anonymous`](Self::anonymous).
    ///
    /// ```
    /// use http::{HeaderMap, HeaderValue};
    /// use tower_agent::Owner;
    ///
    /// let mut headers = HeaderMap::new();
    /// headers.insert("authorization", HeaderValue::from_static("Bearer sk-one"));
    /// assert_eq!(Owner::of_headers(&headers), Owner::of(b"sk-one"));
    /// ```
    #[must_use]
    pub fn of_headers(headers: &HeaderMap) -> Self {
        let found = CREDENTIALS.iter().find_map(|name| headers.get(name));
        // The default owner is that of the program's own runs, so it is not used here.
        found.map_or_else(Self::anonymous, |value| Self::of(key_in(value)))
    }

    /// The keyed digest; with a shared [`SharedSecret`](super::SharedSecret) it is the same in each process.
    /// Never print it.
    ///
    /// The digest of the program itself is 0.
    #[must_use]
    pub const fn digest(self) -> u128 {
        self.0
    }

    /// The owner of this [`digest`](Self::digest), which another replica with the same key has
    /// written.
    #[must_use]
    pub const fn from_digest(digest: u128) -> Self {
        Self(digest)
    }
}

/// The key in a credential header, without `Bearer` or another scheme before it.
///
/// The letter case of a scheme and the spaces after it may vary, and would make many owners of one
/// key.
fn key_in(value: &HeaderValue) -> &[u8] {
    let value = value.as_bytes().trim_ascii();
    let mut words = value.splitn(2, u8::is_ascii_whitespace);
    match (words.next(), words.next()) {
        (Some(_scheme), Some(key)) => key.trim_ascii_start(),
        _ => value,
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            f.write_str("program")
        } else if *self == Self::anonymous() {
            f.write_str("anonymous")
        } else {
            let keys = DigestKeys::in_use();
            let printed = keys.digest(Purpose::PrintedOwner, &self.0.to_le_bytes());
            write!(f, "owner-{printed:016x}")
        }
    }
}

impl serde::Serialize for Owner {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == 0 {
            "Owner(program)"
        } else {
            "Owner(..)"
        })
    }
}

/// Caps on an owner's open runs, and on its turns and tokens in an hour.
///
/// The caps hold over all ids of the owner, and [`OwnerCapLayer`](crate::OwnerCapLayer) enforces
/// them.
///
/// ```
/// use tower_agent::registry::OwnerCaps;
///
/// let caps = OwnerCaps::new().max_open_runs(20).turns_per_hour(600);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnerCaps {
    max_open_runs: Option<u32>,
    turns_per_hour: Option<u32>,
    tokens_per_hour: TokenCaps,
}

/// The counts of owners. An owner can be forgotten once it has no open run, and no turn, tokens or
/// report of the last hour.
#[derive(Debug)]
pub(crate) struct Owners {
    epoch: Instant,
    known: Lock<OwnerTable>,
    /// The store by which other replicas learn of the counts; unset without one.
    store: StoreCell,
    /// The number of counts that were told or asked about so far.
    numbers: AtomicU64,
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
    /// The tokens of the last hour; `None` until a layer that caps tokens counts.
    tokens: Option<Arc<OwnerTokens>>,
    /// The refused requests, by the name of the cap.
    refusals: BTreeMap<&'static str, RefusalCount>,
    elsewhere: Elsewhere,
}

/// The tokens of one owner in the last hour.
#[derive(Debug)]
pub(crate) struct OwnerTokens {
    epoch: Instant,
    counts: Lock<TokenCounts>,
    owner: u128,
    owners: Weak<Owners>,
    store: StoreCell,
}

#[derive(Debug, Default)]
struct TokenCounts {
    by_minute: BTreeMap<u64, NumberedCount<Spending>>,
    /// The number of the last counts that other replicas were told.
    stated: u64,
    /// What the other replicas have spent, and the minute in which that was learned.
    elsewhere: Option<(Spending, u64)>,
}

#[derive(Debug, Default)]
struct RefusalCount {
    /// When refusals by this cap were last reported; `None` if never.
    reported: Option<Duration>,
    /// The number of refusals by this cap since the last report of it.
    refused: u64,
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

impl OwnerCaps {
    /// Makes caps of which none is set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            max_open_runs: None,
            turns_per_hour: None,
            tokens_per_hour: TokenCaps::new(),
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
        assert!(turns > 0, "an owner must have at least one turn");
        self.turns_per_hour = Some(turns);
        self
    }

    /// Sets caps on the tokens of one owner in any hour, and on their cost, counted by the minute.
    /// A token counts for 60 to 61 minutes.
    ///
    /// The [`token_cap`](crate::layers::token_cap#what-is-counted) module says how tokens are
    /// counted and estimated.
    #[must_use]
    pub const fn tokens_per_hour(mut self, caps: TokenCaps) -> Self {
        self.tokens_per_hour = caps;
        self
    }

    /// The caps on tokens, if one is set.
    pub(crate) fn tokens(&self) -> Option<TokenCaps> {
        Some(self.tokens_per_hour).filter(TokenCaps::is_set)
    }
}

impl RunRegistry {
    /// Returns the counts of each owner's runs, turns and tokens. The registry counts from the
    /// first call of this method on.
    pub(crate) fn count_owners(&self) -> &Arc<Owners> {
        let new = || Arc::new(Owners::new(self.state.parts.cell()));
        self.state.owners.get_or_init(new)
    }

    /// Whether a layer has set caps on owners in this registry.
    pub(crate) fn has_caps(&self) -> bool {
        self.state.owners.get().is_some()
    }
}

impl Owners {
    pub(super) fn new(store: StoreCell) -> Self {
        Self {
            epoch: Instant::now(),
            known: Lock::default(),
            store,
            numbers: AtomicU64::new(0),
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
        self.with_telling(owner.0, |account, minute| {
            let answer = asked.as_ref().and_then(|asked| asked.answer());
            if let Err(cap) = account.check(caps, minute, !joins, turn, answer) {
                return (Err(cap), false);
            }
            let mut tells = account.count_turn(minute, caps, turn, &mut asked);
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
        self.with_telling(owner.0, |account, minute| {
            let answer = asked.as_ref().and_then(|asked| asked.answer());
            if let Err(cap) = account.check(caps, minute, false, is_turn, answer) {
                return (Err(cap), false);
            }
            let tells = account.count_turn(minute, caps, is_turn, &mut asked);
            (Ok(()), tells)
        })
    }

    /// Whether a cap refuses a request of this owner now; with `is_new` it opens a run.
    pub(super) fn is_at_cap(
        &self,
        owner: Owner,
        caps: OwnerCaps,
        is_new: bool,
        is_turn: bool,
    ) -> bool {
        self.with(owner.0, |account, minute| {
            let checked = account.check(caps, minute, is_new, is_turn, None);
            checked.is_err()
        })
    }

    /// The count of this owner's tokens, which begins now if it did not before.
    pub(super) fn tokens(self: &Arc<Self>, owner: Owner) -> Arc<OwnerTokens> {
        self.with(owner.0, |account, minute| {
            let elsewhere = account.elsewhere.recent(minute);
            let elsewhere = elsewhere.map(|counts| (counts.spent.into(), minute));
            let new = || {
                Arc::new(OwnerTokens {
                    epoch: self.epoch,
                    counts: Lock::new(TokenCounts {
                        elsewhere,
                        ..TokenCounts::default()
                    }),
                    owner: owner.0,
                    owners: Arc::downgrade(self),
                    store: Arc::clone(&self.store),
                })
            };
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

    fn with<R>(&self, owner: u128, f: impl FnOnce(&mut Account, u64) -> R) -> R {
        let minute = self.minute();
        let mut known = self.known.lock();
        if known.swept != minute {
            known.swept = minute;
            known.by_owner.retain(|_, account| {
                forget(&mut account.minutes, minute);
                account.open > 0 || !account.is_forgotten(minute)
            });
        }
        let account = known.by_owner.entry(owner).or_default();
        forget(&mut account.minutes, minute);
        f(account, minute)
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
    /// Whether the account has no turns, tokens or reports of the last hour.
    fn is_forgotten(&self, minute: u64) -> bool {
        let mut reports = self.refusals.values().filter_map(|count| count.reported);
        // A stream that is under way still holds the count, and adds to it.
        let counts = |tokens: &Arc<OwnerTokens>| {
            Arc::strong_count(tokens) > 1 || !tokens.spent_here().is_nothing()
        };
        self.minutes.is_empty()
            && !self.elsewhere.is_of_use(minute)
            && !self.tokens.as_ref().is_some_and(counts)
            && !reports.any(|at| at.as_secs() / 60 + MINUTES > minute)
    }

    /// Checks the caps on open runs, for a request that opens one, on tokens, and for a turn on
    /// turns. `answer` is what the store said to this request.
    fn check(
        &self,
        caps: OwnerCaps,
        minute: u64,
        is_new: bool,
        is_turn: bool,
        answer: Option<&OwnerElsewhere>,
    ) -> Result<(), LimitHit> {
        let elsewhere = self.elsewhere.recent(minute);
        // What the others gave back after the answer was granted to nobody here.
        let most = |count: fn(&OwnerElsewhere) -> u32| {
            let counts = [elsewhere, answer].map(|it| it.map_or(0, count));
            counts[0].max(counts[1])
        };
        let open_runs = caps.max_open_runs.filter(|_| is_new);
        let is_full = |cap: &u32| self.open.saturating_add(most(|it| it.open_runs)) >= *cap;
        if let Some(cap) = open_runs.filter(is_full) {
            return Err(reached(LimitKind::OpenRuns(cap)));
        }
        if let Some(caps) = caps.tokens() {
            let spent = match &self.tokens {
                Some(tokens) => tokens.spent(),
                None => elsewhere.map_or_else(Spending::default, |it| it.spent.into()),
            };
            if let Some(limit) = caps.reached(&spent, 1, 1.0) {
                return Err(reached(LimitKind::Tokens(limit.per_hour())));
            }
        }
        if let Some(cap) = caps.turns_per_hour.filter(|_| is_turn) {
            let turns = self.minutes.values().map(NumberedCount::get).sum::<u32>();
            if turns.saturating_add(most(|it| it.turns)) >= cap {
                return Err(reached(LimitKind::TurnsPerHour(cap)));
            }
        }
        Ok(())
    }

    /// Counts a turn, if the request is one and turns are capped. Returns whether the store does
    /// not know of it.
    fn count_turn(
        &mut self,
        minute: u64,
        caps: OwnerCaps,
        is_turn: bool,
        asked: &mut Option<&mut OwnerAsk>,
    ) -> bool {
        if !is_turn || caps.turns_per_hour.is_none() {
            return false;
        }
        let stated = self.elsewhere.stated;
        let turns = self.minutes.entry(minute).or_default();
        turns.set(turns.get() + 1, stated);
        let asked = asked.as_mut();
        !asked.is_some_and(|asked| asked.take_turn(self, minute))
    }
}

impl OwnerTokens {
    fn minute(&self) -> u64 {
        self.epoch.elapsed().as_secs() / 60
    }

    /// The tokens in each minute of the last hour.
    fn recent(&self) -> MutexGuard<'_, TokenCounts> {
        let mut counts = self.counts.lock();
        forget(&mut counts.by_minute, self.minute());
        counts
    }

    /// The same, for counts of this number that are about to be told.
    fn state(&self, number: u64) -> MutexGuard<'_, TokenCounts> {
        let mut counts = self.recent();
        counts.stated = number;
        counts
    }

    /// The tokens of the last hour, of all replicas.
    pub(crate) fn spent(&self) -> Spending {
        let counts = self.recent();
        let here = counts.here();
        match counts.elsewhere {
            Some((spent, learned)) if learned + MINUTES > self.minute() => here.plus(spent),
            _ => here,
        }
    }

    fn spent_here(&self) -> Spending {
        self.recent().here()
    }

    /// Records what the other replicas have spent.
    fn learn(&self, elsewhere: Spending, minute: u64) {
        self.counts.lock().elsewhere = Some((elsewhere, minute));
    }
}

impl TokenCounts {
    fn here(&self) -> Spending {
        let minutes = self.by_minute.values().map(NumberedCount::get);
        minutes.fold(Spending::default(), Spending::plus)
    }
}

impl TokenAccount for OwnerTokens {
    /// Adds an increase to the present minute; takes a decrease from the newest minutes. The answer
    /// may have begun in an earlier minute.
    fn replace(&self, before: Spending, now: Spending) {
        let minute = self.minute();
        let mut counts = self.recent();
        let stated = counts.stated;
        let mut less = before.minus(now);
        for sum in counts.by_minute.values_mut().rev() {
            if less == Spending::default() {
                break;
            }
            let count = sum.get();
            sum.set(count.minus(less), stated);
            less = less.minus(count);
        }
        let sum = counts.by_minute.entry(minute).or_default();
        sum.set(sum.get().plus(now.minus(before)), stated);
        drop(counts);
        if self.store.get().is_some() {
            if let Some(owners) = self.owners.upgrade() {
                owners.tell(self.owner);
            }
        }
    }
}

/// Removes the minutes that are more than an hour before `minute`.
fn forget<T>(minutes: &mut BTreeMap<u64, T>, minute: u64) {
    let is_old = |first: &OccupiedEntry<'_, u64, T>| first.key() + MINUTES <= minute;
    while let Some(first) = minutes.first_entry().filter(is_old) {
        first.remove();
    }
}

const fn reached(measure: LimitKind) -> LimitHit {
    LimitHit {
        limit: None,
        measure,
    }
}

/// The minimum time between two reports about one cap of one owner.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A report for the trajectory: requests that an owner's cap refused.
#[derive(Debug, serde::Serialize)]
pub(crate) struct OwnerRefused {
    cap: &'static str,
    #[serde(serialize_with = "whole")]
    limit: f64,
    /// The number of requests that the cap refused since the last report.
    refused: u64,
    owner: Owner,
    run: Option<RunId>,
    session: Option<Arc<str>>,
}

/// Serializes a number without decimal places as an integer.
#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn whole<S: serde::Serializer>(limit: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if limit.fract() == 0.0 {
        serializer.serialize_u64(*limit as u64)
    } else {
        serializer.serialize_f64(*limit)
    }
}

impl RunRegistry {
    /// Reports a request that an owner's cap refused, at most once a minute per owner and cap.
    /// `run` is the request's call, unless its run was withdrawn. The caller must hold no lock: the
    /// method calls the program's subscriber and writer.
    pub(crate) fn report_refused(&self, owner: Owner, cap: LimitHit, run: Option<&Run>) {
        let (name, limit) = match cap.measure {
            LimitKind::OpenRuns(limit) => ("max_open_runs", limit.into()),
            LimitKind::TurnsPerHour(limit) => ("turns_per_hour", limit.into()),
            LimitKind::Tokens(limit) => limit.named(),
            _ => return,
        };
        let Some(refused) = self.count_owners().refused(owner, name) else {
            return;
        };
        let record = OwnerRefused {
            cap: name,
            limit,
            refused,
            owner,
            run: run.map(Run::id),
            session: run.and_then(Run::session),
        };
        tracing::warn!(
            target: "tower_agent",
            reason = cap.owner_reason().as_str(),
            cap = name,
            %limit,
            refused,
            %owner,
            run = record.run.as_ref().map(tracing::field::display),
            "an owner is at its cap"
        );
        if let Some(trajectory) = self.state.trajectory.get() {
            trajectory.refuse_owner(&cap.owner_reason(), &record);
        }
    }
}
