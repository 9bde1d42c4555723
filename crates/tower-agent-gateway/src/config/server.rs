//! `[server]`: the limits of connections and of uploads, so that clients cannot exhaust the server,
//! and the proxy of the gateway's own requests.

use std::{num::NonZero, thread, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::config::{BoundedCount, ConfigError, Span};
use tower_agent_hyper::UpstreamProxy;

use super::{
    byte_size::{self, ByteSize},
    memory,
};

/// The longest body that the stack takes, in bytes.
pub(crate) const MAX_BODY: usize = 32 * 1024 * 1024;

/// The least of `max_buffered`, in MiB: one request.
const LEAST_BUFFERED: usize = MAX_BODY >> 20;

/// The `proxy` that is none.
const NO_PROXY: &str = "none";

/// The most of `threads`.
const MOST_THREADS: u32 = 1024;

/// The limits of `[server]`; `None` is off.
///
/// All limits are on by default. Without them one client can hold all connections of the server
/// for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServerLimits {
    /// How long the head of a request may take. The time counts from the accept, and on a kept
    /// HTTP/1 connection from the first byte of the head. With `None`, `keep_alive` limits it.
    pub(crate) head_timeout: Option<Duration>,
    /// How long an upload may be silent.
    pub(crate) upload_idle: Option<Duration>,
    /// How many connections are open at a time; others wait to be accepted.
    pub(crate) max_connections: Option<u32>,
    /// How long a connection without a request is kept. After the same silence a probe (TCP
    /// keep-alive, HTTP/2 ping) finds out whether the peer is still there.
    pub(crate) keep_alive: Option<Duration>,
    /// How many bytes of request bodies are held at a time; `None` is a share of the memory.
    pub(crate) max_buffered: Option<usize>,
    /// The sockets of the Responses API; `None` refuses them.
    pub(crate) websocket: Option<WebSocketSettings>,
    /// How many threads serve connections; `None` leaves them to the runtime of the caller.
    pub(crate) threads: Option<u32>,
}

/// The limits of a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WebSocketSettings {
    /// How long a socket takes responses.
    pub(crate) max_age: Option<Duration>,
}

impl ServerLimits {
    /// How many bytes of request bodies are held at a time.
    pub(crate) fn max_buffered(&self) -> usize {
        self.max_buffered
            .unwrap_or_else(|| memory::default_buffer(MAX_BODY))
    }

    /// `[server]` with the values in force, which reads as the same limits; `proxy` is as it is written.
    pub(super) fn to_toml(self, proxy: Option<&str>) -> toml::Table {
        let time = |limit: Option<Duration>| {
            let time = humantime::format_duration(limit.unwrap_or_default());
            toml::Value::from(time.to_string())
        };
        let count = |limit: Option<u32>| toml::Value::from(limit.unwrap_or(0));
        let max_buffered = byte_size::text(self.max_buffered());
        let mut table = toml::Table::from_iter([
            ("head_timeout".to_owned(), time(self.head_timeout)),
            ("upload_idle".to_owned(), time(self.upload_idle)),
            ("max_connections".to_owned(), count(self.max_connections)),
            ("keep_alive".to_owned(), time(self.keep_alive)),
            ("max_buffered".to_owned(), max_buffered.into()),
            ("websocket".to_owned(), self.websocket.is_some().into()),
            ("threads".to_owned(), count(self.threads)),
            ("proxy".to_owned(), proxy.unwrap_or(NO_PROXY).into()),
        ]);
        if let Some(websocket) = self.websocket {
            table.insert("websocket_age".to_owned(), time(websocket.max_age));
        }
        table
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct ServerTable {
    /// The longest that the head of a request may take. "30s" by default; "0s" is off.
    head_timeout: Option<Span>,
    /// The longest silence of an upload. "30s" by default; "0s" is off.
    upload_idle: Option<Span>,
    /// The most open connections; more wait to be accepted. 10000 by default; 0 is no limit.
    max_connections: Option<BoundedCount<0, 1_000_000>>,
    /// The interval of probes, and how long a connection may be idle. "60s" by default; "0s" is
    /// off.
    keep_alive: Option<Span>,
    /// The most bytes of request bodies that are held at a time: "256 MiB", or a number. A quarter
    /// of the memory by default.
    max_buffered: Option<ByteSize<LEAST_BUFFERED>>,
    /// Whether the Responses API is served over WebSocket. True by default.
    websocket: Option<bool>,
    /// How long a socket takes responses. "60m" by default; "0s" is no limit.
    websocket_age: Option<Span>,
    /// The threads that serve connections; with 0 one runtime serves all. One a core by default.
    threads: Option<BoundedCount<0, MOST_THREADS>>,
    /// The proxy of the gateway's own requests: "none", "environment", or a URL. "none" by default.
    #[schemars(regex(pattern = r"^(none|environment|[Hh][Tt][Tt][Pp][Ss]?://.+)$"))]
    proxy: Option<String>,
}

/// The proxy of the gateway's own requests: none, that of the environment, or one by its URL.
pub(super) fn proxy(table: &ServerTable) -> Result<UpstreamProxy, ConfigError> {
    match table.proxy.as_deref() {
        None | Some(NO_PROXY) => Ok(UpstreamProxy::none()),
        Some("environment") => Ok(UpstreamProxy::from_env()),
        Some(url) => UpstreamProxy::all(url).map_err(|_| {
            // The text may hold a password.
            let message = "is neither \"none\", \"environment\" nor an http or https URL";
            ConfigError::new(["server", "proxy"], message)
        }),
    }
}

/// Hides what comes before the host of a proxy's URL in the tables as they are written.
pub(super) fn hide_credential(tables: &mut toml::Table) {
    let server = tables.get_mut("server").and_then(toml::Value::as_table_mut);
    let Some(toml::Value::String(url)) = server.and_then(|server| server.get_mut("proxy")) else {
        return;
    };
    if let Some((credential, host)) = url.rsplit_once('@') {
        let scheme = credential
            .split_once("://")
            .map_or("", |(scheme, _)| scheme);
        *url = format!("{scheme}://[hidden]@{host}");
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerTable::default().into()
    }
}

impl From<ServerTable> for ServerLimits {
    fn from(table: ServerTable) -> Self {
        let time = |time: Option<Span>, absent| match time {
            Some(time) => time.limit(),
            None => Some(Duration::from_secs(absent)),
        };
        Self {
            head_timeout: time(table.head_timeout, 30),
            upload_idle: time(table.upload_idle, 30),
            max_connections: table
                .max_connections
                .map_or(Some(10_000), BoundedCount::limit),
            keep_alive: time(table.keep_alive, 60),
            max_buffered: table.max_buffered.map(ByteSize::get),
            websocket: (table.websocket != Some(false)).then(|| WebSocketSettings {
                max_age: time(table.websocket_age, 60 * 60),
            }),
            threads: table
                .threads
                .map_or_else(|| Some(cores()), BoundedCount::limit),
        }
    }
}

/// How many processors this process may use.
fn cores() -> u32 {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    u32::try_from(cores).map_or(MOST_THREADS, |cores| cores.min(MOST_THREADS))
}
