//! The agents, and the times of their calls: the same for every system.

use std::{ops::Range, time::Duration};

/// How many runs there are, all at once.
pub(crate) const RUNS: u32 = 1_000;

/// How many calls each makes, one after the other.
pub(crate) const CALLS: u32 = 7;

/// When the first candidate is down.
pub(crate) const OUTAGE: Range<Duration> = secs(20)..secs(80);

/// When agents leave: one in [`LEAVES`] does.
const LEAVING: Range<Duration> = secs(30)..secs(70);
const LEAVES: u32 = 5;

/// Between an agent's calls: what it does with the answer.
const THINKS: Range<Duration> = secs(8)..secs(20);

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// One run of an agent. Times are from the beginning of the storm.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) number: u32,
    /// When it makes its calls, unless the one before is not answered by then.
    pub(crate) calls: Vec<Duration>,
    pub(crate) leaves: Option<Duration>,
}

/// The same agents each time.
pub(crate) fn agents() -> Vec<Agent> {
    let mut rng = fastrand::Rng::with_seed(1);
    (0..RUNS).map(|number| agent(number, &mut rng)).collect()
}

fn agent(number: u32, rng: &mut fastrand::Rng) -> Agent {
    let mut at = within(&(Duration::ZERO..THINKS.start), rng);
    let calls = (0..CALLS).map(|_| {
        let asked = at;
        at += within(&THINKS, rng);
        asked
    });
    let calls = calls.collect();
    let leaves = (number % LEAVES == 0).then(|| within(&LEAVING, rng));
    Agent {
        number,
        calls,
        leaves,
    }
}

/// Whole milliseconds.
pub(crate) fn within(range: &Range<Duration>, rng: &mut fastrand::Rng) -> Duration {
    let (from, to) = (range.start.as_millis(), range.end.as_millis());
    Duration::from_millis(rng.u64(from as u64..to as u64))
}
