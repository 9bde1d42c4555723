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
    /// The runs of each [prefix](RunId::prefix) by their serial numbers, as long as the registry
    /// knows them. A caller may open any number of runs in a session, so the cost of a search would
    /// have no bound.
    known: HashMap<Box<str>, BTreeMap<u64, RunId>>,
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
            let known = of_owner.known.entry(prefix.into()).or_default();
            known.insert(serial, id.clone());
        }
        slot
    }

    /// Removes a run from the live ones of its session. The caller drops the returned run without
    /// the lock. A run that was a `turn` stays known, as one of which a sub-agent may be the child.
    pub(super) fn remove(
        &mut self,
        name: &str,
        owner: u128,
        id: &RunId,
        slot: usize,
        turn: bool,
    ) -> Option<Run> {
        let of_owner = self.0.get_mut(name)?.get_mut(&owner)?;
        let removed = of_owner.runs.try_remove(slot);
        match &removed {
            Some((serial, _)) if !turn => self.forget(name, owner, id, *serial),
            _ => self.tidy(name, owner),
        }
        removed.map(|(_, run)| run)
    }

    /// Forgets the run of this number, which the registry no longer knows.
    pub(super) fn forget(&mut self, name: &str, owner: u128, id: &RunId, serial: u64) {
        let of_owner = self.0.get_mut(name).and_then(|all| all.get_mut(&owner));
        if let (Some(of_owner), Some(prefix)) = (of_owner, id.prefix()) {
            if let Some(known) = of_owner.known.get_mut(prefix) {
                known.remove(&serial);
                if known.is_empty() {
                    of_owner.known.remove(prefix);
                }
            }
        }
        self.tidy(name, owner);
    }

    /// Removes what is empty.
    fn tidy(&mut self, name: &str, owner: u128) {
        let Some(owners) = self.0.get_mut(name) else {
            return;
        };
        let is_empty = |all: &OwnerRuns| all.runs.is_empty() && all.known.is_empty();
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
        let (_, latest) = of_owner.known.get(prefix)?.last_key_value()?;
        Some(latest.clone())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
