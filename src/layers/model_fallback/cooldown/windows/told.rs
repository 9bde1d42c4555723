//! The windows that replicas tell each other.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{CooldownEntry, CooldownKey, CooldownWindows, MAX_WINDOWS};
use crate::registry::store::{SharedCooldown, StoredCooldowns};

impl CooldownWindows {
    /// The running windows that were not told, each of which then counts as told. Times count from
    /// `opened`.
    pub(crate) fn untold(&mut self, opened: Instant, now: Duration) -> Vec<SharedCooldown> {
        let entries = self.entries.iter_mut();
        let untold = entries.filter(|(_, entry)| !entry.is_told && entry.until > now);
        untold
            .map(|(key, entry)| {
                entry.is_told = true;
                entry.share(*key, opened)
            })
            .collect()
    }

    /// Takes over a window that began at some replica, this one included.
    ///
    /// It never shortens one that runs here. The last number that was told is the window's, so that
    /// all replicas know it by one.
    pub(crate) fn hear(&mut self, told: &SharedCooldown, opened: Instant, now: Duration) {
        let key = CooldownKey {
            digest: told.key,
            is_callers: told.is_callers,
        };
        let until = told.until.saturating_duration_since(opened);
        let here = self.entries.get_mut(&key);
        if until <= now || here.as_ref().is_some_and(|it| it.window == told.window) {
            return;
        }
        if let Some(here) = here.filter(|it| it.until > now) {
            let is_hidden = here.share(key, opened).outranks(told.class);
            if told.outranks(here.class) || until > here.until && !is_hidden {
                here.class = told.class;
                here.strikes = told.row;
                here.candidate = Arc::clone(&told.candidate);
            }
            here.until = here.until.max(until);
            here.window = told.window;
            here.known = now;
            here.is_told = true;
            return;
        }
        self.entries.retain(|_, entry| entry.forgotten() > now);
        if self.len() >= MAX_WINDOWS && !self.entries.contains_key(&key) {
            self.forget_one();
        }
        let since = told.began.saturating_duration_since(opened).min(now);
        let entry = CooldownEntry {
            class: told.class,
            strikes: told.row,
            since,
            known: now,
            until,
            last_contact: since,
            contact_before_probe: None,
            candidate: Arc::clone(&told.candidate),
            account: CooldownKey {
                digest: told.account,
                ..key
            },
            model: told.model,
            host: told.host,
            window: told.window,
            is_told: true,
        };
        self.entries.insert(key, entry);
    }

    /// Removes this window, which has ended at some replica.
    pub(crate) fn hear_end(&mut self, digest: u64, window: u64) {
        self.entries
            .retain(|key, entry| key.digest != digest || entry.window != window);
    }

    /// Has the windows that run here told again which the store has lost.
    pub(crate) fn tell_again(&mut self, stored: &StoredCooldowns) {
        for (key, entry) in &mut self.entries {
            let is_this = |it: &SharedCooldown| (it.key, it.window) == (key.digest, entry.window);
            entry.is_told = stored.running.iter().any(is_this);
        }
    }
}

impl CooldownEntry {
    fn share(&self, key: CooldownKey, opened: Instant) -> SharedCooldown {
        let times = [self.since, self.until].map(|at| opened + at);
        let candidate = Arc::clone(&self.candidate);
        let shared = SharedCooldown::new(key.digest, self.window, candidate, self.class, times);
        SharedCooldown {
            row: self.strikes,
            is_callers: key.is_callers,
            model: self.model,
            account: self.account.digest,
            host: self.host,
            ..shared
        }
    }
}
