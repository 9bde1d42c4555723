//! The live runs of each session.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use slab::Slab;

use super::owner_caps::Owner;
use crate::run::Run;

/// The live runs of each session, by owner, with their serial numbers. The end of one owner's
/// session costs nothing for other owners.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<Arc<str>, BTreeMap<u128, NumberedRuns>>);

/// Runs with their serial numbers.
type NumberedRuns = Slab<(u64, Run)>;

impl Sessions {
    /// Inserts a run into its session, and answers the run's slot for a later `remove`.
    pub(super) fn insert(&mut self, name: Arc<str>, owner: u128, serial: u64, run: Run) -> usize {
        let owners = self.0.entry(name).or_default();
        owners.entry(owner).or_default().insert((serial, run))
    }

    /// Removes a run from its session. The caller drops the answered run without the lock.
    pub(super) fn remove(&mut self, name: &str, owner: u128, slot: usize) -> Option<Run> {
        let owners = self.0.get_mut(name)?;
        let runs = owners.get_mut(&owner)?;
        let run = runs.try_remove(slot).map(|(_, run)| run);
        if runs.is_empty() {
            owners.remove(&owner);
            if owners.is_empty() {
                self.0.remove(name);
            }
        }
        run
    }

    /// The live runs in the session, of one owner or of all, oldest first.
    pub(super) fn find(&self, name: &str, owner: Option<Owner>) -> Vec<Run> {
        let owners = owner.map_or(0..=u128::MAX, |Owner(owner)| owner..=owner);
        let all = self.0.get(name).into_iter();
        let runs = all.flat_map(|all| all.range(owners.clone()));
        let mut runs: Vec<_> = runs
            .flat_map(|(_, runs)| runs)
            .map(|(_, run)| run)
            .collect();
        // The runs mostly stand in order already, so the sort is cheap.
        runs.sort_by_key(|(serial, _)| *serial);
        runs.into_iter().map(|(_, run)| run.clone()).collect()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
