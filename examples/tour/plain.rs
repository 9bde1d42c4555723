//! The plain stack: tower's own `Timeout` and `Retry`, as its documentation
//! shows them, and the fallback that is then written by hand.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{Request, StatusCode};
use serde_json::Value;
use tower::{
    BoxError, Service, ServiceBuilder, ServiceExt,
    retry::{
        Policy,
        backoff::{Backoff, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff},
        budget::{Budget, TpsBudget},
    },
    timeout::error::Elapsed,
    util::rng::HasherRng,
};

use crate::{situations::StackLimits, upstream};

/// Answers that are retried, and everything that is not an answer.
fn is_worth_a_retry(result: &Result<reqwest::Response, BoxError>) -> bool {
    result.as_ref().map_or(true, |answer| {
        answer.status().is_server_error() || answer.status() == StatusCode::TOO_MANY_REQUESTS
    })
}

#[derive(Clone)]
struct RetryOnStatus {
    budget: Arc<TpsBudget>,
    backoff: ExponentialBackoff,
    left: u32,
}

impl Policy<Request<Bytes>, reqwest::Response, BoxError> for RetryOnStatus {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        _: &mut Request<Bytes>,
        result: &mut Result<reqwest::Response, BoxError>,
    ) -> Option<Self::Future> {
        if !is_worth_a_retry(result) {
            self.budget.deposit();
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        self.budget.withdraw().then(|| self.backoff.next_backoff())
    }

    fn clone_request(&mut self, request: &Request<Bytes>) -> Option<Request<Bytes>> {
        Some(request.clone())
    }
}

/// Asks one model after the other until one answers with success.
#[derive(Clone)]
struct Fallback<S> {
    inner: S,
    models: &'static [&'static str],
}

impl<S> Service<Request<Bytes>> for Fallback<S>
where
    S: Service<Request<Bytes>, Response = reqwest::Response, Error = BoxError>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    type Response = reqwest::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<reqwest::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (inner, models) = (self.inner.clone(), self.models);
        Box::pin(async move {
            let mut last = Err("no model".into());
            for model in models {
                let mut body: Value = serde_json::from_slice(request.body())?;
                body["model"] = (*model).into();
                let mut asked = request.clone();
                *asked.body_mut() = body.to_string().into();
                last = inner.clone().oneshot(asked).await;
                if last
                    .as_ref()
                    .is_ok_and(|answer| answer.status().is_success())
                {
                    break;
                }
            }
            last
        })
    }
}

/// A server of it in front of `upstream`.
#[expect(
    clippy::disallowed_methods,
    reason = "as chat servers do, to finish what was paid for"
)]
pub(crate) async fn start(
    upstream: SocketAddr,
    limits: StackLimits,
) -> Result<SocketAddr, BoxError> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let send = tower::service_fn(move |request: Request<Bytes>| {
        let url = format!("http://{upstream}{}", request.uri().path());
        let sent = client.post(url).body(request.into_body()).send();
        async move { Ok::<_, BoxError>(sent.await?) }
    });
    let (base, max) = (limits.backoff, Duration::from_secs(8));
    let policy = RetryOnStatus {
        budget: Arc::new(TpsBudget::new(Duration::from_secs(10), 10, 0.2)),
        backoff: ExponentialBackoffMaker::new(base, max, 0.5, HasherRng::default())?.make_backoff(),
        left: limits.attempts - 1,
    };
    let inner = ServiceBuilder::new()
        .retry(policy)
        .timeout(limits.attempt)
        .service(send);
    let stack = ServiceBuilder::new()
        .timeout(limits.total)
        .service(Fallback {
            inner,
            models: limits.models,
        });
    let handle = move |request: axum::extract::Request| {
        let stack = stack.clone();
        async move {
            let (parts, body) = request.into_parts();
            let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else {
                return StatusCode::BAD_REQUEST.into_response();
            };
            let call = stack.oneshot(Request::from_parts(parts, body));
            match tokio::spawn(call).await {
                Ok(Ok(answer)) => http::Response::<reqwest::Body>::from(answer)
                    .map(Body::new)
                    .into_response(),
                Ok(Err(error)) if error.is::<Elapsed>() => {
                    answer(StatusCode::GATEWAY_TIMEOUT, &error)
                }
                Ok(Err(error)) => answer(StatusCode::BAD_GATEWAY, &error),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }
    };
    Ok(upstream::serve(Router::new().fallback(handle)).await?)
}

fn answer(status: StatusCode, error: &BoxError) -> Response {
    (status, error.to_string()).into_response()
}
