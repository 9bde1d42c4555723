//! Cooldowns that hold at all replicas.

use std::sync::{Arc, atomic::Ordering};

use super::{
    CandidateCooldowns, CooldownIdentity, SharedCooldowns, digests, mark,
    windows::{CooldownWindows, Lifted},
};
use crate::{
    attempt::{Candidate, Operation},
    registry::{
        RunRegistry,
        store::{HearsOfCandidates, RunNews, RunStore, SharedCooldown, StoredCooldowns},
    },
};

impl CandidateCooldowns {
    /// Shares the windows with the other replicas of the registry. The first store stays.
    pub(crate) fn share(&self, registry: &RunRegistry) {
        let Some(store) = registry.store() else {
            return;
        };
        let shared = &self.handle.shared;
        let store = shared.store.get_or_init(|| Arc::clone(store));
        shared.tell_begun(&mut shared.windows.lock(), &**store);
        registry.add_listener(&(Arc::clone(shared) as Arc<dyn HearsOfCandidates>));
    }
}

impl SharedCooldowns {
    /// Tells of the windows that have begun. With the lock held, so that no end of one is told before.
    #[cold]
    pub(super) fn tell_begun(&self, windows: &mut CooldownWindows, store: &dyn RunStore) {
        let untold = windows.untold(self.opened, self.opened.elapsed());
        untold
            .into_iter()
            .for_each(|cooldown| store.tell(RunNews::CooldownBegan(cooldown)));
    }

    pub(super) fn tell_lifted(&self, lifted: Lifted) {
        let Some(store) = self.store.get() else {
            return;
        };
        for (key, window) in lifted.into_iter().flatten() {
            store.tell(RunNews::CooldownEnded { key, window });
        }
    }

    /// Whether calls from here can meet this window.
    fn concerns(&self, told: &SharedCooldown) -> bool {
        let candidates = self.candidates.lock();
        candidates.iter().any(|candidate| candidate.may_meet(told))
    }

    fn hear(&self, windows: &mut CooldownWindows, told: &SharedCooldown) {
        if self.concerns(told) {
            windows.hear(told, self.opened, self.opened.elapsed());
        }
    }
}

impl HearsOfCandidates for SharedCooldowns {
    fn cooldown_began(&self, told: &SharedCooldown) {
        let mut windows = self.windows.lock();
        self.hear(&mut windows, told);
        self.known.store(windows.len(), Ordering::Release);
    }

    fn cooldown_ended(&self, key: u64, window: u64) {
        let mut windows = self.windows.lock();
        windows.hear_end(key, window);
        self.known.store(windows.len(), Ordering::Release);
    }

    fn cooldowns_read(&self, stored: &StoredCooldowns) {
        let mut windows = self.windows.lock();
        for (key, window) in &stored.ended {
            windows.hear_end(*key, *window);
        }
        stored
            .running
            .iter()
            .for_each(|told| self.hear(&mut windows, told));
        windows.tell_again(stored);
        if let Some(store) = self.store.get() {
            self.tell_begun(&mut windows, &**store);
        }
        self.known.store(windows.len(), Ordering::Release);
    }
}

impl CooldownIdentity {
    fn may_meet(&self, told: &SharedCooldown) -> bool {
        if told.key == told.host {
            return self.provider == told.host;
        }
        let is_account = match told.is_callers {
            true => self.provider == told.host,
            false => self.account == Some(told.account),
        };
        if told.key == told.account {
            return is_account;
        }
        let mut marks = Operation::ALL.into_iter().map(Some).chain([None]);
        let is_model = marks.any(|operation| self.model ^ mark(operation) == told.model);
        is_model && (told.key == told.model || is_account)
    }
}

/// What stands for a candidate among those of all replicas.
pub(crate) fn digest_candidate(candidate: &Candidate) -> u64 {
    let identity = CooldownIdentity::of(candidate);
    digests::candidate(identity.model, identity.account, candidate.spoken().name())
}
