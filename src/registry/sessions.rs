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
    /// The latest run of each [prefix](RunId::prefix): its id and serial number. It lives, or it
    /// ended other than as completed and is remembered. A caller may open any number of runs in a
    /// session, so the cost of a search would have no bound.
    latest: HashMap<Box<str>, (RunId, u64)>,
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
            of_owner.latest.insert(prefix.into(), (id.clone(), serial));
        }
        slot
    }

    /// Removes a run from its session, because it has ended. The caller drops the returned run
    /// without the lock. A `lasting` end stays known as that of the latest run.
    pub(super) fn remove(
        &mut self,
        name: &str,
        owner: u128,
        id: &RunId,
        slot: usize,
        lasting: bool,
    ) -> Option<Run> {
        let of_owner = self.0.get_mut(name)?.get_mut(&owner)?;
        let removed = of_owner.runs.try_remove(slot);
        match &removed {
            Some((serial, _)) if !lasting => self.forget(name, owner, id, *serial),
            _ => self.tidy(name, owner),
        }
        removed.map(|(_, run)| run)
    }

    /// Forgets that the run of this number was the latest with its prefix.
    pub(super) fn forget(&mut self, name: &str, owner: u128, id: &RunId, serial: u64) {
        let of_owner = self.0.get_mut(name).and_then(|all| all.get_mut(&owner));
        if let (Some(of_owner), Some(prefix)) = (of_owner, id.prefix()) {
            if of_owner.latest.get(prefix).is_some_and(|it| it.1 == serial) {
                of_owner.latest.remove(prefix);
            }
        }
        self.tidy(name, owner);
    }

    /// Removes what is empty.
    fn tidy(&mut self, name: &str, owner: u128) {
        let Some(owners) = self.0.get_mut(name) else {
            return;
        };
        let is_empty = |all: &OwnerRuns| all.runs.is_empty() && all.latest.is_empty();
        if owners.get(&owner).is_some_and(is_empty) {
            owners.remove(&owner);
            if owners.is_empty() {
                self.0.remove(name);
            }
        }
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

    /// The id of the owner's latest run with this [prefix](RunId::prefix) in the session.
    pub(super) fn latest(&self, name: &str, owner: u128, prefix: &str) -> Option<RunId> {
        let of_owner = self.0.get(name)?.get(&owner)?;
        of_owner.latest.get(prefix).map(|(id, _)| id.clone())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
