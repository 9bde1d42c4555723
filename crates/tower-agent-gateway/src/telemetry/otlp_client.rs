//! The HTTP client of the sender of spans.
//!
//! opentelemetry-http's `HyperClient` reads up to 4 MiB of an answer. It needs a runtime on the thread
//! that calls it, which the thread of the batches does not have, and a connector of its own for TLS
//! and for the proxy of `[server]`. So it would replace only the part that sends a request.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use http::Uri;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::{runtime::Handle, time::timeout};
use tower::ServiceExt;
use tower_agent::{BoxError, ReplayBody};
use tower_agent_hyper::{HyperService, UpstreamProxy};

use crate::http_client::{Roots, causes, http_client, read_at_most};

/// The longest time that the receiver has for a batch.
const LIMIT: Duration = Duration::from_secs(10);

/// The most bytes of an answer that are read: a receiver says in a few words how many spans it
/// refused.
const MOST: usize = 64 * 1024;

/// Sends batches by the gateway's own HTTP library.
///
/// The thread of the batches has no runtime, so the requests run on the gateway's runtime.
#[derive(Debug)]
pub(super) struct OtlpHttpClient {
    client: HyperService,
    runtime: Handle,
    /// Whether the last batch was refused or lost: a receiver that is down is logged once.
    is_failing: AtomicBool,
}

impl OtlpHttpClient {
    pub(super) fn new(proxy: &UpstreamProxy, receiver: &Uri) -> Result<Self, BoxError> {
        Ok(Self {
            client: http_client(proxy, Roots::of([receiver]))?,
            runtime: Handle::current(),
            is_failing: AtomicBool::new(false),
        })
    }

    fn log(&self, answer: &Result<Response<Bytes>, HttpError>) {
        let failure = match answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(causes(&**error)),
        };
        let was_failing = self.is_failing.swap(failure.is_some(), Ordering::AcqRel);
        match failure {
            Some(failure) if !was_failing => {
                tracing::warn!(failure, "spans are lost: the receiver does not take them");
            }
            None if was_failing => tracing::info!("the receiver takes spans again"),
            _ => {}
        }
    }
}

async fn send(client: HyperService, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    timeout(LIMIT, answer(client, request))
        .await
        .map_err(|_elapsed| format!("no answer within {LIMIT:?}"))?
}

async fn answer(
    client: HyperService,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let answer = client.oneshot(request.map(ReplayBody::from)).await?;
    let (head, body) = answer.into_parts();
    let body = read_at_most(body, MOST).await?;
    let body = body.ok_or("the answer has more than 64 KiB: is it a receiver of OTLP?")?;
    let mut whole = Response::new(body);
    *whole.status_mut() = head.status;
    Ok(whole)
}

impl HttpClient for OtlpHttpClient {
    fn send_bytes<'a, 'f>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        let sent = self.runtime.spawn(send(self.client.clone(), request));
        Box::pin(async move {
            let answer = sent.await.map_err(HttpError::from).and_then(|sent| sent);
            self.log(&answer);
            answer
        })
    }
}
