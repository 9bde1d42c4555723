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
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Empty, Full};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    layer::util::Identity,
    retry::budget::{Budget, TpsBudget},
};
use tower_agent::{
    Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer, PumpLayer, RetryBudget,
    RetryBudgetLayer, StepTimeoutLayer,
};

use support::{
    Answers, EVENT, FRAMES, Frames, LIMIT, TOKEN, drain, full_stack, prompt, ready_after, runtime,
    server_stack,
};

/// Repeats what failed while the budget lasts, as tower's documentation shows.
#[derive(Clone)]
struct BudgetPolicy(Arc<TpsBudget>);

impl<E> tower::retry::Policy<Request<Full<Bytes>>, Response<Empty<Bytes>>, E> for BudgetPolicy {
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
    bench!(
        "tower_retry",
        tower::retry::RetryLayer::new(BudgetPolicy(tps))
    );
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
    bench!("agent_stack", server_stack(upstream.clone()));
    let timeout = tower_http::timeout::ResponseBodyTimeoutLayer::new(LIMIT);
    bench!("tower_http", timeout.layer(upstream));
    group.finish();
}

/// A call that a task reads to its end, with one `Pending` before each frame: what a pump adds to
/// the layer that ends a call with its caller.
fn pump(c: &mut Criterion) {
    let rt = runtime();
    let mut group = c.benchmark_group("pump_call");
    for frames in [1, 50] {
        let upstream = Answers {
            body: Frames::pending(TOKEN).of(frames),
            events: false,
        };
        macro_rules! bench {
            ($name:literal, $layer:expr) => {
                let service = ServiceBuilder::new()
                    .layer($layer)
                    .layer(HardCeilingLayer::new(LIMIT))
                    .service(upstream.clone());
                group.bench_function(BenchmarkId::new($name, frames), |b| {
                    b.iter(|| rt.block_on(rt.spawn(read(service.clone().oneshot(prompt())))));
                });
            };
        }
        bench!("disconnect", ClientDisconnectLayer::new());
        bench!("pump", PumpLayer::new());
        let drain = Some(LIMIT);
        bench!("pump_drain", PumpLayer::new().drain(drain));
    }
    group.finish();
}

/// Reads an answer to its end.
async fn read<F, B, E>(call: F)
where
    F: Future<Output = Result<Response<B>, E>>,
    E: std::fmt::Debug,
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let mut body = pin!(call.await.unwrap().into_body());
    while let Some(frame) = body.frame().await {
        black_box(frame.unwrap());
    }
}

criterion_group!(benches, stack, frame, pump);
criterion_main!(benches);
