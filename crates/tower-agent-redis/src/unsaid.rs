//! What this replica's parts have spent, until the store knows.

use std::collections::HashMap;

use tokio::time::{Duration, Instant};
use tower_agent::{
    RunRegistry,
    registry::store::{RunKey, RunNews},
    run::TokensSpent,
};

/// The least time between two tellings.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// The spending that is to be told: of each run the last.
#[derive(Debug, Default)]
pub(crate) struct UnsaidSpending {
    runs: HashMap<RunKey, Unsaid>,
    last: u64,
    told: Option<Instant>,
}

#[derive(Debug)]
struct Unsaid {
    number: u64,
    part: u64,
    incarnation: Option<u64>,
    spent: TokensSpent,
}

/// What became of spending that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Nothing was to be told before.
    First,
    Another,
    /// There are too many runs, and this one was left out.
    Full,
}

impl UnsaidSpending {
    pub(crate) fn push(
        &mut self,
        run: RunKey,
        part: u64,
        incarnation: Option<u64>,
        spent: TokensSpent,
    ) -> Pushed {
        let pushed = match self.runs.len() {
            0 => Pushed::First,
            full if full >= RunRegistry::ENDED && !self.runs.contains_key(&run) => {
                return Pushed::Full;
            }
            _ => Pushed::Another,
        };
        self.last += 1;
        let number = self.last;
        let unsaid = Unsaid {
            number,
            part,
            incarnation,
            spent,
        };
        self.runs.insert(run, unsaid);
        pushed
    }

    /// How long to wait until something is to be told; `None` if there is nothing.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        if self.runs.is_empty() {
            return None;
        }
        let since = self.told.map(|told| told.elapsed());
        Some(since.map_or(Duration::ZERO, |since| INTERVAL.saturating_sub(since)))
    }

    /// The news that are to be told now, each with its number.
    pub(crate) fn all(&mut self) -> Vec<(u64, RunNews)> {
        self.told = Some(Instant::now());
        let news = self.runs.iter().map(|(run, unsaid)| {
            let news = RunNews::Spent {
                run: run.clone(),
                part: unsaid.part,
                incarnation: unsaid.incarnation,
                spent: unsaid.spent,
            };
            (unsaid.number, news)
        });
        news.collect()
    }

    /// Removes the news of this number, unless the run has spent more since.
    pub(crate) fn said(&mut self, number: u64, run: &RunKey) {
        if self.runs.get(run).is_some_and(|it| it.number == number) {
            self.runs.remove(run);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::numbered_run as run;

    #[tokio::test(start_paused = true)]
    async fn of_a_run_the_last_is_told_and_not_too_often() {
        let mut unsaid = UnsaidSpending::default();
        assert_eq!(unsaid.due_in(), None);
        let spent = |tokens: u64| {
            let mut spent = TokensSpent::default();
            spent.output_tokens = tokens;
            spent
        };
        assert_eq!(unsaid.push(run(1), 7, Some(3), spent(1)), Pushed::First);
        assert_eq!(unsaid.push(run(1), 7, Some(3), spent(2)), Pushed::Another);
        assert_eq!(unsaid.due_in(), Some(Duration::ZERO));

        let told = unsaid.all();
        assert_eq!(told.len(), 1);
        let (number, RunNews::Spent { spent: last, .. }) = &told[0] else {
            panic!("{told:?}");
        };
        assert_eq!(*last, spent(2));
        // More was spent while it was told.
        unsaid.push(run(1), 7, Some(3), spent(3));
        unsaid.said(*number, &run(1));
        assert_eq!(unsaid.due_in(), Some(INTERVAL));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(unsaid.due_in(), Some(Duration::ZERO));
        let number = unsaid.all()[0].0;
        unsaid.said(number, &run(1));
        assert_eq!(unsaid.due_in(), None);
    }

    #[test]
    fn too_many_runs_are_left_out() {
        let mut unsaid = UnsaidSpending::default();
        for number in 0..RunRegistry::ENDED {
            unsaid.push(run(number), 7, None, TokensSpent::default());
        }
        let more = unsaid.push(run(77_777_777), 7, None, TokensSpent::default());
        assert_eq!(more, Pushed::Full);
        let known = unsaid.push(run(0), 7, None, TokensSpent::default());
        assert_eq!(known, Pushed::Another);
        assert_eq!(unsaid.len(), RunRegistry::ENDED);
    }
}
