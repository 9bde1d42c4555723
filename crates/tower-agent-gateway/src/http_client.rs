//! What the gateway's HTTP clients have in common.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower_agent::{BoxError, llm::failure::TransportError};
use tower_agent_hyper::{HyperService, HyperServiceBuilder, UpstreamProxy};

/// The longest that the making of a connection may take: a host that drops packets is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes a client with connections of its own.
///
/// # Errors
///
/// If the platform's verifier of certificates cannot be made.
pub(crate) fn http_client(proxy: &UpstreamProxy) -> Result<HyperService, BoxError> {
    Ok(builder(proxy).build()?)
}

/// Makes a client that opens WebSockets, which HTTP/2 has not.
///
/// # Errors
///
/// If the platform's verifier of certificates cannot be made.
pub(crate) fn upgrade_client(proxy: &UpstreamProxy) -> Result<HyperService, BoxError> {
    Ok(builder(proxy).http1_only().build()?)
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
