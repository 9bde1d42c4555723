//! What this replica has counted for owners, until the store knows, and while it has open runs.

use std::collections::HashMap;

use tokio::time::{Duration, Instant};
use tower_agent::{
    Owner, RunRegistry,
    registry::store::{OwnerCounts, RunNews},
};

use crate::unsaid::{INTERVAL, Pushed};

/// The counts that are to be told, of each owner the last; and of the owners with open runs.
#[derive(Debug, Default)]
pub(crate) struct OwnerNews {
    unsaid: HashMap<Owner, OwnerCounts>,
    told: Option<Instant>,
    /// The open runs of each owner that has some or asks for one, and the number of the counts that
    /// said so.
    open: HashMap<Owner, (u64, u32)>,
}

impl OwnerNews {
    pub(crate) fn push(&mut self, counts: OwnerCounts) -> Pushed {
        self.saw(&counts);
        let pushed = match self.unsaid.get(&counts.owner) {
            // Two threads may tell in another order than they counted.
            Some(later) if later.number > counts.number => return Pushed::Another,
            None if self.unsaid.len() >= RunRegistry::ENDED => return Pushed::Full,
            _ if self.unsaid.is_empty() => Pushed::First,
            _ => Pushed::Another,
        };
        self.unsaid.insert(counts.owner, counts);
        pushed
    }

    /// Remembers whether the owner of these counts has open runs, or asks for one.
    pub(crate) fn saw(&mut self, counts: &OwnerCounts) {
        let known = self.open.get(&counts.owner);
        if known.is_some_and(|(number, _)| *number > counts.number) {
            return;
        }
        if counts.open_runs == 0 && counts.open_runs_asked == 0 {
            self.open.remove(&counts.owner);
        } else {
            let open = (counts.number, counts.open_runs);
            self.open.insert(counts.owner, open);
        }
    }

    /// How long to wait until something is to be told; `None` if there is nothing.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        if self.unsaid.is_empty() {
            return None;
        }
        let since = self.told.map(|told| told.elapsed());
        Some(since.map_or(Duration::ZERO, |since| INTERVAL.saturating_sub(since)))
    }

    /// The news that are to be told now.
    pub(crate) fn all(&mut self) -> Vec<RunNews> {
        self.told = Some(Instant::now());
        let counts = self.unsaid.values().cloned();
        counts.map(RunNews::Counted).collect()
    }

    /// Counts of the number 0, which change nothing that the store has: it counts the open runs of
    /// this replica on.
    pub(crate) fn signs_of_life(&self) -> Vec<RunNews> {
        let signs = self.open.iter().map(|(owner, (_, open_runs))| {
            let mut counts = OwnerCounts::new(*owner, 0);
            counts.open_runs = *open_runs;
            RunNews::Counted(counts)
        });
        signs.collect()
    }

    /// Removes the counts up to this number, which the store has.
    pub(crate) fn said(&mut self, owner: Owner, number: u64) {
        let unsaid = self.unsaid.get(&owner);
        if unsaid.is_some_and(|counts| counts.number <= number) {
            self.unsaid.remove(&owner);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.unsaid.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(number: u64, open_runs: u32) -> OwnerCounts {
        let mut counts = OwnerCounts::new(Owner::default(), number);
        counts.open_runs = open_runs;
        counts
    }

    #[tokio::test(start_paused = true)]
    async fn of_an_owner_the_last_is_told_and_not_too_often() {
        let mut news = OwnerNews::default();
        assert_eq!(news.due_in(), None);
        assert_eq!(news.push(counts(2, 2)), Pushed::First);
        assert_eq!(news.push(counts(1, 1)), Pushed::Another);
        assert_eq!(news.due_in(), Some(Duration::ZERO));
        let told = news.all();
        assert!(
            matches!(&told[..], [RunNews::Counted(told)] if told.number == 2),
            "{told:?}"
        );
        // More was counted while it was told.
        news.push(counts(3, 1));
        news.said(Owner::default(), 2);
        assert_eq!(news.due_in(), Some(INTERVAL));
        news.said(Owner::default(), 3);
        assert_eq!(news.due_in(), None);
    }

    #[test]
    fn an_owner_with_open_runs_gets_signs_of_life() {
        let mut news = OwnerNews::default();
        let mut asked = counts(1, 0);
        asked.open_runs_asked = 1;
        news.saw(&asked);
        assert_eq!(news.signs_of_life().len(), 1);
        news.push(counts(3, 0));
        assert!(news.signs_of_life().is_empty());
        news.saw(&asked);
        news.push(counts(4, 1));
        news.push(counts(2, 0));
        assert_eq!(news.signs_of_life().len(), 1, "what is late counts no more");
    }
}
