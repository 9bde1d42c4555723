//! The live runs of each session.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use slab::Slab;

use super::owner_caps::Owner;
use crate::run::{Run, RunId};

/// The live runs, by the name of their session and then by owner.
///
/// Two owners may use the same name; the end of one owner's session costs nothing for the others.
#[derive(Debug, Default)]
pub(super) struct Sessions(HashMap<Arc<str>, BTreeMap<u128, OwnerRuns>>);

/// The live runs of one owner in a session.
#[derive(Debug, Default)]
struct OwnerRuns {
    /// The runs with their serial numbers.
    runs: Slab<(u64, Run)>,
    /// The slot of the latest run of each [prefix](RunId::prefix), while that run lives. A caller
    /// may open any number of runs in a session, so the cost of a search would have no bound.
    latest: HashMap<Box<str>, usize>,
}

impl Sessions {
    /// Inserts a run into its session, and returns the run's slot for a later `remove`.
    pub(super) fn insert(
        &mut self,
        name: Arc<str>,
        owner: u128,
        id: &RunId,
        serial: u64,
        run: Run,
    ) -> usize {
        let owners = self.0.entry(name).or_default();
        let of_owner = owners.entry(owner).or_default();
        let slot = of_owner.runs.insert((serial, run));
        if let Some(prefix) = id.prefix() {
            of_owner.latest.insert(prefix.into(), slot);
        }
        slot
    }

    /// Removes a run from its session. The caller drops the returned run without the lock.
    pub(super) fn remove(
        &mut self,
        name: &str,
        owner: u128,
        id: &RunId,
        slot: usize,
    ) -> Option<Run> {
        let owners = self.0.get_mut(name)?;
        let of_owner = owners.get_mut(&owner)?;
        let run = of_owner.runs.try_remove(slot).map(|(_, run)| run);
        if let Some(prefix) = id.prefix() {
            if of_owner.latest.get(prefix) == Some(&slot) {
                of_owner.latest.remove(prefix);
            }
        }
        if of_owner.runs.is_empty() {
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
            .flat_map(|(_, of_owner)| &of_owner.runs)
            .map(|(_, run)| run)
            .collect();
        // The runs mostly stand in order already, so the sort is cheap.
        runs.sort_by_key(|(serial, _)| *serial);
        runs.into_iter().map(|(_, run)| run.clone()).collect()
    }

    /// The owner's latest run with this id [prefix](RunId::prefix) in the session, if that run
    /// lives.
    pub(super) fn latest(&self, name: &str, owner: u128, prefix: &str) -> Option<Run> {
        let of_owner = self.0.get(name)?.get(&owner)?;
        let slot = of_owner.latest.get(prefix)?;
        of_owner.runs.get(*slot).map(|(_, run)| run.clone())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
