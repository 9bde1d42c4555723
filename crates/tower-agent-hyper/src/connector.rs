//! Connects to an upstream: directly or through a proxy, with TLS where the URI asks for it.

use std::{
    fmt,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::{
        legacy::connect::{Connected, Connection, HttpConnector, proxy::Tunnel},
        proxy::matcher::Intercept,
    },
    rt::TokioIo,
};
use rustls::{
    ClientConfig, SignatureScheme,
    client::{ResolvesClientCert, Resumption},
    sign::CertifiedKey,
};
use tokio::{net::TcpStream, time::timeout};
use tower_agent::BoxError;
use tower_service::Service;

use crate::{
    connection::{Origins, RecordedIo},
    proxy::UpstreamProxy,
};

/// How long a connection is silent before TCP probes the peer, and the time between probes.
const TCP_KEEPALIVE: Duration = Duration::from_secs(15);

/// How many probes may stay without an answer.
const TCP_KEEPALIVE_RETRIES: u32 = 3;

/// The connector of the client's pool.
#[derive(Clone)]
pub(crate) struct Connector(Arc<ConnectorSettings>);

struct ConnectorSettings {
    https: HttpsConnector<ProxyConnector>,
    connect_timeout: Option<Duration>,
    origins: Origins,
}

/// The connection to an upstream, ready for HTTP.
pub(crate) type UpstreamIo = TokioIo<RecordedIo<TokioIo<MaybeHttpsStream<ProxiedIo>>>>;

impl Connector {
    pub(crate) fn new(
        tls: ClientConfig,
        proxy: UpstreamProxy,
        connect_timeout: Option<Duration>,
    ) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(TCP_KEEPALIVE));
        tcp.set_keepalive_interval(Some(TCP_KEEPALIVE));
        tcp.set_keepalive_retries(Some(TCP_KEEPALIVE_RETRIES));
        // The addresses of a name share the time, so that one that is dead leaves some to the next.
        tcp.set_connect_timeout(connect_timeout);
        let of_proxy = tls_to_proxy(&tls);
        let proxied = ProxyConnector {
            to_proxy: (tcp.clone(), of_proxy).into(),
            tcp,
            proxy,
        };
        Self(Arc::new(ConnectorSettings {
            https: (proxied, tls).into(),
            connect_timeout,
            origins: Origins::new(),
        }))
    }
}

/// The configuration for a proxy, from that for the upstreams.
fn tls_to_proxy(tls: &ClientConfig) -> ClientConfig {
    let mut tls = tls.clone();
    tls.alpn_protocols.clear();
    // The client's certificate is for the upstream, and so is a session that it opened.
    tls.client_auth_cert_resolver = Arc::new(NoCertificate);
    tls.resumption = Resumption::default();
    tls
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Service<Uri> for Connector {
    type Response = UpstreamIo;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<UpstreamIo, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // A TCP connector is always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let settings = Arc::clone(&self.0);
        let connecting = settings.https.clone().call(uri.clone());
        Box::pin(async move {
            let io = match settings.connect_timeout {
                None => connecting.await?,
                Some(limit) => timeout(limit, connecting).await.map_err(|_elapsed| {
                    let text = format!("no connection within {limit:?}");
                    io::Error::new(io::ErrorKind::TimedOut, text)
                })??,
            };
            let record = settings.origins.record(&uri);
            Ok(TokioIo::new(RecordedIo::new(TokioIo::new(io), record)))
        })
    }
}

/// Connects by TCP to the upstream, or to its proxy.
#[derive(Clone)]
struct ProxyConnector {
    tcp: HttpConnector,
    /// The same, with TLS to a proxy at an `https` URL.
    to_proxy: HttpsConnector<HttpConnector>,
    proxy: UpstreamProxy,
}

impl Service<Uri> for ProxyConnector {
    type Response = ProxiedIo;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<ProxiedIo, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.intercept(&uri) else {
            let connecting = self.tcp.call(uri);
            return Box::pin(async move { Ok(ProxiedIo::new(connecting.await?.into(), false)) });
        };
        let connecting = connect_by(&proxy, self.to_proxy.clone(), uri);
        Box::pin(connecting)
    }
}

fn connect_by(
    proxy: &Intercept,
    mut to_proxy: HttpsConnector<HttpConnector>,
    uri: Uri,
) -> impl Future<Output = Result<ProxiedIo, BoxError>> + Send + use<> {
    let (at, credential) = (proxy.uri().clone(), proxy.basic_auth().cloned());
    async move {
        if !matches!(at.scheme_str(), Some("http" | "https")) {
            let text = "the proxy is not an HTTP proxy";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text).into());
        }
        if uri.scheme_str() == Some("http") {
            return Ok(ProxiedIo::new(to_proxy.call(at).await?, true));
        }
        let mut tunnel = Tunnel::new(at, to_proxy);
        if let Some(credential) = credential {
            tunnel = tunnel.with_auth(credential);
        }
        Ok(ProxiedIo::new(tunnel.call(uri).await?, false))
    }
}

/// A connection to the upstream, or to a proxy in front of it.
pub(crate) struct ProxiedIo {
    inner: MaybeHttpsStream<TokioIo<TcpStream>>,
    /// Whether the peer is a proxy that takes requests with their whole URI.
    is_proxied: bool,
}

impl ProxiedIo {
    const fn new(inner: MaybeHttpsStream<TokioIo<TcpStream>>, is_proxied: bool) -> Self {
        Self { inner, is_proxied }
    }
}

impl Connection for ProxiedIo {
    fn connected(&self) -> Connected {
        self.inner.connected().proxy(self.is_proxied)
    }
}

impl Read for ProxiedIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buffer)
    }
}

impl Write for ProxiedIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, data)
    }
}
