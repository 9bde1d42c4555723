//! What it costs to end a session of many runs, T12, and whether a run costs the
//! same however many there are, T13.
//!
//! `cargo bench --bench registry`. Each run has somebody who waits for it. Beside
//! it: as many children of one `CancellationToken`, each waited for as well, which
//! know no reason, no id and no observer.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Wake, Waker},
};

use bytes::Bytes;
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{Owner, RunLayer, RunRegistry, run::RunWait};

const RUNS: usize = 10_000;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Waits = Vec<Pin<Box<RunWait>>>;

/// A session of `runs`.
async fn open(registry: &RunRegistry, runs: usize) {
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()).owner_by(|_| Owner::default()))
        .service(service_fn(|_: Request<()>| async {
            Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from_static(b"{}"))))
        }));
    for n in 0..runs {
        let mut request = Request::new(());
        let headers = request.headers_mut();
        let id = HeaderValue::try_from(format!("r-{n}")).unwrap();
        headers.insert("x-run-id", id);
        headers.insert("x-session-id", HeaderValue::from_static("s"));
        drop(service.clone().oneshot(request).await.unwrap());
    }
}

fn wait(registry: &RunRegistry, woken: &Arc<Woken>) -> Waits {
    let waker = Waker::from(Arc::clone(woken));
    let mut cx = Context::from_waker(&waker);
    let runs = registry.find_session("s").into_iter();
    let waits = runs.map(|run| {
        let mut wait = Box::pin(run.wait(RunRegistry::WAIT));
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        wait
    });
    waits.collect()
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
            runtime.block_on(open(&registry, RUNS));
            let waits = wait(&registry, &woken);
            (registry, woken, waits)
        };
        b.iter_batched(
            setup,
            |(registry, woken, waits)| {
                let aborted = registry.abort_session(Owner::default(), "s");
                assert_eq!(
                    (aborted.len(), woken.0.load(Ordering::Relaxed)),
                    (RUNS, RUNS)
                );
                (registry, waits, aborted)
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
                    let mut wait = Box::pin(root.child_token().cancelled_owned());
                    assert!(wait.as_mut().poll(&mut cx).is_pending());
                    wait
                })
                .collect();
            (root, woken, waits)
        };
        b.iter_batched(
            setup,
            |(root, woken, waits)| {
                root.cancel();
                assert_eq!(woken.0.load(Ordering::Relaxed), RUNS);
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
    for runs in [10, 1_000, 100_000] {
        group.bench_function(runs.to_string(), |b| {
            let _inside = runtime.enter();
            b.iter_batched(
                RunRegistry::new,
                |registry| {
                    let woken = Arc::new(Woken::default());
                    runtime.block_on(open(&registry, runs));
                    let waits = wait(&registry, &woken);
                    let aborted = registry.abort_session(Owner::default(), "s");
                    assert_eq!(aborted.len(), runs);
                    (registry, waits)
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, end_a_session, a_run_among_many);
criterion_main!(benches);
