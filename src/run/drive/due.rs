use std::time::Duration;

use tokio::time::Instant;

use crate::run::core::Nanos;

/// A time on the clock of one tree. Two of one tree are compared as they are;
/// to make an [`Instant`] of each would cost more than all else in a poll.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) epoch: Instant,
    pub(super) at: Nanos,
}

impl Due {
    pub(super) fn instant(self) -> Option<Instant> {
        self.epoch.checked_add(Duration::from_nanos(self.at))
    }

    pub(super) fn earlier(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if self.epoch == other.epoch => {
                let at = self.at.min(other.at);
                Self { at, ..self }
            }
            Some(other) => match (self.instant(), other.instant()) {
                (Some(ours), Some(theirs)) if ours <= theirs => self,
                (_, Some(_)) => other,
                // Beyond what an instant can hold nothing ever comes.
                (_, None) => self,
            },
            None => self,
        }
    }
}
