use std::{sync::Arc, time::Duration};

use hyper_util::{
    client::legacy::{self, Client},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, crypto::CryptoProvider};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::{clients::Clients, connector::Connector, proxy::UpstreamProxy, service::HyperService};

/// The most bytes of one answer that are held until they are read, over HTTP/2.
const STREAM_WINDOW: u32 = 1024 * 1024;

/// The most bytes of the head of an answer, over HTTP/2.
const MAX_HEAD: u32 = 64 * 1024;

/// The settings of a [`HyperService`].
///
/// The setters return the builder.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing unless it builds"]
pub struct HyperServiceBuilder {
    proxy: UpstreamProxy,
    tls: Option<ClientConfig>,
    connect_timeout: Option<Duration>,
    pool_idle_timeout: Duration,
    http2_keep_alive_interval: Option<Duration>,
    http2_keep_alive_timeout: Duration,
    http2_prior_knowledge: bool,
    http1_only: bool,
    max_streams_per_connection: usize,
    resends: bool,
}

impl HyperService {
    /// Creates the service with the settings of [`builder`](Self::builder) as they are.
    ///
    /// # Errors
    ///
    /// The constructor returns the errors of [`HyperServiceBuilder::build`].
    pub fn new() -> Result<Self, rustls::Error> {
        Self::builder().build()
    }

    /// Returns a builder of the service.
    pub fn builder() -> HyperServiceBuilder {
        HyperServiceBuilder::new()
    }
}

impl HyperServiceBuilder {
    pub(crate) const fn new() -> Self {
        Self {
            proxy: UpstreamProxy::none(),
            tls: None,
            connect_timeout: None,
            pool_idle_timeout: Duration::from_secs(90),
            http2_keep_alive_interval: Some(Duration::from_secs(30)),
            http2_keep_alive_timeout: Duration::from_secs(20),
            http2_prior_knowledge: false,
            http1_only: false,
            max_streams_per_connection: 100,
            resends: true,
        }
    }

    /// Sets the proxy. The default is none, whatever the environment says.
    pub fn proxy(mut self, proxy: UpstreamProxy) -> Self {
        self.proxy = proxy;
        self
    }

    /// Sets the configuration of TLS, for roots or a client certificate of your own.
    ///
    /// By default the platform verifies certificates, with the process's default provider of
    /// cryptography, or `ring` if there is none. A configuration that names no ALPN protocol
    /// offers HTTP/2 and HTTP/1.1.
    pub fn tls_config(mut self, config: ClientConfig) -> Self {
        self.tls = Some(config);
        self
    }

    /// Sets how long the making of a connection may take, with the name's resolution, the proxy
    /// and TLS. By default there is no limit: the layers around the service have theirs.
    ///
    /// A connection that takes longer is a failure of the transport. The addresses of a name have
    /// equal parts of the time, so that one that does not answer leaves some to the next.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = Some(limit);
        self
    }

    /// Sets how long an unused connection is kept; 90 s by default.
    pub fn pool_idle_timeout(mut self, limit: Duration) -> Self {
        self.pool_idle_timeout = limit;
        self
    }

    /// Sets after which silence of an HTTP/2 connection a PING is sent, also while no request is
    /// on it; 30 s by default. `None` and zero send no PING.
    ///
    /// Without PINGs a peer that acknowledges on TCP and processes nothing keeps its connection.
    pub fn http2_keep_alive_interval(mut self, interval: impl Into<Option<Duration>>) -> Self {
        // By an interval of zero hyper sends PINGs without a pause.
        self.http2_keep_alive_interval = interval.into().filter(|it| !it.is_zero());
        self
    }

    /// Sets how long the answer to a PING may take before the connection is closed; 20 s by
    /// default.
    ///
    /// The requests on the connection fail then, and are not sent again: their peer may be slow.
    pub fn http2_keep_alive_timeout(mut self, timeout: Duration) -> Self {
        self.http2_keep_alive_timeout = timeout;
        self
    }

    /// Speaks HTTP/2 on every connection, without TLS too. By default HTTP/2 needs TLS, in which
    /// the upstream chooses it.
    pub fn http2_prior_knowledge(mut self) -> Self {
        self.http2_prior_knowledge = true;
        self.http1_only = false;
        self
    }

    /// Speaks HTTP/1.1 on every connection, as [upgrades](crate#upgrades) need it.
    ///
    /// A [TLS configuration](Self::tls_config) that names ALPN protocols must name `http/1.1` alone.
    pub fn http1_only(mut self) -> Self {
        self.http1_only = true;
        self.http2_prior_knowledge = false;
        self
    }

    /// Sets how many requests may be under way before the next ones take another connection of
    /// HTTP/2 to the same origin; 100 by default, and 1 at least.
    ///
    /// Set no more than the `SETTINGS_MAX_CONCURRENT_STREAMS` of the upstream: a request beyond it
    /// waits, unsent, for the end of another. A request is under way from its call to the end or
    /// drop of its answer's body, and those to all origins count together. The service makes 16
    /// connections to an origin at most; further requests share them. A connection holds up to 1 MiB for
    /// each of so many requests, of answers that came and are not read.
    pub fn max_streams_per_connection(mut self, streams: usize) -> Self {
        self.max_streams_per_connection = streams.max(1);
        self
    }

    /// Sets whether the service sends a request again as the [crate](crate#what-is-sent-again)
    /// says, which it does by default.
    ///
    /// RFC 9110, section 9.2.2, lets a client repeat a `POST` by itself only if it can tell that
    /// the first one was never applied, or that the request is idempotent. A connection that died
    /// without a byte proves neither. Switch this off where a request that is processed twice is
    /// worse than one that fails, or if a layer repeats them.
    pub fn resends(mut self, are_sent: bool) -> Self {
        self.resends = are_sent;
        self
    }

    /// Builds the service.
    ///
    /// The service connects to nothing before its first request, which needs a tokio runtime with
    /// I/O and time enabled.
    ///
    /// # Errors
    ///
    /// If the platform's verifier of certificates cannot be made, for example because the machine
    /// has no root certificates.
    pub fn build(self) -> Result<HyperService, rustls::Error> {
        let mut tls = match self.tls {
            Some(tls) => tls,
            None => platform_tls()?,
        };
        if tls.alpn_protocols.is_empty() {
            let (http2, http1) = (b"h2".to_vec(), b"http/1.1".to_vec());
            tls.alpn_protocols = match (self.http2_prior_knowledge, self.http1_only) {
                (true, _) => vec![http2],
                (_, true) => vec![http1],
                _ => vec![http2, http1],
            };
        }
        let connector = Connector::new(tls, self.proxy.clone(), self.connect_timeout);
        let mut builder = Client::builder(TokioExecutor::new());
        let builder: &mut legacy::Builder = builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(self.pool_idle_timeout)
            .http2_only(self.http2_prior_knowledge)
            .http2_keep_alive_interval(self.http2_keep_alive_interval)
            .http2_keep_alive_timeout(self.http2_keep_alive_timeout)
            .http2_keep_alive_while_idle(true)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(connection_window(
                self.max_streams_per_connection,
            ))
            .http2_max_header_list_size(MAX_HEAD)
            // Only what was never written, on a connection that turned out to be closed.
            .retry_canceled_requests(true);
        Ok(HyperService::from_clients(Clients::new(
            builder.clone(),
            connector,
            self.max_streams_per_connection,
            self.proxy,
            self.resends,
        )))
    }
}

/// The window of a connection, of which each stream may fill its own.
///
/// With a smaller one a few answers that are not read would stall all others of the connection.
fn connection_window(streams: usize) -> u32 {
    /// The most that HTTP/2 allows.
    const MOST: u32 = i32::MAX as u32;
    let streams = u32::try_from(streams).unwrap_or(u32::MAX);
    STREAM_WINDOW.saturating_mul(streams).min(MOST)
}

fn platform_tls() -> Result<ClientConfig, rustls::Error> {
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_connection_has_room_for_that_of_each_stream() {
        assert_eq!(connection_window(1), STREAM_WINDOW);
        assert_eq!(connection_window(100), 100 * STREAM_WINDOW);
        assert_eq!(connection_window(usize::MAX), i32::MAX as u32);
    }

    #[test]
    fn an_interval_of_zero_sends_no_ping() {
        let every = |interval| {
            let builder = HyperServiceBuilder::new().http2_keep_alive_interval(interval);
            builder.http2_keep_alive_interval
        };
        assert_eq!(every(Duration::ZERO), None);
        let least = Duration::from_nanos(1);
        assert_eq!(every(least), Some(least));
    }
}
