//! What the gateway tells a service manager such as systemd, at the socket that `NOTIFY_SOCKET` names.
//!
//! Without that variable nothing is sent. A service manager that cannot be told changes nothing here.

use std::{env, ffi::OsStr, io, os::unix::ffi::OsStrExt};

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
    let socket = env::var_os("NOTIFY_SOCKET");
    let told = match socket.as_deref().and_then(abstract_name) {
        Some(name) => notify_abstract(name, state),
        None => notify(state),
    };
    if let Err(error) = told {
        tracing::warn!(%error, "service manager not notified");
    }
}

/// The name of a socket without a file, which `@` begins; sd-notify takes that for a path.
fn abstract_name(socket: &OsStr) -> Option<&[u8]> {
    socket.as_bytes().strip_prefix(b"@")
}

#[cfg(target_os = "linux")]
fn notify_abstract(name: &[u8], state: &[NotifyState<'_>]) -> io::Result<()> {
    use std::os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram},
    };

    let message: String = state.iter().map(|state| format!("{state}\n")).collect();
    let address = SocketAddr::from_abstract_name(name)?;
    // A datagram is sent whole or not at all.
    let sent = UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address);
    sent.map(drop)
}

#[cfg(not(target_os = "linux"))]
fn notify_abstract(_: &[u8], _: &[NotifyState<'_>]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
