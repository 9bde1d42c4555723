//! `[server]`: the limits of a connection, so that idle clients cannot exhaust the server.

use std::time::Duration;

use super::error::Problem;
use super::limit::Limit;
use super::{file, number};

/// The limits of `[server]`; `None` is off.
///
/// All are on by default: a server without them lets one client hold its connections for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerLimits {
    /// How long the head of a request may take. The time counts from the accept, and on a kept
    /// connection from the first byte of the head.
    pub(crate) head_timeout: Option<Duration>,
    /// How long an upload may be silent.
    pub(crate) upload_idle: Option<Duration>,
    /// How many connections are open at a time; others wait to be accepted.
    pub(crate) max_connections: Option<u32>,
    /// How long a connection without a request is kept. After the same silence a probe (TCP
    /// keep-alive, HTTP/2 ping) finds out whether the peer is still there.
    pub(crate) keep_alive: Option<Duration>,
}

/// The largest cap of connections; 0 switches the cap off.
const MOST: u32 = 1_000_000;

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            head_timeout: Some(Duration::from_secs(30)),
            upload_idle: Some(Duration::from_secs(30)),
            max_connections: Some(10_000),
            keep_alive: Some(Duration::from_secs(60)),
        }
    }
}

pub(super) fn server(table: file::ServerTable) -> Result<ServerLimits, Problem> {
    let absent = ServerLimits::default();
    let most = number::count("server.max_connections", table.max_connections, 0..=MOST)?;
    Ok(ServerLimits {
        head_timeout: Limit::read("server.head_timeout", table.head_timeout)?
            .or(absent.head_timeout),
        upload_idle: Limit::read("server.upload_idle", table.upload_idle)?.or(absent.upload_idle),
        max_connections: most.or(absent.max_connections).filter(|most| *most > 0),
        keep_alive: Limit::read("server.keep_alive", table.keep_alive)?.or(absent.keep_alive),
    })
}
