//! Decides when an upstream is probed, and which waiting or silent call runs the probe.

use tokio::{
    sync::Notify,
    time::{Duration, Instant},
};

use crate::lock::Lock;

/// The probe state of a gate, which all services of a layer share.
#[derive(Debug, Default)]
pub(super) struct SharedProbes {
    schedule: Lock<ProbeSchedule>,
    /// Wakes all waiting calls after a change of the due time, or when the prober is gone.
    pub(super) changed: Notify,
}

impl SharedProbes {
    /// Changes the state; wakes all subscribers if the due time changed or the prober is gone.
    ///
    /// The method wakes all subscribers: a wake of one alone would be lost if its call is dropped
    /// before the next poll.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut ProbeSchedule) -> T) -> T {
        let mut schedule = self.schedule.lock();
        let ProbeSchedule { due, prober, .. } = *schedule;
        let result = change(&mut schedule);
        let is_gone = prober.is_some() && schedule.prober.is_none();
        let concerns_all = is_gone || schedule.due != due;
        drop(schedule);
        if concerns_all {
            self.changed.notify_waiters();
        }
        result
    }

    pub(super) fn is_closed(&self) -> bool {
        self.schedule.lock().is_closed
    }
}

/// The state of the probes of one gate, which serve all its calls.
///
/// The probes have no task of their own: one of the subscribed calls, the prober, runs them in its
/// polls. If that call is dropped, or is not polled in time, another subscriber takes over.
#[derive(Debug, Default)]
pub(super) struct ProbeSchedule {
    /// Whether the gate is closed, because the upstream seems down.
    is_closed: bool,
    /// The number of recorded probe results.
    finished: u64,
    healthy: bool,
    /// The time at which the next probe is due; `None` before any was scheduled.
    due: Option<Instant>,
    /// The earliest time of the next probe: one interval after the start of the last finished one.
    earliest: Option<Instant>,
    /// The key of the prober, and the time from which another subscriber may replace it.
    prober: Option<(u64, Instant)>,
    /// The key of the newest subscriber.
    last_key: u64,
    subscribers: usize,
    /// The number of subscribers that wait at the gate, without those of silent calls.
    waiting: usize,
}

/// The next step of a subscribed call.
#[derive(Debug)]
pub(super) enum ProbeStep {
    /// A probe has finished since the subscriber's last result.
    Result { healthy: bool },
    /// This subscriber is the prober: it runs the next probe now.
    Probe,
    /// The subscriber looks again at `until` at the latest: it is the prober of a later probe, or
    /// another subscriber is the prober.
    Wait { until: Instant },
}

impl ProbeSchedule {
    /// Subscribes a call to probe results, and schedules a probe at `due`.
    ///
    /// A probe that another subscriber has scheduled for an earlier time stays. No probe is due
    /// earlier than one interval after the start of the last finished one. A subscriber that
    /// `waits` closes the gate. The method returns the subscriber's key, and the number of recorded
    /// results.
    pub(super) fn subscribe(&mut self, waits: bool, due: Instant) -> (u64, u64) {
        let due = self.earliest.map_or(due, |earliest| earliest.max(due));
        // Other subscribers may have scheduled an earlier probe.
        let earlier = self.due.filter(|_| self.subscribers > 0);
        self.due = Some(earlier.map_or(due, |earlier| earlier.min(due)));
        self.subscribers += 1;
        self.waiting += usize::from(waits);
        self.is_closed |= waits;
        self.last_key += 1;
        (self.last_key, self.finished)
    }

    /// Returns the latest result if it is newer than `seen`, else the subscriber's next step.
    ///
    /// The subscriber becomes the prober if there is none, or if the prober is `max_delay` late or
    /// more.
    pub(super) fn next_step(
        &mut self,
        key: u64,
        seen: &mut u64,
        now: Instant,
        max_delay: Duration,
    ) -> ProbeStep {
        if self.finished != *seen {
            *seen = self.finished;
            return ProbeStep::Result {
                healthy: self.healthy,
            };
        }
        let due = *self.due.get_or_insert(now);
        match self.prober {
            Some((prober, until)) if prober != key && now < until => {
                return ProbeStep::Wait { until };
            }
            Some((prober, _)) if prober == key => {}
            _ => self.prober = Some((key, due.max(now) + max_delay)),
        }
        if now < due {
            return ProbeStep::Wait { until: due };
        }
        ProbeStep::Probe
    }

    /// Stores the result of a probe, and schedules the next one at `due`.
    ///
    /// A healthy result opens the gate. The result is ignored if the subscriber is no longer the
    /// prober.
    pub(super) fn record_result(&mut self, key: u64, healthy: bool, due: Instant) {
        if self.prober.is_none_or(|(prober, _)| prober != key) {
            return;
        }
        self.prober = None;
        self.finished += 1;
        self.healthy = healthy;
        self.due = Some(due);
        self.earliest = Some(due);
        self.is_closed &= !healthy;
    }

    /// Removes a subscriber; the gate opens when no subscriber that waits is left.
    ///
    /// Without a waiting call no further probe is certain, so the gate must not stay closed.
    pub(super) fn unsubscribe(&mut self, key: u64, waits: bool) {
        self.subscribers -= 1;
        self.waiting -= usize::from(waits);
        self.is_closed &= self.waiting > 0;
        self.prober = self.prober.filter(|(prober, _)| *prober != key);
    }
}
