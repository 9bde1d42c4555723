use std::{fmt, time::Duration};

/// Latencies, in order.
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn new(mut measured: Vec<Duration>) -> Self {
        assert!(!measured.is_empty());
        measured.sort_unstable();
        Self(measured)
    }

    /// The smallest latency that this many percent do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100);
        self.0[rank.max(1) - 1]
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |percent| self.percentile(percent).as_micros();
        write!(
            f,
            "n={} p50={}us p99={}us max={}us",
            self.0.len(),
            micros(50),
            micros(99),
            micros(100)
        )
    }
}
