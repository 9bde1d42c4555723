//! The time of day, which only dates on the wire need.

use std::time::SystemTime;

/// Reads the time of day, to compare with a date that an upstream sent.
#[allow(
    clippy::disallowed_methods,
    reason = "a date on the wire has no other clock"
)]
pub(crate) fn wall_clock() -> SystemTime {
    SystemTime::now()
}
