//! What a layer costs per call: T3, T5.
//!
//! `cargo bench --bench layers`.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

mod support;

use std::{
    cell::Cell,
    future::Future,
    hint::black_box,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use criterion::{Criterion, criterion_group, criterion_main};
use http_body_util::Empty;
use tower::{Layer, Service, ServiceBuilder, layer::util::Identity};
use tower_agent::{
    ClientDisconnectLayer, HardCeilingLayer, Run, StepTimeoutLayer, TimeLimitsLayer,
};

use support::{Slot, SlotUpstream, request, runtime};

const LIMIT: Duration = Duration::from_secs(600);

fn upstream(slot: &Slot, pending: bool) -> SlotUpstream<Empty<Bytes>> {
    SlotUpstream {
        slot: Rc::clone(slot),
        // Nothing follows the head: dropping the answer is no disconnect.
        body: Empty::new(),
        events: false,
        pending,
    }
}

/// A slot with a request that carries an open run.
fn slot(run: &Run) -> Slot {
    let mut request = request("/v1/chat/completions");
    request.extensions_mut().insert(run.clone());
    Rc::new(Cell::new(Some(request)))
}

fn one_layer(c: &mut Criterion) {
    let rt = runtime();
    let _entered = rt.enter();
    let run = Run::open();
    let slot = slot(&run);
    let mut group = c.benchmark_group("T3_call_ready_one_layer");
    macro_rules! bench {
        ($name:literal, $layer:expr) => {
            let mut service = $layer.layer(upstream(&slot, false));
            group.bench_function($name, |b| {
                let mut cx = Context::from_waker(Waker::noop());
                b.iter(|| {
                    let request = slot.take().expect("the upstream put it back");
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
    bench!("tower_agent", StepTimeoutLayer::new(LIMIT));
    bench!("tower_agent_ceiling", HardCeilingLayer::new(LIMIT));
    bench!("tower_agent_disconnect", ClientDisconnectLayer::new());
    bench!("tower", tower::timeout::TimeoutLayer::new(LIMIT));
    bench!("tower_http", http_timeout());
    group.finish();
}

fn pending_stack(c: &mut Criterion) {
    let rt = runtime();
    let run = Run::open();
    let slot = slot(&run);
    let mut group = c.benchmark_group("T5_call_pending_stack");
    macro_rules! bench {
        ($name:literal, $layer:expr) => {
            let mut service = $layer.layer(upstream(&slot, true));
            group.bench_function($name, |b| {
                let _entered = rt.enter();
                let mut cx = Context::from_waker(Waker::noop());
                b.iter(|| {
                    let request = slot.take().expect("the upstream put it back");
                    let mut future = pin!(service.call(request));
                    assert!(future.as_mut().poll(&mut cx).is_pending());
                    match future.as_mut().poll(&mut cx) {
                        Poll::Ready(answer) => drop(black_box(answer)),
                        Poll::Pending => panic!("the upstream is ready the second time"),
                    }
                });
            });
        };
    }
    bench!("bare", Identity::new());
    bench!(
        "tower_agent",
        ServiceBuilder::new()
            .layer(ClientDisconnectLayer::new())
            .layer(HardCeilingLayer::new(LIMIT))
            .layer(StepTimeoutLayer::new(LIMIT))
            .into_inner()
    );
    bench!(
        "agent_stack",
        ServiceBuilder::new()
            .layer(ClientDisconnectLayer::new())
            .layer(TimeLimitsLayer::new(
                HardCeilingLayer::new(LIMIT),
                StepTimeoutLayer::new(LIMIT)
            ))
            .into_inner()
    );
    bench!("tower", tower::timeout::TimeoutLayer::new(LIMIT));
    bench!("tower_http", http_timeout());
    group.finish();
}

fn http_timeout() -> tower_http::timeout::TimeoutLayer {
    let status = http::StatusCode::GATEWAY_TIMEOUT;
    tower_http::timeout::TimeoutLayer::with_status_code(status, LIMIT)
}

criterion_group!(benches, one_layer, pending_stack);
criterion_main!(benches);
