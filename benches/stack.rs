//! What the five layers together cost a call, and the layers of a gateway a frame: T4, T14.
//!
//! `cargo bench --bench stack`.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

mod support;

use std::{
    future::{Future, Ready, ready},
    hint::black_box,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use http::{Request, Response};
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

use support::{
    Answers, EVENT, FRAMES, Frames, LIMIT, drain, full_stack, prompt, ready_after, runtime,
};

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

fn stack(c: &mut Criterion) {
    let rt = runtime();
    let _entered = rt.enter();
    let template = prompt();
    let upstream = Answers {
        body: Empty::<Bytes>::new(),
        events: false,
    };
    let mut group = c.benchmark_group("T4_call_ready_stack");
    macro_rules! bench {
        ($name:literal, $layer:expr) => {
            bench!($name, $layer, |_| {});
        };
        ($name:literal, $layer:expr, $prepare:expr) => {
            let mut service = $layer.layer(upstream.clone());
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

/// A frame of a stream through the layers of a gateway, after one `Pending`: T14.
fn frame(c: &mut Criterion) {
    let rt = runtime();
    let _entered = rt.enter();
    let mut group = c.benchmark_group("T14_stack_frame_pending");
    group.throughput(Throughput::Elements(FRAMES as u64));
    let upstream = Answers {
        body: Frames::pending(EVENT),
        events: true,
    };
    macro_rules! bench {
        ($name:literal, $service:expr) => {
            let mut service = $service;
            group.bench_function($name, |b| {
                let mut answer = || ready_after(service.call(prompt())).unwrap().into_body();
                b.iter_batched(&mut answer, drain, BatchSize::SmallInput);
            });
        };
    }
    bench!("bare", upstream.clone());
    bench!("tower_agent", full_stack(upstream.clone()));
    let timeout = tower_http::timeout::ResponseBodyTimeoutLayer::new(LIMIT);
    bench!("tower_http", timeout.layer(upstream));
    group.finish();
}

criterion_group!(benches, stack, frame);
criterion_main!(benches);
