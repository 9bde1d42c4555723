use std::{collections::HashMap, time::Duration};

use crate::llm::failure::{Cooldown, FailureClass};

/// How many windows are remembered.
const KEYS: usize = 256;

/// What is left alone, and until when. It knows no clock: `now` is the time
/// since it was made.
#[derive(Debug, Default)]
pub(crate) struct CooldownWindows {
    entries: HashMap<CooldownKey, CooldownEntry>,
}

#[derive(Debug)]
struct CooldownEntry {
    class: FailureClass,
    /// How many windows there were in a row before this one.
    strikes: u32,
    /// When the window began.
    since: Duration,
    until: Duration,
    /// When the upstream was last known to be asked.
    asked: Duration,
}

/// How one that is left alone is probed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CooldownProbe {
    /// The least time between two.
    pub(crate) every: Duration,
    /// How much of the window may be left.
    pub(crate) margin: Duration,
}

/// Whether a candidate may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CooldownState {
    Open,
    /// It is left alone, but the window is about to end: one call may see
    /// whether it serves again.
    Probe,
    /// It is left alone, for so long yet.
    Cooling {
        left: Duration,
        class: FailureClass,
    },
}

impl CooldownEntry {
    /// When it is of no use any more: as long after its window as that was.
    const fn forgotten(&self) -> Duration {
        let window = self.until.saturating_sub(self.since);
        self.until.saturating_add(window)
    }
}

impl CooldownWindows {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Begins a window, unless one is running: that stays as it is.
    pub(crate) fn fail(
        &mut self,
        keys: &Keys,
        class: FailureClass,
        asked: Option<Duration>,
        ladder: &CooldownBackoff,
        now: Duration,
    ) {
        // A row that nobody has continued for as long as its window is over.
        self.entries.retain(|_, entry| entry.forgotten() > now);
        let key = keys.of(class);
        let strikes = match self.entries.get_mut(&key) {
            Some(entry) if entry.until > now => {
                entry.asked = now;
                return;
            }
            // In a row are those of one kind alone.
            Some(entry) if entry.class.cool() == class.cool() => entry.strikes + 1,
            _ => 0,
        };
        let Some(window) = ladder.window(class.cool(), strikes, asked) else {
            return;
        };
        if self.entries.len() >= KEYS && !self.entries.contains_key(&key) {
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

    pub(crate) fn state(
        &self,
        keys: &Keys,
        probing: CooldownProbe,
        now: Duration,
    ) -> CooldownState {
        let mut state = CooldownState::Open;
        for entry in self.running(keys, now) {
            let (left, class) = (entry.until - now, entry.class);
            let probes = left <= probing.margin && now.saturating_sub(entry.asked) >= probing.every;
            state = match state {
                CooldownState::Cooling { left: longer, .. } if longer >= left => state,
                CooldownState::Open | CooldownState::Probe if probes => CooldownState::Probe,
                _ => CooldownState::Cooling { left, class },
            };
        }
        state
    }

    /// A probe is about to be made.
    pub(crate) fn probe(&mut self, keys: &Keys, now: Duration) {
        for key in keys.all() {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.asked = now;
            }
        }
    }

    /// A try that began at `began` serves: windows that began before it end.
    /// How often it failed in a row is kept until it has served to the end.
    pub(crate) fn lift(&mut self, keys: &Keys, began: Duration, now: Duration) {
        for key in keys.all() {
            if let Some(entry) = self.entries.get_mut(&key) {
                if entry.since <= began {
                    entry.until = entry.until.min(now);
                }
            }
        }
    }

    /// A try that began at `began` has served to its end.
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

    /// Of callers' accounts there may be any number; they must not push out what
    /// is known of the program's own.
    fn forget_one(&mut self) {
        let entries = self.entries.iter();
        let worth = |(key, entry): &(&CooldownKey, &CooldownEntry)| (!key.is_callers, entry.until);
        if let Some(key) = entries.min_by_key(worth).map(|(key, _)| *key) {
            self.entries.remove(&key);
        }
    }
}

/// What can be left alone, as a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CooldownKey {
    pub(crate) digest: u64,
    /// It is about a caller's account, of which there may be any number.
    pub(crate) is_callers: bool,
}

/// All that a try of one candidate depends on.
///
/// What befalls one caller's account must not take the candidate from the
/// others, and what befalls the account must not be tried again with another
/// model of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys {
    /// The model at its upstream, whoever asks.
    pub(crate) model: CooldownKey,
    /// The model, on one account.
    pub(crate) model_of_account: CooldownKey,
    /// The account.
    pub(crate) account: CooldownKey,
    /// The upstream's host.
    pub(crate) provider: CooldownKey,
}

impl Keys {
    /// What a failure of this class is about.
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

/// How long what failed is left alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CooldownBackoff {
    /// For what mostly passes by itself: after the first failure in a row, the
    /// second, and every later one.
    pub(crate) short: [Duration; 3],
    /// For what a person has to mend, at first; it doubles.
    pub(crate) long: Duration,
    /// For an exhausted quota, at first; it doubles.
    pub(crate) quota: Duration,
    /// What doubles grows no further than this.
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

    /// The window after so many failures in a row, and at least what the
    /// upstream `asked` for; none for a failure that says nothing about the next
    /// request.
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
