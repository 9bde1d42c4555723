//! What it costs to end a session of many runs, T12, and whether a run costs the
//! same however many there are, T13.
//!
//!     cargo bench --bench registry && python3 benches/cost.py
//!
//! Each run has a call in flight, behind a ceiling, and somebody who waits for the
//! run: both are woken. Beside it: as many children of one `CancellationToken`, each
//! with two who wait, which know no reason, no id and no observer. T13 is a run's
//! share of opening, waiting for and ending all of them; past 10,000 each end also
//! forgets another run.
//!
//! Where other programs are running the counts of instructions say more than times:
//! `valgrind --tool=callgrind` on the bench's binary with `--bench --test T12`.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, Owner, RunLayer, RunRegistry, registry::WaitOutcome,
};

const RUNS: usize = 10_000;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An answer that says nothing.
struct Silent;

impl Body for Silent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

type Call = Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>;
type Wait = Pin<Box<dyn Future<Output = WaitOutcome>>>;

/// A session of `runs`, each with a call and one who waits for the run.
async fn open(registry: &RunRegistry, runs: usize, woken: &Arc<Woken>) -> Vec<(Call, Wait)> {
    let waker = Waker::from(Arc::clone(woken));
    let mut cx = Context::from_waker(&waker);
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()).owner_by(|_| Owner::default()))
        .layer(HardCeilingLayer::new(Duration::from_secs(600)))
        .service(service_fn(|_: Request<()>| async {
            Ok::<_, std::io::Error>(Response::new(Silent))
        }));
    let mut all = Vec::with_capacity(runs);
    for n in 0..runs {
        let mut request = Request::new(());
        let name = format!("r-{n}");
        let headers = request.headers_mut();
        headers.insert("x-run-id", HeaderValue::try_from(&name).unwrap());
        headers.insert("x-session-id", HeaderValue::from_static("s"));
        let answer = service.clone().oneshot(request).await.unwrap();
        let mut call: Call = Box::pin(answer.into_body());
        assert!(call.as_mut().poll_frame(&mut cx).is_pending());
        let id = name.parse().unwrap();
        let wait = registry.wait(Owner::default(), &id, RunRegistry::WAIT);
        let mut wait: Wait = Box::pin(wait);
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        all.push((call, wait));
    }
    all
}

/// All are latched and woken.
fn end(registry: &RunRegistry, runs: usize, woken: &Woken) {
    let aborted = registry.abort_session(Owner::default(), "s");
    assert_eq!(aborted.len(), runs);
    assert_eq!(woken.0.load(Ordering::Relaxed), 2 * runs);
}

fn end_a_session(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let mut group = c.benchmark_group("T12_end_a_session");
    group.sample_size(20);
    group.bench_function("tower_agent", |b| {
        let setup = || {
            let _inside = runtime.enter();
            let registry = RunRegistry::new();
            let woken = Arc::new(Woken::default());
            let all = runtime.block_on(open(&registry, RUNS, &woken));
            (registry, woken, all)
        };
        b.iter_batched(
            setup,
            |(registry, woken, all)| {
                end(&registry, RUNS, &woken);
                (registry, all)
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("cancellation_tokens", |b| {
        let setup = || {
            let root = CancellationToken::new();
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut cx = Context::from_waker(&waker);
            let waits: Vec<_> = (0..RUNS)
                .map(|_| {
                    let token = root.child_token();
                    [token.clone(), token].map(|token| {
                        let mut wait = Box::pin(token.cancelled_owned());
                        assert!(wait.as_mut().poll(&mut cx).is_pending());
                        wait
                    })
                })
                .collect();
            (root, woken, waits)
        };
        b.iter_batched(
            setup,
            |(root, woken, waits)| {
                root.cancel();
                assert_eq!(woken.0.load(Ordering::Relaxed), 2 * RUNS);
                (root, waits)
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Opened, waited for, ended with the others, told.
fn a_run_among_many(c: &mut Criterion) {
    let runtime = Runtime::new().unwrap();
    let mut group = c.benchmark_group("T13_a_run_among_many");
    group.sample_size(10);
    for runs in [10, 100, 1_000, 10_000, 100_000] {
        group.bench_function(runs.to_string(), |b| {
            let _inside = runtime.enter();
            b.iter_batched(
                RunRegistry::new,
                |registry| {
                    let woken = Arc::new(Woken::default());
                    let all = runtime.block_on(open(&registry, runs, &woken));
                    end(&registry, runs, &woken);
                    (registry, all)
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, end_a_session, a_run_among_many);
criterion_main!(benches);
