use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use crate::run::Run;

/// The live runs of each session, by owner and in the order of opening: to end one
/// session costs nothing for those of others.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<Arc<str>, HashMap<u128, BTreeMap<u64, Run>>>);

impl Sessions {
    pub(super) fn insert(&mut self, session: &Arc<str>, owner: u128, serial: u64, run: Run) {
        let owners = self.0.entry(Arc::clone(session)).or_default();
        owners.entry(owner).or_default().insert(serial, run);
    }

    pub(super) fn remove(&mut self, session: &str, owner: u128, serial: u64) {
        let Some(owners) = self.0.get_mut(session) else {
            return;
        };
        if let Some(runs) = owners.get_mut(&owner) {
            runs.remove(&serial);
            if runs.is_empty() {
                owners.remove(&owner);
            }
        }
        if owners.is_empty() {
            self.0.remove(session);
        }
    }

    /// The owner's runs of the session, oldest first.
    pub(super) fn of(&self, session: &str, owner: u128) -> Vec<Run> {
        let runs = self.0.get(session).and_then(|owners| owners.get(&owner));
        runs.map(|runs| runs.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Those of all owners, oldest first.
    pub(super) fn find(&self, session: &str) -> Vec<Run> {
        let owners = self.0.get(session).into_iter().flatten();
        let mut runs: Vec<_> = owners.flat_map(|(_, runs)| runs).collect();
        runs.sort_by_key(|(serial, _)| **serial);
        runs.into_iter().map(|(_, run)| run.clone()).collect()
    }
}
