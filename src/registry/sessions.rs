use std::collections::BTreeMap;

use slab::Slab;

use super::key::{Map, Session};
use crate::run::Run;

/// The live runs of each session, by owner. The end of one owner's session costs nothing for
/// other owners.
#[derive(Debug, Default)]
pub(super) struct Sessions(Map<Session, BTreeMap<u128, Slab<(u64, Run)>>>);

impl Sessions {
    /// Inserts a run into its session, and answers the run's slot for a later `remove`.
    pub(super) fn insert(&mut self, session: Session, owner: u128, serial: u64, run: Run) -> usize {
        let runs = self.0.entry(session).or_default();
        runs.entry(owner).or_default().insert((serial, run))
    }

    /// Removes a run from its session. The caller drops the answered run without the lock.
    pub(super) fn remove(&mut self, session: &Session, owner: u128, slot: usize) -> Option<Run> {
        let owners = self.0.get_mut(session)?;
        let runs = owners.get_mut(&owner)?;
        let run = runs.try_remove(slot).map(|(_, run)| run);
        if runs.is_empty() {
            owners.remove(&owner);
            if owners.is_empty() {
                self.0.remove(session);
            }
        }
        run
    }

    /// The live runs of one owner in the session, oldest first.
    pub(super) fn of(&self, session: &Session, owner: u128) -> Vec<Run> {
        let runs = self.0.get(session).and_then(|owners| owners.get(&owner));
        oldest_first(runs.into_iter())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The live runs of all owners in the session, oldest first.
    pub(super) fn find(&self, session: &Session) -> Vec<Run> {
        let owners = self.0.get(session).into_iter();
        oldest_first(owners.flat_map(BTreeMap::values))
    }
}

fn oldest_first<'a>(runs: impl Iterator<Item = &'a Slab<(u64, Run)>>) -> Vec<Run> {
    let mut runs: Vec<_> = runs.flat_map(Slab::iter).map(|(_, run)| run).collect();
    // The runs mostly stand in order already, so the sort is cheap.
    runs.sort_by_key(|(serial, _)| *serial);
    runs.into_iter().map(|(_, run)| run.clone()).collect()
}
