//! Time on a paused clock.

use std::time::Duration;

use tokio::{task::JoinHandle, time::sleep};

/// So many seconds.
pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Acts after so many seconds, in a task of its own: nothing else wakes the test's.
pub(crate) fn later<T: Send + 'static>(
    seconds: u64,
    act: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(async move {
        sleep(secs(seconds)).await;
        act()
    })
}
