//! Whose turn it is to ask, and what the last answer was.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::Duration,
};

use slab::Slab;
use tokio::time::Instant;

/// The probes of all calls through one layer, one at a time.
///
/// There is no task: of those who want to know, one asks in its own polls. If it
/// leaves, or is not polled when it should have been, another takes its turn.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    state: Mutex<RoundState>,
    /// The upstream is down, as far as is known: read by every call.
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct RoundState {
    /// How many probes are over.
    number: u64,
    healthy: bool,
    /// When the next is made.
    due: Option<Instant>,
    /// Not before: the last is too fresh.
    rested: Option<Instant>,
    prober: Option<Prober>,
    seats: Slab<Seated>,
    /// How many of those wait to be let through.
    waiting: usize,
}

#[derive(Debug)]
struct Prober {
    key: usize,
    /// When it should have told long ago.
    until: Instant,
}

#[derive(Debug)]
struct Seated {
    waker: Option<Waker>,
    waits: bool,
}

/// What a look comes to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// A probe is over since the last look.
    News { healthy: bool },
    /// It is this one's turn to ask, from then on.
    Ask { due: Instant },
    /// Another's; one may look again then.
    Wait { until: Instant },
}

impl Rounds {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Wants to know of probes from now on, and the first of them at `due`, if
    /// the last is not too fresh. One that `waits` closes the gate. Answers its
    /// key, and how many probes were over.
    pub(super) fn enter(&self, waits: bool, due: Instant) -> (usize, u64) {
        let (key, number, prober) = {
            let mut state = self.lock();
            let due = state.rested.map_or(due, |rested| rested.max(due));
            // Who is there already may be about to ask.
            let earlier = state.due.filter(|_| !state.seats.is_empty());
            let sooner = earlier.is_none_or(|earlier| due < earlier);
            if sooner {
                state.due = Some(due);
            }
            if waits {
                state.waiting += 1;
                self.closed.store(true, Ordering::Release);
            }
            let key = state.seats.insert(Seated { waker: None, waits });
            (
                key,
                state.number,
                sooner.then(|| state.prober_waker()).flatten(),
            )
        };
        if let Some(prober) = prober {
            prober.wake();
        }
        (key, number)
    }

    /// Looks for news since `seen`, else whose turn it is; whoever's it is not, or
    /// not yet, is woken when that may have changed.
    pub(super) fn look(
        &self,
        key: usize,
        seen: &mut u64,
        now: Instant,
        patience: Duration,
        waker: &Waker,
    ) -> Look {
        let mut state = self.lock();
        if state.number != *seen {
            *seen = state.number;
            return Look::News {
                healthy: state.healthy,
            };
        }
        let due = *state.due.get_or_insert(now);
        let prober = state.prober.as_ref();
        let is_free = prober.is_none_or(|prober| prober.key != key && prober.until <= now);
        if is_free {
            state.prober = Some(Prober {
                key,
                until: due.max(now) + patience,
            });
        }
        let look = match &state.prober {
            Some(prober) if prober.key != key => Look::Wait {
                until: prober.until,
            },
            _ => Look::Ask { due },
        };
        let waker = waker.clone();
        let replaced = state
            .seats
            .get_mut(key)
            .map(|seat| seat.waker.replace(waker));
        drop(state);
        drop(replaced);
        look
    }

    /// A probe is over, and the next is due at `due`. Ignored from one whose turn
    /// another has taken.
    pub(super) fn tell(&self, key: usize, healthy: bool, due: Instant) {
        let mut wakers = Vec::new();
        {
            let mut state = self.lock();
            if state.prober.as_ref().is_none_or(|prober| prober.key != key) {
                return;
            }
            state.prober = None;
            state.number += 1;
            state.healthy = healthy;
            state.due = Some(due);
            state.rested = Some(due);
            if healthy {
                self.closed.store(false, Ordering::Release);
            }
            state.take_wakers(&mut wakers);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wants to know no more. The gate opens with the last who waits: nobody
    /// asks any longer, so nothing is known.
    pub(super) fn leave(&self, key: usize) {
        let mut wakers = Vec::new();
        let left = {
            let mut state = self.lock();
            let left = state.seats.try_remove(key);
            if left.as_ref().is_some_and(|left| left.waits) {
                state.waiting -= 1;
                if state.waiting == 0 {
                    self.closed.store(false, Ordering::Release);
                }
            }
            if state
                .prober
                .as_ref()
                .is_some_and(|prober| prober.key == key)
            {
                state.prober = None;
                // All: whoever is woken alone may leave before it looks.
                state.take_wakers(&mut wakers);
            }
            left
        };
        drop(left);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, RoundState> {
        // Nothing that may panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoundState {
    fn prober_waker(&mut self) -> Option<Waker> {
        let key = self.prober.as_ref()?.key;
        self.seats.get_mut(key)?.waker.take()
    }

    fn take_wakers(&mut self, wakers: &mut Vec<Waker>) {
        wakers.extend(
            self.seats
                .iter_mut()
                .filter_map(|(_, seat)| seat.waker.take()),
        );
    }
}
