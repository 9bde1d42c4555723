mod told;

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::llm::{
    Rest,
    failure::{ActiveCooldown, Concern, Cooldown, FailureClass},
};

/// The maximum number of stored cooldown windows, running or ended, and suspicions.
const MAX_WINDOWS: usize = 256;

/// The longest time from one witness of a suspicion to the second.
const MEMORY: Duration = Duration::from_secs(60);

/// The cooldown windows by key.
///
/// The type reads no clock: all times count from `SharedCooldowns::opened`.
#[derive(Debug, Default)]
pub(crate) struct CooldownWindows {
    entries: HashMap<CooldownKey, CooldownEntry>,
    /// The windows that a text alone asked for, each with its first witness.
    suspicions: HashMap<(CooldownKey, FailureClass), (Witness, Duration, Arc<str>)>,
}

/// A failed call as the witness of what a text of its upstream says about others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Witness {
    /// The digest of the call's owner.
    pub(crate) owner: u64,
    /// The digest of the call's prompt.
    pub(crate) prompt: u64,
}

#[derive(Debug)]
struct CooldownEntry {
    class: FailureClass,
    /// The number of earlier windows in the same row, without this one.
    strikes: u32,
    /// The time at which the window began.
    since: Duration,
    /// The time from which this replica knows the window: `since`, or later if another one began it.
    known: Duration,
    until: Duration,
    /// The time of the last recorded failure, or of the last claimed probe that was not given back,
    /// whichever is later.
    last_contact: Duration,
    /// The value of `last_contact` before the last claimed probe; `None` without a probe, and once
    /// a failure came or the probe was given back.
    contact_before_probe: Option<Duration>,
    /// The label of the candidate that failed.
    candidate: Arc<str>,
    /// The account of the candidate that failed.
    account: CooldownKey,
    /// The digests of its model and its host.
    model: u64,
    host: u64,
    /// The number by which replicas know the window.
    window: u64,
    /// Whether the other replicas were told of it.
    is_told: bool,
}

/// The keys and numbers of windows that were ended while they ran.
pub(crate) type Lifted = [Option<(u64, u64)>; 4];

/// The settings for probes of a candidate that is in a cooldown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CooldownProbe {
    /// The minimum time from a failure or a probe to the next probe.
    pub(crate) every: Duration,
    /// The part of a window before its end in which probes are allowed; zero allows none.
    pub(crate) margin: Duration,
}

/// Whether a call may go to a candidate, as far as cooldowns decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CooldownState {
    Open,
    /// A window is about to end, and a probe is due: one call may go to the candidate.
    Probe,
    /// The candidate is in a cooldown, and gets no probe now; one of its windows ends after `left`.
    Cooling {
        left: Duration,
        class: FailureClass,
    },
}

impl CooldownEntry {
    /// The time from which this window no longer continues a row: its own length after its end.
    const fn forgotten(&self) -> Duration {
        let window = self.until.saturating_sub(self.since);
        self.until.saturating_add(window)
    }
}

impl CooldownWindows {
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.suspicions.len()
    }

    /// Records a failure, which may begin a window, or delay the next probe of a running one.
    ///
    /// Returns whether a window begins.
    pub(crate) fn fail(
        &mut self,
        keys: &Keys,
        rest: Rest,
        is_sole: bool,
        backoff: &CooldownBackoff,
        now: Duration,
    ) -> bool {
        // A failure at or after the `forgotten` time of a window begins a new row.
        self.entries.retain(|_, entry| entry.forgotten() > now);
        let Some(key) = keys.of(rest.concern) else {
            return false;
        };
        let mut begins = self.begin(key, keys, rest, is_sole, backoff, now);
        match rest.class {
            FailureClass::RateLimit if self.limits_another_model(keys, now) => {
                begins |= self.begin(keys.account, keys, rest, is_sole, backoff, now);
            }
            // A probe that found no model tells nothing of the account and the host.
            FailureClass::ModelGone => self.give_probe_back(keys),
            _ => {}
        }
        begins
    }

    /// Records a failure whose text alone asks for this rest, and says whether the rest is
    /// confirmed. A confirmed suspicion is forgotten.
    ///
    /// A second witness within a minute confirms it: a call of another owner, or one with another
    /// prompt if `has_one_owner`. A success in between forgets the first.
    pub(crate) fn suspect(
        &mut self,
        keys: &Keys,
        rest: Rest,
        witness: Witness,
        has_one_owner: bool,
        now: Duration,
    ) -> bool {
        self.suspicions
            .retain(|_, (_, since, _)| now.saturating_sub(*since) <= MEMORY);
        let Some(key) = keys.of(rest.concern) else {
            return false;
        };
        let key = (key, rest.class);
        let Some((first, ..)) = self.suspicions.get(&key) else {
            if self.len() >= MAX_WINDOWS {
                self.forget_one();
            }
            let candidate = Arc::clone(&keys.candidate);
            self.suspicions.insert(key, (witness, now, candidate));
            return false;
        };
        let is_confirmed =
            first.owner != witness.owner || has_one_owner && first.prompt != witness.prompt;
        if is_confirmed {
            self.suspicions.remove(&key);
        }
        is_confirmed
    }

    /// Forgets the suspicions of these keys that are no younger than `began`.
    fn trust(&mut self, keys: &Keys, began: Duration) {
        let keys = keys.all();
        self.suspicions
            .retain(|(key, _), (_, since, _)| *since > began || !keys.contains(key));
    }

    /// Whether a rate limit is running for another model of the same account.
    fn limits_another_model(&self, keys: &Keys, now: Duration) -> bool {
        self.entries.iter().any(|(key, entry)| {
            entry.class == FailureClass::RateLimit
                && entry.until > now
                && entry.account == keys.account
                && ![keys.model_of_account, keys.account].contains(key)
        })
    }

    fn give_probe_back(&mut self, keys: &Keys) {
        for key in [keys.account, keys.provider] {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.last_contact = entry
                    .contact_before_probe
                    .take()
                    .unwrap_or(entry.last_contact);
            }
        }
    }

    /// Begins the window of `key`, and returns true; false if a running window stays, or if a
    /// failure of this class begins none.
    fn begin(
        &mut self,
        key: CooldownKey,
        keys: &Keys,
        rest: Rest,
        is_sole: bool,
        backoff: &CooldownBackoff,
        now: Duration,
    ) -> bool {
        let class = rest.class;
        let strikes = match self.entries.get_mut(&key) {
            // A rate limit of the account must not hide a refused key or an exhausted quota.
            Some(entry)
                if entry.until > now
                    && (entry.class != FailureClass::RateLimit
                        || class == entry.class
                        || key != keys.account) =>
            {
                entry.last_contact = now;
                entry.contact_before_probe = None;
                return false;
            }
            // Only failures of the same cooldown kind continue a row.
            Some(entry) if entry.class.cooldown() == class.cooldown() => entry.strikes + 1,
            _ => 0,
        };
        let is_sole = is_sole && passes_soon(class);
        let window = backoff.window(class.cooldown(), strikes, rest.stated, is_sole);
        let Some(window) = window.filter(|window| !window.is_zero()) else {
            return false;
        };
        if self.len() >= MAX_WINDOWS && !self.entries.contains_key(&key) {
            self.forget_one();
        }
        let entry = CooldownEntry {
            class,
            strikes,
            since: now,
            known: now,
            until: now.saturating_add(window),
            last_contact: now,
            contact_before_probe: None,
            candidate: Arc::clone(&keys.candidate),
            account: keys.account,
            model: keys.model.digest,
            host: keys.provider.digest,
            window: fastrand::u64(..),
            is_told: false,
        };
        self.entries.insert(key, entry);
        true
    }

    pub(crate) fn state(&self, keys: &Keys, probe: CooldownProbe, now: Duration) -> CooldownState {
        let is_probed = |entry: &CooldownEntry| {
            entry.until - now <= probe.margin
                && now.saturating_sub(entry.last_contact) >= probe.every
        };
        // The candidate serves again once its last window ends.
        let last = self.running(keys, now).max_by_key(|entry| entry.until);
        match last {
            None => CooldownState::Open,
            Some(_) if self.running(keys, now).all(is_probed) => CooldownState::Probe,
            Some(last) => CooldownState::Cooling {
                left: last.until - now,
                class: last.class,
            },
        }
    }

    /// Records a claimed probe in the windows of `keys`, which delays the next one by `every`.
    pub(crate) fn probe(&mut self, keys: &Keys, now: Duration) {
        for key in keys.all() {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.contact_before_probe = Some(entry.last_contact);
                entry.last_contact = now;
            }
        }
    }

    /// Ends the windows that began no later than `began`, the start of an attempt that serves.
    ///
    /// These windows stay stored, so a later failure may still continue their rows.
    pub(crate) fn lift(&mut self, keys: &Keys, began: Duration, now: Duration) -> Lifted {
        self.trust(keys, began);
        keys.all().map(|key| {
            let entry = self.entries.get_mut(&key);
            let entry = entry.filter(|it| it.known <= began && it.until > now)?;
            entry.until = now;
            Some((key.digest, entry.window))
        })
    }

    /// Removes the windows that began no later than `began`, and so ends their rows.
    pub(crate) fn succeed(&mut self, keys: &Keys, began: Duration) {
        self.trust(keys, began);
        for key in keys.all() {
            if self.entries.get(&key).is_some_and(|it| it.known <= began) {
                self.entries.remove(&key);
            }
        }
    }

    /// The running windows, the one that ends first at the front.
    pub(crate) fn list(&self, now: Duration) -> Vec<ActiveCooldown> {
        let running = self.entries.values().filter(|entry| entry.until > now);
        let cooling = running.map(|entry| {
            let left = entry.until - now;
            ActiveCooldown::new(entry.candidate.to_string(), left, entry.class)
        });
        let mut list: Vec<_> = cooling.collect();
        list.sort_by(|a, b| (a.left, &a.candidate).cmp(&(b.left, &b.candidate)));
        list
    }

    /// The running window of this class that the candidate of these keys began and that ends last.
    pub(crate) fn longest(
        &self,
        keys: &Keys,
        class: FailureClass,
        now: Duration,
    ) -> Option<ActiveCooldown> {
        let mut running = self.list(now).into_iter().rev();
        running.find(|it| it.class == class && *it.candidate == *keys.candidate)
    }

    /// Removes the windows that `candidate` began or that have one of these digests.
    ///
    /// Returns how many of them were running.
    pub(crate) fn clear(&mut self, candidate: &str, digests: &[u64], now: Duration) -> usize {
        self.suspicions.retain(|(key, _), (_, _, suspected)| {
            **suspected != *candidate && !digests.contains(&key.digest)
        });
        let mut running = 0;
        self.entries.retain(|key, entry| {
            let is_cleared = *entry.candidate == *candidate || digests.contains(&key.digest);
            running += usize::from(is_cleared && entry.until > now);
            !is_cleared
        });
        running
    }

    fn running(&self, keys: &Keys, now: Duration) -> impl Iterator<Item = &CooldownEntry> {
        let entries = keys.all().into_iter();
        let entries = entries.filter_map(|key| self.entries.get(&key));
        entries.filter(move |entry| entry.until > now)
    }

    /// Removes the oldest suspicion, else the window that ends first; windows of callers' accounts
    /// go before all others.
    ///
    /// Callers decide how many accounts they use, and must not displace the program's own windows.
    fn forget_one(&mut self) {
        let oldest = self
            .suspicions
            .iter()
            .min_by_key(|(_, (_, since, _))| *since);
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.suspicions.remove(&key);
            return;
        }
        let entries = self.entries.iter();
        let worth = |(key, entry): &(&CooldownKey, &CooldownEntry)| (!key.is_callers, entry.until);
        if let Some(key) = entries.min_by_key(worth).map(|(key, _)| *key) {
            self.entries.remove(&key);
        }
    }
}

/// The key of a cooldown window: the digest of a model, of a model on one account, of an account or
/// of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CooldownKey {
    pub(crate) digest: u64,
    /// Whether the digest depends on the caller's headers or query.
    pub(crate) is_callers: bool,
}

/// The four keys under which windows can hold calls back from one candidate.
///
/// The account has a key of its own: the failure of one caller's account must not keep other
/// callers from the candidate, and holds for every model on that account.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The label of the candidate.
    pub(crate) candidate: Arc<str>,
    /// The key of the model at its upstream, for all accounts.
    pub(crate) model: CooldownKey,
    /// The key of the model on one account.
    pub(crate) model_of_account: CooldownKey,
    /// The key of the account.
    pub(crate) account: CooldownKey,
    /// The key of the upstream's host.
    pub(crate) provider: CooldownKey,
}

impl Keys {
    /// The key under which a failure with this concern begins a window; `None` if it begins none.
    pub(super) const fn of(&self, concern: Concern) -> Option<CooldownKey> {
        Some(match concern {
            Concern::Model => self.model,
            Concern::ModelOfAccount => self.model_of_account,
            Concern::Account => self.account,
            Concern::Host => self.provider,
            _ => return None,
        })
    }

    pub(super) const fn all(&self) -> [CooldownKey; 4] {
        [
            self.model,
            self.model_of_account,
            self.account,
            self.provider,
        ]
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// The lengths of the cooldown windows, by kind of failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CooldownBackoff {
    /// The windows after failures that mostly pass by themselves: after the first in a row, the
    /// second, and every later one.
    pub(crate) short: [Duration; 3],
    /// The first window in a row after failures that a person has to fix; later ones double, up to
    /// `most`.
    pub(crate) long: Duration,
    /// The first window in a row after exhausted quotas; later ones double, up to `most`.
    pub(crate) quota: Duration,
    /// The maximum of windows that double, and of waits that an upstream asks for.
    pub(crate) most: Duration,
}

impl CooldownBackoff {
    pub(crate) const fn new() -> Self {
        Self {
            short: [Duration::from_secs(30), MINUTE, Duration::from_secs(5 * 60)],
            long: Duration::from_secs(10 * 60),
            quota: Duration::from_secs(5 * 60 * 60),
            most: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// The length of a window that follows `strikes` earlier ones in its row.
    ///
    /// A time that the upstream stated is kept exactly, up to `most`, except by windows that a
    /// person has to end: those are at least as long. The windows of a sole candidate begin at one
    /// second. The result is `None` if a failure of this kind causes no cooldown.
    pub(crate) fn window(
        &self,
        cool: Cooldown,
        strikes: u32,
        stated: Option<Duration>,
        is_sole: bool,
    ) -> Option<Duration> {
        let doubled = |first: Duration| {
            let times = 1_u32.checked_shl(strikes).unwrap_or(u32::MAX);
            first.saturating_mul(times).min(self.most)
        };
        let stated = stated.map(|stated| stated.min(self.most));
        Some(match (cool, stated) {
            (Cooldown::Short | Cooldown::Quota, Some(stated)) => stated,
            (Cooldown::Short, None) if is_sole => self.short_of_sole(strikes),
            (Cooldown::Short, None) => self.short[strikes.min(2) as usize],
            (Cooldown::Long, stated) => doubled(self.long).max(stated.unwrap_or_default()),
            (Cooldown::Quota, None) => doubled(self.quota),
            _ => return None,
        })
    }

    /// One second, doubling up to the first of the short windows; then the short windows.
    fn short_of_sole(&self, strikes: u32) -> Duration {
        let first = self.short[0];
        let mut step = Duration::from_secs(1);
        for strike in 0.. {
            if step >= first {
                let at = strikes.saturating_sub(strike).min(2);
                return self.short[at as usize];
            }
            if strike == strikes {
                break;
            }
            step = step.saturating_mul(2);
        }
        step
    }
}

/// Whether a failure of this class may have passed in a second: there is no use in keeping calls
/// from the only candidate for longer.
const fn passes_soon(class: FailureClass) -> bool {
    matches!(
        class,
        FailureClass::RateLimit
            | FailureClass::Server
            | FailureClass::Overloaded
            | FailureClass::NotReady
            | FailureClass::Transport
    )
}
