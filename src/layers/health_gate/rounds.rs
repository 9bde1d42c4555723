//! Decides when a gate is probed, and which of its waiting or silent calls runs the probe.

use tokio::time::{Duration, Instant};

/// The state of the probes of one gate: one probe at a time, for all its calls.
///
/// The probes have no task of their own: one of the subscribed calls, the prober, runs them in its
/// own polls. If that call is dropped, or is not polled in time, another one takes over.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// Whether the gate is closed, because the upstream seems down.
    pub(super) is_closed: bool,
    /// The number of probes that have finished on this gate.
    finished: u64,
    healthy: bool,
    /// The time at which the next probe is due; `None` before any was scheduled.
    due: Option<Instant>,
    /// The earliest time of the next probe: one interval after the start of the last finished one.
    earliest: Option<Instant>,
    /// The subscriber that runs the probes, and the time from which another one may replace it.
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

/// Whether a change of the state concerns the other subscribers, which then look at it again.
pub(super) type IsNews = bool;

impl Rounds {
    /// Subscribes a call to probe results, and schedules a probe at `due`.
    ///
    /// The probe is made no earlier than one interval after the start of the last one. A
    /// subscriber that `waits` closes the gate. The method returns the subscriber's key, and the
    /// number of finished probes.
    pub(super) fn subscribe(&mut self, waits: bool, due: Instant) -> (u64, u64, IsNews) {
        let due = self.earliest.map_or(due, |earliest| earliest.max(due));
        // Other subscribers may have scheduled an earlier probe.
        let earlier = self.due.filter(|_| self.subscribers > 0);
        let is_sooner = earlier.is_none_or(|earlier| due < earlier);
        if is_sooner {
            self.due = Some(due);
        }
        self.subscribers += 1;
        self.waiting += usize::from(waits);
        self.is_closed |= waits;
        self.last_key += 1;
        (self.last_key, self.finished, is_sooner)
    }

    /// Returns the result of a probe that finished after `seen`, else the subscriber's next step.
    ///
    /// The subscriber becomes the prober if there is none, or if the prober is more than
    /// `max_delay` late.
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
    /// A healthy result opens the gate. The result is ignored if another subscriber has taken over.
    pub(super) fn record_result(&mut self, key: u64, healthy: bool, due: Instant) -> IsNews {
        if !self.is_prober(key) {
            return false;
        }
        self.prober = None;
        self.finished += 1;
        self.healthy = healthy;
        self.due = Some(due);
        self.earliest = Some(due);
        self.is_closed &= !healthy;
        true
    }

    /// Removes a subscriber; the gate opens when no subscriber that waits is left.
    ///
    /// Without a waiting call no further probe is certain, so the gate must not stay closed.
    pub(super) fn unsubscribe(&mut self, key: u64, waits: bool) -> IsNews {
        self.subscribers -= 1;
        self.waiting -= usize::from(waits);
        self.is_closed &= self.waiting > 0;
        let leaves = self.is_prober(key);
        if leaves {
            self.prober = None;
        }
        leaves
    }

    fn is_prober(&self, key: u64) -> bool {
        self.prober.is_some_and(|(prober, _)| prober == key)
    }
}
