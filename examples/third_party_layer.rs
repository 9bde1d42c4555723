//! Two layers of a program between those of the crate: a cache, and a retry of its own.
//!
//! ```text
//! cargo run --example third_party_layer
//! ```
//!
//! The cache stores an answer only if its call was not cut, and marks what it answers as
//! free of cost. The retry opens each attempt as a node of its own, so that a limit around it
//! stops it, and a limit inside ends the attempt alone. `docs/layers.md` has the rules.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, NotCounted, Run, RunLayer, RunRegistry, StepTimeoutLayer,
    TerminalReason, supervise::SupervisedBody,
};

type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Answers a request that was answered before with the same answer.
#[derive(Clone, Debug, Default)]
struct CacheLayer {
    answers: Arc<Mutex<HashMap<String, Bytes>>>,
}

impl<S> Layer<S> for CacheLayer {
    type Service = Cache<S>;

    fn layer(&self, inner: S) -> Cache<S> {
        let Self { answers } = self.clone();
        Cache { answers, inner }
    }
}

#[derive(Clone, Debug)]
struct Cache<S> {
    answers: Arc<Mutex<HashMap<String, Bytes>>>,
    inner: S,
}

impl<S, B> Service<Request<String>> for Cache<S>
where
    S: Service<Request<String>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error = BoxError> + Send,
{
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let call = request.extensions().get::<Run>().cloned();
        let key = request.body().clone();
        let answers = self.answers.lock();
        let known = answers
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key)
            .cloned();
        if let Some(known) = known {
            return Box::pin(async move {
                // A run that is over gets no answer, not even one that costs nothing.
                if let Some(call) = call {
                    call.check()?;
                }
                let mut answer = Response::new(Full::new(known));
                answer.extensions_mut().insert(NotCounted);
                Ok(answer)
            });
        }
        let future = self.inner.call(request);
        let answers = Arc::clone(&self.answers);
        Box::pin(async move {
            let (head, body) = future.await?.into_parts();
            let bytes = body.collect().await?.to_bytes();
            // The call is live until the layer that opened it has handed the answer on. A
            // reason by now says that the answer was cut, or must not be used.
            let reason = call.and_then(|call| call.terminal_reason());
            let whole = matches!(reason, None | Some(TerminalReason::Completed));
            if head.status == StatusCode::OK && whole {
                let answers = answers.lock();
                answers
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(key, bytes.clone());
            }
            Ok(Response::from_parts(head, Full::new(bytes)))
        })
    }
}

/// Makes a call up to three times.
#[derive(Clone, Copy, Debug)]
struct RetryLayer;

impl<S> Layer<S> for RetryLayer {
    type Service = OwnRetry<S>;

    fn layer(&self, inner: S) -> OwnRetry<S> {
        OwnRetry { inner }
    }
}

#[derive(Clone, Debug)]
struct OwnRetry<S> {
    inner: S,
}

impl<S, B> Service<Request<String>> for OwnRetry<S>
where
    S: Service<Request<String>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<SupervisedBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Each attempt waits for a service of its own.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let inner = self.inner.clone();
        Box::pin(async move {
            let call = request.extensions().get::<Run>().cloned();
            let call = call.ok_or("no layer outside of the retry opened a call")?;
            for number in 1.. {
                // The `?` is the rule: a call that is over is not tried again.
                let attempt =
                    call.attempt(request.clone(), |request| inner.clone().oneshot(request))?;
                match attempt.await {
                    Ok(answer) if number == 3 || !answer.status().is_server_error() => {
                        return Ok(answer);
                    }
                    Err(error) if number == 3 => return Err(error),
                    // The answer or the error of a failed attempt drops here, and the attempt
                    // settles.
                    Ok(_) | Err(_) => {}
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            unreachable!("the third attempt returns")
        })
    }
}

/// An upstream whose every odd answer is a 503.
async fn unreliable(
    calls: Arc<AtomicU32>,
    request: Request<String>,
) -> Result<Response<Full<Bytes>>, BoxError> {
    let number = calls.fetch_add(1, Ordering::Relaxed) + 1;
    let mut answer = Response::new(Full::from(format!("{}: 42", request.body())));
    if number % 2 == 1 {
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    if request.body() == "hang" {
        std::future::pending::<()>().await;
    }
    Ok(answer)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(RunRegistry::new()).on_end(|call| {
            println!("{} after {} attempts", call.reason.as_str(), call.attempts);
        }))
        .layer(HardCeilingLayer::new(Duration::from_millis(500)))
        .layer(CacheLayer::default())
        .layer(RetryLayer)
        .layer(StepTimeoutLayer::new(Duration::from_millis(200)))
        .service(service_fn(move |request| {
            unreliable(Arc::clone(&counted), request)
        }));
    let ask = async |question: &str| {
        let request = Request::post("/v1/chat/completions").body(question.to_owned())?;
        let answer = service.clone().oneshot(request).await?;
        Ok::<_, BoxError>(answer.into_body().collect().await?.to_bytes())
    };

    let first = ask("meaning").await?;
    let second = ask("meaning").await?;
    assert_eq!((&first, calls.load(Ordering::Relaxed)), (&second, 2));

    // Each attempt is silent for 200 ms; the ceiling of the call stops the third.
    let hung = ask("hang").await.expect_err("it hangs");
    let reason = TerminalReason::find(&*hung);
    assert_eq!(reason, Some(&TerminalReason::HardCeiling));
    assert_eq!(calls.load(Ordering::Relaxed), 5);
    println!("{hung}");
    Ok(())
}
