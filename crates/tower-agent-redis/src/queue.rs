//! The news that wait until the store has taken them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tower_agent::{
    RunRegistry,
    registry::store::{RunKey, RunNews},
};

use crate::candidates::is_hint;

/// News, with all that makes it the same news if it is told twice.
#[derive(Debug)]
pub(crate) struct QueuedNews {
    number: u64,
    pub(crate) news: RunNews,
    /// The incarnation of a run that the news make known.
    pub(crate) fresh: u64,
    /// The session of the run, where this replica knows it.
    pub(crate) session: Option<Arc<str>>,
}

impl QueuedNews {
    /// News that are told at once, and in no queue.
    pub(crate) fn unqueued(news: RunNews, session: Option<Arc<str>>) -> Self {
        Self {
            number: 0,
            news,
            fresh: fastrand::u64(..),
            session,
        }
    }

    fn run(&self) -> Option<&RunKey> {
        match &self.news {
            RunNews::Ended { run, .. }
            | RunNews::Adjusted { run, .. }
            | RunNews::GaveBack { run, .. }
            | RunNews::Left { run, .. }
            | RunNews::Reopened { run } => Some(run),
            _ => None,
        }
    }

    /// Whether the news are of a part alone, an answer or a hint. A store that never hears them forgets
    /// the part later.
    const fn is_minor(&self) -> bool {
        let news = &self.news;
        matches!(
            news,
            RunNews::GaveBack { .. } | RunNews::Left { .. } | RunNews::CarriedOut { .. }
        ) || is_hint(news)
    }
}

/// News in the order in which they were told.
#[derive(Debug, Default)]
pub(crate) struct NewsQueue {
    items: VecDeque<Arc<QueuedNews>>,
    /// The number of items that are minor.
    minor: usize,
    /// How many items there are about each run.
    by_run: HashMap<RunKey, usize>,
    last: u64,
}

impl NewsQueue {
    /// Adds news. Returns the number of older ones that were dropped for them: 0 or 1.
    pub(crate) fn push(&mut self, news: RunNews, session: Option<Arc<str>>) -> u64 {
        self.last += 1;
        let item = QueuedNews {
            number: self.last,
            news,
            fresh: fastrand::u64(..),
            session,
        };
        let is_minor = item.is_minor();
        let of_kind = match is_minor {
            true => self.minor,
            false => self.items.len() - self.minor,
        };
        let mut dropped = 0;
        if of_kind >= RunRegistry::ENDED {
            let oldest = self.items.iter().position(|it| it.is_minor() == is_minor);
            if let Some(item) = oldest.and_then(|at| self.items.remove(at)) {
                self.forget(&item);
                dropped = 1;
            }
        }
        self.minor += usize::from(is_minor);
        if let Some(run) = item.run() {
            *self.by_run.entry(run.clone()).or_default() += 1;
        }
        self.items.push_back(Arc::new(item));
        dropped
    }

    /// The number of the news that were added last.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Whether the store has taken all news up to this number.
    pub(crate) fn is_taken(&self, number: u64) -> bool {
        self.items.front().is_none_or(|item| item.number > number)
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The oldest news, at most `most`.
    pub(crate) fn front(&self, most: usize) -> Vec<Arc<QueuedNews>> {
        self.items.iter().take(most).cloned().collect()
    }

    /// Removes all news up to this item, which the store has taken.
    pub(crate) fn taken(&mut self, last: &QueuedNews) {
        while self
            .items
            .front()
            .is_some_and(|it| it.number <= last.number)
        {
            let Some(item) = self.items.pop_front() else {
                break;
            };
            self.forget(&item);
        }
    }

    /// The news about a run that the store has not taken yet.
    pub(crate) fn about(&self, run: &RunKey) -> Vec<Arc<QueuedNews>> {
        if self.by_run.is_empty() || !self.by_run.contains_key(run) {
            return Vec::new();
        }
        let items = self.items.iter();
        items.filter(|it| it.run() == Some(run)).cloned().collect()
    }

    fn forget(&mut self, item: &QueuedNews) {
        self.minor -= usize::from(item.is_minor());
        let Some(run) = item.run() else { return };
        if let Some(count) = self.by_run.get_mut(run) {
            *count -= 1;
            if *count == 0 {
                self.by_run.remove(run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tower_agent::{TerminalReason, registry::store::RunEnd};

    use super::*;
    use crate::keys::numbered_run as run;

    fn ended(number: usize) -> RunNews {
        RunNews::Ended {
            run: run(number),
            incarnation: None,
            if_known: false,
            end: RunEnd::new(TerminalReason::Aborted),
        }
    }

    #[test]
    fn the_oldest_of_its_kind_makes_room_and_the_order_stays() {
        let mut queue = NewsQueue::default();
        let left = RunNews::Left {
            run: run(0),
            part: 7,
            turns: 0,
            completed: true,
        };
        assert_eq!(queue.push(left, None), 0);
        for number in 0..RunRegistry::ENDED {
            assert_eq!(queue.push(ended(number), None), 0);
        }
        assert_eq!(queue.about(&run(0)).len(), 2);
        assert_eq!(queue.push(ended(77_777), None), 1);
        assert_eq!(queue.about(&run(0)).len(), 1, "the part's news stay");
        assert_eq!(queue.about(&run(1)).len(), 1);

        let front = queue.front(3);
        assert_eq!(front.len(), 3);
        queue.taken(&front[1]);
        assert!(queue.about(&run(0)).is_empty() && queue.about(&run(1)).is_empty());
        assert_eq!(queue.about(&run(2)).len(), 1);
        let rest = queue.front(usize::MAX);
        assert_eq!(rest.len(), RunRegistry::ENDED - 1);
        queue.taken(&rest[rest.len() - 1]);
        assert!(queue.items.is_empty() && queue.by_run.is_empty() && queue.minor == 0);
    }
}
