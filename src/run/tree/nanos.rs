//! The unit of the tree's clocks: nanoseconds since the tree was opened.

use std::time::Duration;

/// A time since the tree was opened, or a length of time, in nanoseconds.
///
/// A clock is stored and compared in this unit, because a [`Duration`] would have to be
/// converted for every frame.
pub(crate) type Nanos = u64;

/// The time of a clock that is not set, which never comes.
pub(crate) const NEVER: Nanos = Nanos::MAX;

#[inline]
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).map_or(NEVER - 1, |nanos| nanos.min(NEVER - 1))
}

pub(super) fn duration(nanos: u64) -> Option<Duration> {
    (nanos != NEVER).then(|| Duration::from_nanos(nanos))
}
