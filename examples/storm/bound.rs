//! What a shared budget promises for an outage, to the repeat.

use std::time::Duration;

use crate::{
    load::{OUTAGE, secs},
    systems::{FLOOR, RATIO},
    upstream::Entry,
};

/// The calls of one candidate up to some moment.
///
/// What may have been repeated by then in the outage is what first attempts paid
/// in, and before it not more than piles up, ten seconds of the floor; the floor
/// for the time of the outage; and one second of it, which was saved up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bound {
    before: usize,
    traffic: usize,
    repeats: usize,
}

impl Bound {
    /// For all calls of the outage.
    pub(crate) fn of(entries: &[Entry]) -> Self {
        let mut bound = Self::default();
        for entry in entries {
            bound.enter(entry);
        }
        bound
    }

    /// The first moment of the outage at which there were more.
    pub(crate) fn broken(entries: &[Entry]) -> Option<Duration> {
        let mut bound = Self::default();
        let broken = entries.iter().find(|entry| {
            bound.enter(entry);
            OUTAGE.contains(&entry.at) && bound.repeats > bound.granted(entry.at)
        });
        broken.map(|entry| entry.at)
    }

    /// How many repeats there may have been in the outage at this moment of it.
    pub(crate) fn granted(&self, at: Duration) -> usize {
        // In thousandths, as the budget counts.
        let deposit = (RATIO * 1000.0).round() as usize;
        let floor = FLOOR as usize;
        let saved = (self.before * deposit).min(10 * floor * 1000);
        let open = (at - OUTAGE.start + secs(1)).as_nanos() as usize;
        (saved + self.traffic * deposit) / 1000 + floor * open / 1_000_000_000
    }

    fn enter(&mut self, entry: &Entry) {
        if entry.at < OUTAGE.start {
            self.before += usize::from(entry.traffic);
        } else if OUTAGE.contains(&entry.at) {
            self.traffic += usize::from(entry.traffic);
            self.repeats += usize::from(!entry.traffic);
        }
    }
}
