use std::collections::BTreeMap;

use super::key::{Map, Session};
use crate::run::Run;

/// The live runs of each session, by owner and in the order of opening: to end one
/// session costs nothing for those of others.
#[derive(Debug, Default)]
pub(super) struct Sessions(Map<Session, BTreeMap<(u128, u64), Run>>);

impl Sessions {
    pub(super) fn insert(&mut self, session: Session, owner: u128, serial: u64, run: Run) {
        let runs = self.0.entry(session).or_default();
        runs.insert((owner, serial), run);
    }

    /// Answers the run, to be dropped without the lock.
    pub(super) fn remove(&mut self, session: &Session, owner: u128, serial: u64) -> Option<Run> {
        let runs = self.0.get_mut(session)?;
        let run = runs.remove(&(owner, serial));
        if runs.is_empty() {
            self.0.remove(session);
        }
        run
    }

    /// The owner's runs of the session, oldest first.
    pub(super) fn of(&self, session: &Session, owner: u128) -> Vec<Run> {
        let runs = self.0.get(session);
        let ours = |runs: &BTreeMap<_, Run>| {
            let range = runs.range((owner, u64::MIN)..=(owner, u64::MAX));
            range.map(|(_, run)| run.clone()).collect()
        };
        runs.map(ours).unwrap_or_default()
    }

    /// Those of all owners, oldest first.
    pub(super) fn find(&self, session: &Session) -> Vec<Run> {
        let mut runs: Vec<_> = self.0.get(session).into_iter().flatten().collect();
        runs.sort_by_key(|((_, serial), _)| *serial);
        runs.into_iter().map(|(_, run)| run.clone()).collect()
    }
}
