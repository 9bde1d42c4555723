//! What the five layers together cost a call: T4.
//!
//! `cargo bench --bench stack`.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use std::{
    convert::Infallible,
    future::{Future, Ready, ready},
    hint::black_box,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::{Empty, Full};
use tower::{
    Layer, Service, ServiceBuilder,
    layer::util::Identity,
    retry::budget::{Budget, TpsBudget},
};
use tower_agent::{
    Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer, RetryBudget,
    RetryBudgetLayer, StepTimeoutLayer,
};

const LIMIT: Duration = Duration::from_secs(600);

/// Answers at once.
#[derive(Clone)]
struct Upstream;

impl<B> Service<Request<B>> for Upstream {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(Empty::new())))
    }
}

/// Repeats what failed while the budget lasts, as tower's documentation shows.
#[derive(Clone)]
struct Attempts(Arc<TpsBudget>);

impl<E> tower::retry::Policy<Request<Full<Bytes>>, Response<Empty<Bytes>>, E> for Attempts {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Full<Bytes>>,
        result: &mut Result<Response<Empty<Bytes>>, E>,
    ) -> Option<Ready<()>> {
        match result {
            Ok(answer) if !answer.status().is_server_error() => {
                self.0.deposit();
                None
            }
            _ => self.0.withdraw().then(|| ready(())),
        }
    }

    fn clone_request(&mut self, request: &Request<Full<Bytes>>) -> Option<Request<Full<Bytes>>> {
        Some(request.clone())
    }
}

#[derive(Clone)]
struct Extension(#[allow(dead_code, reason = "carried only")] Arc<str>);

/// Eight headers and 200 bytes, the first candidate's model asked for.
fn request() -> Request<Full<Bytes>> {
    let mut body = br#"{"model":"large","messages":[{"role":"user","content":""#.to_vec();
    body.resize(200 - 4, b'x');
    body.extend_from_slice(br#""}]}"#);
    assert_eq!(body.len(), 200);
    let mut request = Request::post("/v1/chat/completions")
        .body(Full::from(body))
        .unwrap();
    for (name, value) in [
        ("host", "api.example.com"),
        ("content-type", "application/json"),
        ("content-length", "200"),
        ("accept", "application/json"),
        ("authorization", "Bearer secret"),
        ("user-agent", "bench"),
        ("x-stainless-lang", "python"),
        ("x-session-id", "s"),
    ] {
        let name = HeaderName::from_static(name);
        let value = HeaderValue::from_static(value);
        request.headers_mut().insert(name, value);
    }
    request
}

fn stack(c: &mut Criterion) {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = rt.enter();
    let template = request();
    let mut group = c.benchmark_group("T4_call_ready_stack");
    macro_rules! bench {
        ($name:literal, $layer:expr) => {
            bench!($name, $layer, |_| {});
        };
        ($name:literal, $layer:expr, $prepare:expr) => {
            let mut service = $layer.layer(Upstream);
            group.bench_function($name, |b| {
                let mut cx = Context::from_waker(Waker::noop());
                b.iter(|| {
                    let mut request = template.clone();
                    $prepare(&mut request);
                    let mut future = pin!(service.call(request));
                    match future.as_mut().poll(&mut cx) {
                        Poll::Ready(answer) => drop(black_box(answer)),
                        Poll::Pending => panic!("the upstream is ready"),
                    }
                });
            });
        };
    }
    bench!("bare", Identity::new());
    let budget = RetryBudget::new();
    let candidates = || [Candidate::new("large"), Candidate::new("small")];
    bench!(
        "tower_agent",
        ServiceBuilder::new()
            .layer(ClientDisconnectLayer::new())
            .layer(HardCeilingLayer::new(LIMIT))
            .layer(StepTimeoutLayer::new(LIMIT))
            .layer(ModelFallbackLayer::new(candidates()).budget(budget.clone()))
            .layer(RetryBudgetLayer::new(budget.clone()))
            .into_inner()
    );
    bench!("retry_budget", RetryBudgetLayer::new(budget.clone()));
    bench!("model_fallback", ModelFallbackLayer::new(candidates()));
    bench!("tower_timeout", tower::timeout::TimeoutLayer::new(LIMIT));
    let tps = Arc::new(TpsBudget::default());
    bench!("tower_retry", tower::retry::RetryLayer::new(Attempts(tps)));
    let status = http::StatusCode::GATEWAY_TIMEOUT;
    bench!(
        "tower_http_timeout",
        tower_http::timeout::TimeoutLayer::with_status_code(status, LIMIT)
    );
    let name: Arc<str> = "name".into();
    bench!(
        "extension_insert",
        Identity::new(),
        |request: &mut Request<_>| {
            request
                .extensions_mut()
                .insert(Extension(Arc::clone(&name)));
        }
    );
    group.finish();
}

criterion_group!(benches, stack);
criterion_main!(benches);
