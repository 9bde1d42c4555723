//! What a layer costs per frame of a body: T1, T1b, T2.
//!
//! `cargo bench --bench frames`; a body has 1024 frames, times are per body.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

mod support;

use bytes::Bytes;
use criterion::measurement::WallTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main,
};
use http_body::Body;
use tokio::runtime::Runtime;
use tower::{Layer, Service, ServiceBuilder};
use tower_agent::{
    HardCeilingLayer, Run, StepTimeoutLayer, TimeLimitsLayer, llm::stream::StreamReader,
};

use support::{EVENT, FRAMES, Frames, LIMIT, Slot, SlotUpstream, TOKEN, drain, request, runtime};

/// The answer of `service`, ready to be read.
fn answer<S, B>(rt: &Runtime, mut service: S, run: &Run) -> B
where
    S: Service<http::Request<()>, Response = http::Response<B>>,
    S::Error: std::fmt::Debug,
{
    let mut request = request("/v1/chat/completions");
    request.extensions_mut().insert(run.clone());
    rt.block_on(service.call(request)).unwrap().into_body()
}

fn read<B>(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, rt: &Runtime, body: impl Fn() -> B)
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    group.bench_function(name, |b| {
        let _entered = rt.enter();
        b.iter_batched(&body, drain, BatchSize::SmallInput);
    });
}

fn upstream(body: Frames, events: bool) -> SlotUpstream<Frames> {
    SlotUpstream {
        slot: Slot::default(),
        body,
        events,
        pending: false,
    }
}

/// Both clocks, as they stand in a stack.
fn timed(
    upstream: SlotUpstream<Frames>,
) -> impl Service<
    http::Request<()>,
    Response = http::Response<impl Body<Data = Bytes, Error = tower_agent::BoxError>>,
    Error = tower_agent::BoxError,
> {
    ServiceBuilder::new()
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT))
        .service(upstream)
}

/// The same as `AgentStack` makes them.
fn limited(
    upstream: SlotUpstream<Frames>,
) -> impl Service<
    http::Request<()>,
    Response = http::Response<impl Body<Data = Bytes, Error = tower_agent::BoxError>>,
    Error = tower_agent::BoxError,
> {
    TimeLimitsLayer::new(HardCeilingLayer::new(LIMIT), StepTimeoutLayer::new(LIMIT)).layer(upstream)
}

fn group(c: &mut Criterion, name: &str, frames: fn(&'static [u8]) -> Frames) {
    let rt = runtime();
    let run = Run::open();
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Elements(FRAMES as u64));
    let plain = upstream(frames(TOKEN), false);
    read(&mut group, "bare", &rt, || answer(&rt, plain.clone(), &run));
    read(&mut group, "tower_agent", &rt, || {
        answer(&rt, timed(plain.clone()), &run)
    });
    read(&mut group, "agent_stack", &rt, || {
        answer(&rt, limited(plain.clone()), &run)
    });
    let layer = tower_http::timeout::ResponseBodyTimeoutLayer::new(LIMIT);
    read(&mut group, "tower_http", &rt, || {
        answer(&rt, layer.layer(plain.clone()), &run)
    });
    group.finish();
}

fn ready(c: &mut Criterion) {
    group(c, "T1_frame_ready", Frames::ready);
}

fn pending(c: &mut Criterion) {
    group(c, "T2_frame_pending", Frames::pending);
}

fn sse(c: &mut Criterion) {
    let rt = runtime();
    let run = Run::open();
    let mut group = c.benchmark_group("T1b_frame_sse");
    group.throughput(Throughput::Elements(FRAMES as u64));
    let events = upstream(Frames::ready(EVENT), true);
    read(&mut group, "bare", &rt, || {
        answer(&rt, events.clone(), &run)
    });
    // Judging alone, T7: what every way of telling tokens from pings must do.
    group.bench_function("judge", |b| {
        b.iter_batched(
            || StreamReader::new(tower_agent::llm::dialect::Dialect::OpenAiChat),
            |mut judge| {
                for _ in 0..FRAMES {
                    std::hint::black_box(judge.push(std::hint::black_box(EVENT)));
                }
                judge
            },
            BatchSize::SmallInput,
        );
    });
    read(&mut group, "tower_agent", &rt, || {
        answer(&rt, timed(events.clone()), &run)
    });
    let layer = tower_http::timeout::ResponseBodyTimeoutLayer::new(LIMIT);
    read(&mut group, "tower_http", &rt, || {
        answer(&rt, layer.layer(events.clone()), &run)
    });
    group.finish();
}

criterion_group!(benches, ready, sse, pending);
criterion_main!(benches);
