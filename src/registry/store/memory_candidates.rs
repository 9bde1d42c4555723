//! The cooldowns and the sticky candidates of an in-memory store.

use std::{collections::HashMap, sync::Arc};

use tokio::time::Instant;

use super::{Heard, RunQuestion, SharedCooldown, StickyCandidate, StoredCooldowns};
use crate::registry::{Owner, RunRegistry};

/// The maximum number of windows that are kept.
const MAX_WINDOWS: usize = 1024;

/// The maximum number of sessions with a candidate, and of candidates of a session.
const MAX_SESSIONS: usize = 8192;
const MAX_CANDIDATES: usize = 16;

#[derive(Debug, Default)]
pub(super) struct KeptCandidates {
    windows: HashMap<u64, KeptWindow>,
    sessions: HashMap<(Owner, Arc<str>), KeptSession>,
}

#[derive(Debug)]
struct KeptWindow {
    cooldown: SharedCooldown,
    /// Whether the window ended before its time: it stays known until then, so that it is not begun
    /// again.
    is_over: bool,
}

#[derive(Debug)]
struct KeptSession {
    told: Instant,
    candidates: HashMap<u64, u64>,
}

impl KeptCandidates {
    /// Returns what the replicas hear; `None` if nothing changes.
    pub(super) fn begin(&mut self, cooldown: SharedCooldown) -> Option<Heard> {
        let now = Instant::now();
        self.windows.retain(|_, kept| kept.cooldown.until > now);
        if cooldown.until <= now {
            return None;
        }
        if let Some(kept) = self.windows.get(&cooldown.key) {
            let is_same = kept.cooldown.window == cooldown.window;
            if is_same || !kept.is_over && !cooldown.replaces(&kept.cooldown) {
                return None;
            }
        } else if self.windows.len() >= MAX_WINDOWS {
            let worth = |kept: &KeptWindow| (!kept.cooldown.is_callers, kept.cooldown.until);
            let first = self.windows.iter().min_by_key(|(_, kept)| worth(kept));
            if let Some(key) = first.map(|(key, _)| *key) {
                self.windows.remove(&key);
            }
        }
        let kept = KeptWindow {
            cooldown: cooldown.clone(),
            is_over: false,
        };
        self.windows.insert(cooldown.key, kept);
        Some(Heard::CooldownBegan(cooldown))
    }

    pub(super) fn end(&mut self, key: u64, window: u64) -> Option<Heard> {
        if let Some(kept) = self.windows.get_mut(&key) {
            if kept.cooldown.window != window {
                return None;
            }
            kept.is_over = true;
        }
        Some(Heard::CooldownEnded { key, window })
    }

    /// Ends the windows of a candidate that began no later than `at`.
    pub(super) fn clear(&mut self, candidate: &str, keys: &[u64], at: Instant) -> Vec<Heard> {
        let mut ended = Vec::new();
        for (&key, kept) in &mut self.windows {
            let is_named = *kept.cooldown.candidate == *candidate || keys.contains(&key);
            if is_named && kept.cooldown.began <= at && !kept.is_over {
                kept.is_over = true;
                let window = kept.cooldown.window;
                ended.push(Heard::CooldownEnded { key, window });
            }
        }
        ended
    }

    pub(super) fn list(&self) -> StoredCooldowns {
        let now = Instant::now();
        let mut stored = StoredCooldowns::default();
        for (key, kept) in &self.windows {
            match kept.is_over {
                true => stored.ended.push((*key, kept.cooldown.window)),
                false if kept.cooldown.until > now => stored.running.push(kept.cooldown.clone()),
                false => {}
            }
        }
        stored
    }

    pub(super) fn serve(
        &mut self,
        owner: Owner,
        session: Arc<str>,
        served: StickyCandidate,
    ) -> Heard {
        let now = Instant::now();
        if self.sessions.len() >= MAX_SESSIONS {
            let since = now.checked_sub(RunRegistry::IDLE);
            self.sessions.retain(|_, it| Some(it.told) > since);
        }
        if self.sessions.len() >= MAX_SESSIONS {
            self.sessions.clear();
        }
        let kept = self.sessions.entry((owner, session));
        let kept = kept.or_insert_with(|| KeptSession {
            told: now,
            candidates: HashMap::new(),
        });
        kept.told = now;
        let candidates = &mut kept.candidates;
        if candidates.len() >= MAX_CANDIDATES && !candidates.contains_key(&served.session) {
            candidates.clear();
        }
        candidates.insert(served.session, served.candidate);
        Heard::SessionServed(served)
    }

    /// The candidates of the question's session, if it asks for them.
    pub(super) fn of_session(&self, question: &RunQuestion) -> Vec<StickyCandidate> {
        let session = question.session.as_ref().filter(|_| question.is_sticky);
        let kept = session.and_then(|session| {
            let key = (question.run.owner, Arc::clone(session));
            self.sessions.get(&key)
        });
        let candidates = kept.into_iter().flat_map(|kept| &kept.candidates);
        let candidates = candidates.map(|(at, candidate)| StickyCandidate::new(*at, *candidate));
        candidates.collect()
    }
}
