//! What the gateway tells a service manager such as systemd, at the socket that `NOTIFY_SOCKET` names.
//!
//! Without that variable nothing is sent. A service manager that cannot be told changes nothing here.

use sd_notify::{NotifyState, notify};

/// The gateway serves, or has reloaded its configuration.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// A reload begins, which ends with [`ready`].
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "service manager not notified"),
    }
}

/// The gateway drains, and then ends.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = notify(state) {
        tracing::warn!(%error, "service manager not notified");
    }
}
