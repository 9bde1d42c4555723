//! The HTTP client of the sender of spans.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use http_body_util::{BodyExt, LengthLimitError, Limited};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use tokio::runtime::Handle;

/// The longest time that the receiver has for a batch.
const LIMIT: Duration = Duration::from_secs(10);

/// The most bytes of an answer that are read: a receiver says in a few words how many spans it
/// refused.
const MOST: usize = 64 * 1024;

/// Sends batches by the gateway's own HTTP library.
///
/// The thread of the batches has no runtime, so the requests run on the gateway's runtime.
#[derive(Debug)]
pub(super) struct ReqwestExporter {
    client: reqwest::Client,
    runtime: Handle,
    /// Whether the last batch was refused or lost: a receiver that is down is logged once.
    is_failing: AtomicBool,
}

impl ReqwestExporter {
    pub(super) fn new() -> Result<Self, reqwest::Error> {
        // Several TLS providers may be linked in; reqwest needs a default one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(LIMIT);
        Ok(Self {
            client: client.build()?,
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

/// The error with its causes.
fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

async fn send(
    client: reqwest::Client,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let answer = client.execute(request.try_into()?).await?;
    let (head, body) = Response::<reqwest::Body>::from(answer).into_parts();
    // An error drops the body, and with it the connection.
    let body = Limited::new(body, MOST).collect().await;
    let body = body.map_err(|error| match error.is::<LengthLimitError>() {
        true => "the answer has more than 64 KiB: is it a receiver of OTLP?".into(),
        false => error,
    })?;
    let mut whole = Response::new(body.to_bytes());
    *whole.status_mut() = head.status;
    Ok(whole)
}

impl HttpClient for ReqwestExporter {
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
