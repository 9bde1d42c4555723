use std::time::Duration;

/// The clock of keep-alives: the time since the caller last got bytes.
#[derive(Debug)]
pub(super) struct KeepAlive {
    every: Duration,
    /// The time of the first wait since the caller got bytes; `None` before that wait.
    since: Option<Duration>,
}

impl KeepAlive {
    pub(super) const fn new(every: Duration) -> Self {
        Self { every, since: None }
    }

    /// Notes that the caller gets bytes; the next wait restarts the clock.
    #[inline]
    pub(super) const fn sent(&mut self) {
        self.since = None;
    }

    /// Notes a wait at `now`, and returns whether a keep-alive is due.
    pub(super) fn wait(&mut self, now: Duration) -> bool {
        let since = *self.since.get_or_insert(now);
        now >= since.saturating_add(self.every)
    }

    /// The time at which the next keep-alive is due.
    pub(super) fn next(&self) -> Option<Duration> {
        Some(self.since?.saturating_add(self.every))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn it_is_due_after_as_long_without_bytes_and_then_again_and_again() {
        let mut keep_alive = KeepAlive::new(secs(15));
        assert_eq!(keep_alive.next(), None, "nothing is waited for");
        assert!(!keep_alive.wait(secs(2)));
        assert_eq!(keep_alive.next(), Some(secs(17)));
        assert!(!keep_alive.wait(secs(16)));
        keep_alive.sent();
        assert!(!keep_alive.wait(secs(16)));
        for round in 1..1000 {
            assert_eq!(keep_alive.next(), Some(secs(16 + 15 * round)));
            assert!(keep_alive.wait(secs(16 + 15 * round)));
            keep_alive.sent();
            assert!(!keep_alive.wait(secs(16 + 15 * round)));
        }
    }

    #[test]
    fn many_that_were_due_at_once_are_one() {
        let mut keep_alive = KeepAlive::new(secs(15));
        keep_alive.wait(secs(0));
        assert!(keep_alive.wait(secs(3600)));
        keep_alive.sent();
        assert!(!keep_alive.wait(secs(3600)));
    }
}
