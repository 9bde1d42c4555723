use std::time::Duration;

use crate::llm::failure::Cooldown;

const MINUTE: Duration = Duration::from_secs(60);

/// How long what failed is left alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CooldownBackoff {
    /// For what mostly passes by itself: after the first failure in a row, the
    /// second, and every later one.
    pub(crate) short: [Duration; 3],
    /// For what a person has to mend, at first; it doubles.
    pub(crate) long: Duration,
    /// For an exhausted quota, at first; it doubles.
    pub(crate) quota: Duration,
    /// What doubles grows no further than this.
    pub(crate) most: Duration,
}

impl CooldownBackoff {
    pub(crate) const fn new() -> Self {
        Self {
            short: [Duration::from_secs(30), MINUTE, Duration::from_secs(5 * 60)],
            long: Duration::from_secs(10 * 60),
            quota: Duration::from_secs(5 * 60 * 60),
            most: Duration::from_secs(24 * 60 * 60),
        }
    }

    /// The window after so many failures in a row, and at least what the
    /// upstream `asked` for; none for a failure that says nothing about the next
    /// request.
    pub(crate) fn window(
        &self,
        cool: Cooldown,
        strikes: u32,
        asked: Option<Duration>,
    ) -> Option<Duration> {
        let doubled = |first: Duration| {
            let times = 1_u32.checked_shl(strikes).unwrap_or(u32::MAX);
            first.saturating_mul(times).min(self.most)
        };
        let window = match cool {
            Cooldown::No => return None,
            Cooldown::Short => {
                let [.., last] = self.short;
                let step = usize::try_from(strikes).unwrap_or(usize::MAX);
                self.short.get(step).copied().unwrap_or(last)
            }
            Cooldown::Long => doubled(self.long),
            Cooldown::Quota => doubled(self.quota),
        };
        Some(window.max(asked.unwrap_or_default().min(self.most)))
    }
}
