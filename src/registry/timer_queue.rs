use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

use tokio::time::Instant;

use crate::run::Place;

/// The times at which entries are looked at, earliest first. Mostly each pushed time is later than
/// the one before: such times stand in a queue, which costs less than a heap.
#[derive(Debug, Default)]
pub(super) struct TimerQueue {
    in_order: VecDeque<(Instant, Place)>,
    others: BinaryHeap<Reverse<(Instant, Place)>>,
}

impl TimerQueue {
    pub(super) fn push(&mut self, at: Instant, place: Place) {
        if self.in_order.back().is_none_or(|(last, _)| *last <= at) {
            self.in_order.push_back((at, place));
        } else {
            self.others.push(Reverse((at, place)));
        }
    }

    /// The earliest time in the queue; `None` if the queue is empty.
    pub(super) fn next(&self) -> Option<Instant> {
        let first = self.in_order.front().map(|(at, _)| *at);
        let other = self.others.peek().map(|Reverse((at, _))| *at);
        first.into_iter().chain(other).min()
    }

    /// Removes and answers the entry with the earliest time, if that time has come.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Place> {
        if self.in_order.front().is_some_and(|(at, _)| *at <= now) {
            return self.in_order.pop_front().map(|(_, place)| place);
        }
        let Reverse((at, place)) = *self.others.peek()?;
        if at > now {
            return None;
        }
        self.others.pop();
        Some(place)
    }

    pub(super) fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    pub(super) fn retain(&mut self, knows: impl Fn(Place) -> bool) {
        self.in_order.retain(|(_, place)| knows(*place));
        self.others.retain(|Reverse((_, place))| knows(*place));
    }
}
