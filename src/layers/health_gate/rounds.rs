//! Decides when a gate is probed, and which of its waiting or silent calls runs the probe.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::Waker,
    time::Duration,
};

use slab::Slab;
use tokio::time::Instant;

use crate::lock::Lock;

/// The state of the probes of one gate: one probe at a time, for all its calls.
///
/// The probes have no task of their own: one of the subscribed calls, the prober, runs them in its
/// own polls. If that call is dropped, or is not polled in time, another one takes over.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    state: Lock<RoundState>,
    /// Whether the gate is closed, because the upstream seems down; every new call reads it.
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct RoundState {
    /// The number of probes that have finished on this gate.
    finished: u64,
    healthy: bool,
    /// The time at which the next probe is due; `None` before any was scheduled.
    due: Option<Instant>,
    /// The earliest time of the next probe: one interval after the start of the last finished one.
    earliest: Option<Instant>,
    prober: Option<Prober>,
    subscribers: Slab<Subscriber>,
    /// The number of subscribers that wait at the gate, without those of silent calls.
    waiting: usize,
}

#[derive(Debug)]
struct Prober {
    key: usize,
    /// The time from which another subscriber may become the prober in its place.
    until: Instant,
}

#[derive(Debug)]
struct Subscriber {
    waker: Option<Waker>,
    waits: bool,
}

/// The next step of a subscribed call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProbeStep {
    /// A probe has finished since the subscriber's last result.
    Result { healthy: bool },
    /// This subscriber is the prober: it runs the next probe, at `due` or later.
    Probe { due: Instant },
    /// Another subscriber is the prober; this one polls again at `until` at the latest.
    Wait { until: Instant },
}

impl Rounds {
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Subscribes a call to probe results, and schedules a probe at `due`.
    ///
    /// The probe is made no earlier than one interval after the start of the last one. A
    /// subscriber that `waits` closes the gate. The method returns the subscriber's key, and the
    /// number of finished probes.
    pub(super) fn subscribe(&self, waits: bool, due: Instant) -> (usize, u64) {
        let (key, number, prober) = {
            let mut state = self.state.lock();
            let due = state.earliest.map_or(due, |earliest| earliest.max(due));
            // Other subscribers may have scheduled an earlier probe.
            let earlier = state.due.filter(|_| !state.subscribers.is_empty());
            let is_sooner = earlier.is_none_or(|earlier| due < earlier);
            if is_sooner {
                state.due = Some(due);
            }
            if waits {
                state.waiting += 1;
                self.closed.store(true, Ordering::Release);
            }
            let key = state.subscribers.insert(Subscriber { waker: None, waits });
            (
                key,
                state.finished,
                is_sooner.then(|| state.prober_waker()).flatten(),
            )
        };
        if let Some(prober) = prober {
            prober.wake();
        }
        (key, number)
    }

    /// Returns the result of a probe that finished after `seen`, else the subscriber's next step.
    ///
    /// The subscriber becomes the prober if there is none, or if the prober is more than
    /// `patience` late. The subscriber's waker is woken when a probe finishes or the prober
    /// leaves.
    pub(super) fn next_step(
        &self,
        key: usize,
        seen: &mut u64,
        now: Instant,
        patience: Duration,
        waker: &Waker,
    ) -> ProbeStep {
        let mut state = self.state.lock();
        if state.finished != *seen {
            *seen = state.finished;
            return ProbeStep::Result {
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
        let step = match &state.prober {
            Some(prober) if prober.key != key => ProbeStep::Wait {
                until: prober.until,
            },
            _ => ProbeStep::Probe { due },
        };
        let waker = waker.clone();
        let replaced = state
            .subscribers
            .get_mut(key)
            .map(|subscriber| subscriber.waker.replace(waker));
        drop(state);
        drop(replaced);
        step
    }

    /// Stores the result of a probe, and schedules the next one at `due`.
    ///
    /// A healthy result opens the gate. The result is ignored if another subscriber has taken over.
    pub(super) fn record_result(&self, key: usize, healthy: bool, due: Instant) {
        let mut wakers = Vec::new();
        {
            let mut state = self.state.lock();
            if state.prober.as_ref().is_none_or(|prober| prober.key != key) {
                return;
            }
            state.prober = None;
            state.finished += 1;
            state.healthy = healthy;
            state.due = Some(due);
            state.earliest = Some(due);
            if healthy {
                self.closed.store(false, Ordering::Release);
            }
            state.take_wakers(&mut wakers);
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Removes a subscriber; the gate opens when no subscriber that waits is left.
    ///
    /// Without a waiting call no further probe is certain, so the gate must not stay closed.
    pub(super) fn unsubscribe(&self, key: usize) {
        let mut wakers = Vec::new();
        let left = {
            let mut state = self.state.lock();
            let left = state.subscribers.try_remove(key);
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
                // Wake all subscribers: a single woken one may be dropped before it is polled.
                state.take_wakers(&mut wakers);
            }
            left
        };
        drop(left);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl RoundState {
    fn prober_waker(&mut self) -> Option<Waker> {
        let key = self.prober.as_ref()?.key;
        self.subscribers.get_mut(key)?.waker.take()
    }

    fn take_wakers(&mut self, wakers: &mut Vec<Waker>) {
        wakers.extend(
            self.subscribers
                .iter_mut()
                .filter_map(|(_, subscriber)| subscriber.waker.take()),
        );
    }
}
