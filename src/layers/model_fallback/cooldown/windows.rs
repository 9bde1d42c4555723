use std::{collections::HashMap, time::Duration};

use crate::llm::failure::{Cooldown, FailureClass};

/// The most cooldown windows that are remembered.
const MAX_WINDOWS: usize = 256;

/// The cooldown windows by key; `now` is the time since their creation, as no clock is read.
#[derive(Debug, Default)]
pub(crate) struct CooldownWindows {
    entries: HashMap<CooldownKey, CooldownEntry>,
}

#[derive(Debug)]
struct CooldownEntry {
    class: FailureClass,
    /// The number of windows in a row before this one.
    strikes: u32,
    /// The time at which the window began.
    since: Duration,
    until: Duration,
    /// The time of the last recorded failure or of the last claimed probe, whichever is later.
    asked: Duration,
}

/// The times at which a candidate in a cooldown is probed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CooldownProbe {
    /// The least time from a failure or a probe to the next probe.
    pub(crate) every: Duration,
    /// Probes are made only while at most this much of the window is left.
    pub(crate) margin: Duration,
}

/// Whether a candidate may be tried, as far as its cooldown decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CooldownState {
    Open,
    /// A window is about to end: one call may probe whether the candidate serves again.
    Probe,
    /// The candidate is in a cooldown, for the time `left`.
    Cooling {
        left: Duration,
        class: FailureClass,
    },
}

impl CooldownEntry {
    /// The time at which the row is forgotten: one length of the window after its end.
    const fn forgotten(&self) -> Duration {
        let window = self.until.saturating_sub(self.since);
        self.until.saturating_add(window)
    }
}

impl CooldownWindows {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Begins a window, unless one is running, which is not extended.
    pub(crate) fn fail(
        &mut self,
        keys: &Keys,
        class: FailureClass,
        asked: Option<Duration>,
        backoff: &CooldownBackoff,
        now: Duration,
    ) {
        // Rows that no failure has continued in time are over.
        self.entries.retain(|_, entry| entry.forgotten() > now);
        let key = keys.of(class);
        let strikes = match self.entries.get_mut(&key) {
            Some(entry) if entry.until > now => {
                entry.asked = now;
                return;
            }
            // Only failures of one kind make a row.
            Some(entry) if entry.class.cool() == class.cool() => entry.strikes + 1,
            _ => 0,
        };
        let Some(window) = backoff.window(class.cool(), strikes, asked) else {
            return;
        };
        if self.entries.len() >= MAX_WINDOWS && !self.entries.contains_key(&key) {
            self.forget_one();
        }
        let entry = CooldownEntry {
            class,
            strikes,
            since: now,
            until: now.saturating_add(window),
            asked: now,
        };
        self.entries.insert(key, entry);
    }

    pub(crate) fn state(&self, keys: &Keys, probe: CooldownProbe, now: Duration) -> CooldownState {
        let mut state = CooldownState::Open;
        for entry in self.running(keys, now) {
            let (left, class) = (entry.until - now, entry.class);
            let probes = left <= probe.margin && now.saturating_sub(entry.asked) >= probe.every;
            state = match state {
                CooldownState::Cooling { left: longer, .. } if longer >= left => state,
                CooldownState::Open | CooldownState::Probe if probes => CooldownState::Probe,
                _ => CooldownState::Cooling { left, class },
            };
        }
        state
    }

    /// Records in the windows of `keys` that a probe is about to be made.
    pub(crate) fn probe(&mut self, keys: &Keys, now: Duration) {
        for key in keys.all() {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.asked = now;
            }
        }
    }

    /// Ends the windows that began before `began`, the start of an attempt that serves.
    ///
    /// The rows of these windows stay until the attempt has served to its end.
    pub(crate) fn lift(&mut self, keys: &Keys, began: Duration, now: Duration) {
        for key in keys.all() {
            if let Some(entry) = self.entries.get_mut(&key) {
                if entry.since <= began {
                    entry.until = entry.until.min(now);
                }
            }
        }
    }

    /// Forgets the rows that began before `began`, the start of an attempt that served.
    pub(crate) fn succeed(&mut self, keys: &Keys, began: Duration) {
        for key in keys.all() {
            if self.entries.get(&key).is_some_and(|it| it.since <= began) {
                self.entries.remove(&key);
            }
        }
    }

    fn running(&self, keys: &Keys, now: Duration) -> impl Iterator<Item = &CooldownEntry> {
        let entries = keys.all().into_iter();
        let entries = entries.filter_map(|key| self.entries.get(&key));
        entries.filter(move |entry| entry.until > now)
    }

    /// Forgets the window that ends first, those of callers' accounts before others.
    ///
    /// The number of callers' accounts is up to the callers, and must not displace the program's
    /// own windows.
    fn forget_one(&mut self) {
        let entries = self.entries.iter();
        let worth = |(key, entry): &(&CooldownKey, &CooldownEntry)| (!key.is_callers, entry.until);
        if let Some(key) = entries.min_by_key(worth).map(|(key, _)| *key) {
            self.entries.remove(&key);
        }
    }
}

/// The digest of a model, an account or a host that can have a cooldown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CooldownKey {
    pub(crate) digest: u64,
    /// Whether the key belongs to a caller's account.
    pub(crate) is_callers: bool,
}

/// The keys of all that an attempt at one candidate depends on.
///
/// The account is a key of its own: the failure of one caller's account must not keep the
/// candidate from other callers, and holds for every model on that account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
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
    /// The key that a failure of `class` belongs to.
    pub(super) const fn of(&self, class: FailureClass) -> CooldownKey {
        match class {
            FailureClass::RateLimit | FailureClass::ModelGone => self.model_of_account,
            FailureClass::Quota | FailureClass::Auth => self.account,
            FailureClass::Certificate | FailureClass::Region => self.provider,
            _ => self.model,
        }
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

/// The lengths of the cooldown windows, by class of failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CooldownBackoff {
    /// The windows after a failure that mostly passes by itself: after the first in a row,
    /// the second, every later one.
    pub(crate) short: [Duration; 3],
    /// The window after the first failure in a row that a person has to fix; it doubles.
    pub(crate) long: Duration,
    /// The window after the first exhausted quota in a row; it doubles.
    pub(crate) quota: Duration,
    /// The limit on windows that double, and on those for which an upstream asks.
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

    /// The length of the window after `strikes` earlier ones in a row.
    ///
    /// The window is at least the time that the upstream `asked` for; `None` is for a
    /// failure that says nothing about the next request.
    pub(crate) fn window(
        &self,
        cool: Cooldown,
        strikes: u32,
        asked: Option<Duration>,
    ) -> Option<Duration> {
        let doubled = |first: Duration| {
            let times = 1_u32.checked_shl(strikes).unwrap_or(u32::MAX);
            first.saturating_mul(times).min(self.most)
        };
        let window = match cool {
            Cooldown::No => return None,
            Cooldown::Short => {
                let [.., last] = self.short;
                let step = usize::try_from(strikes).unwrap_or(usize::MAX);
                self.short.get(step).copied().unwrap_or(last)
            }
            Cooldown::Long => doubled(self.long),
            Cooldown::Quota => doubled(self.quota),
        };
        Some(window.max(asked.unwrap_or_default().min(self.most)))
    }
}
