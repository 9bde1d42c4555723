//! What the gateway's HTTP clients have in common.

use std::{error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Uri, uri::Scheme};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use rustls::{ClientConfig, RootCertStore, crypto::CryptoProvider};
use tower_agent::{BoxError, llm::failure::TransportError};
use tower_agent_hyper::{HyperService, HyperServiceBuilder, UpstreamProxy};

/// The longest that the making of a connection may take: a host that drops packets is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether a client must verify certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// Without root certificates there is no client.
    Needed,
    /// Without root certificates each connection with TLS fails.
    IfAny,
}

impl Roots {
    /// What the URLs that a client is for need.
    pub(crate) fn of<'a>(urls: impl IntoIterator<Item = &'a Uri>) -> Self {
        let mut urls = urls.into_iter();
        match urls.any(|url| url.scheme() == Some(&Scheme::HTTPS)) {
            true => Self::Needed,
            false => Self::IfAny,
        }
    }
}

/// Makes a client with connections of its own.
///
/// # Errors
///
/// If the machine has no root certificates, and they are needed.
pub(crate) fn http_client(proxy: &UpstreamProxy, roots: Roots) -> Result<HyperService, BoxError> {
    built(builder(proxy), roots)
}

/// Makes a client that opens WebSockets, which HTTP/2 has not.
///
/// # Errors
///
/// If the machine has no root certificates, and they are needed.
pub(crate) fn upgrade_client(
    proxy: &UpstreamProxy,
    roots: Roots,
) -> Result<HyperService, BoxError> {
    built(builder(proxy).http1_only(), roots)
}

/// Builds a client. An image without root certificates still reaches upstreams without TLS.
fn built(builder: HyperServiceBuilder, roots: Roots) -> Result<HyperService, BoxError> {
    let error = match builder.clone().build() {
        Ok(service) => return Ok(service),
        Err(error) => error,
    };
    if roots == Roots::Needed {
        let message = format!(
            "a URL with https needs root certificates, and there are none ({error}): install ca-certificates, or \
             set SSL_CERT_FILE"
        );
        return Err(message.into());
    }
    tracing::debug!(%error, "no connection with TLS can be verified");
    Ok(builder.tls_config(without_roots()?).build()?)
}

/// A configuration with which each certificate is refused.
fn without_roots() -> Result<ClientConfig, rustls::Error> {
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
    let versions = ClientConfig::builder_with_provider(provider);
    let versions = versions.with_safe_default_protocol_versions()?;
    let config = versions.with_root_certificates(RootCertStore::empty());
    Ok(config.with_no_client_auth())
}

fn builder(proxy: &UpstreamProxy) -> HyperServiceBuilder {
    HyperService::builder()
        .proxy(proxy.clone())
        .connect_timeout(CONNECT_TIMEOUT)
}

/// Reads a body of at most `most` bytes; `None` if it is longer.
///
/// A body that is longer is dropped, and with it its connection.
pub(crate) async fn read_at_most(
    body: impl Body<Data = Bytes, Error: Into<BoxError>>,
    most: usize,
) -> Result<Option<Bytes>, BoxError> {
    match Limited::new(body, most).collect().await {
        Ok(body) => Ok(Some(body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The text of an error with its causes.
pub(crate) fn causes(error: &(dyn Error + 'static)) -> String {
    // The text of a `TransportError` repeats that of its source.
    let source = error.downcast_ref().and_then(TransportError::source);
    let error = source.unwrap_or(error);
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
