//! Chains of thousands of sub-agents.
//!
//! Times on a busy machine say little, so the tests compare a chain with one of a quarter of its
//! length: what visits each node once takes four times as long, and what visits the nodes below
//! each node sixteen times.
//!
//! covers: C9, C10

use std::time::{Duration, Instant};

use http::Response;
use tower::{Layer, ServiceExt};
use tower_agent::{Run, RunLayer, RunRegistry, TerminalReason, layers::run::RequestRun};

use super::{id, us};
use crate::support::{ReadExt, Upstream, healthy, request};

const FEW: usize = 750;
const MANY: usize = 3_000;

/// The least of five times, each of a new chain of this length.
async fn least(length: usize, of: impl AsyncFn(usize) -> Duration) -> Duration {
    let mut least = Duration::MAX;
    for _ in 0..5 {
        least = least.min(of(length).await);
    }
    least
}

async fn is_linear(what: &str, of: impl AsyncFn(usize) -> Duration) {
    let (mut few, mut many) = (Duration::MAX, Duration::MAX);
    // On a busy machine the first rounds may tell nothing.
    for _ in 0..4 {
        few = few.min(least(FEW, &of).await);
        many = many.min(least(MANY, &of).await);
        println!("{what}: {few:?} for {FEW}, {many:?} for {MANY}");
        if many < few.max(Duration::from_millis(1)) * 10 {
            return;
        }
    }
    panic!("{what}: {few:?}, then {many:?}");
}

/// A chain by the program, with a call in flight in each run.
fn chain(registry: &RunRegistry, length: usize) -> (Run, Vec<Run>, Vec<http::Request<()>>) {
    let root = registry.open(us(), id("root"));
    let (mut runs, mut calls) = (vec![root.clone()], Vec::new());
    for _ in 1..length {
        let run = runs[runs.len() - 1].child();
        calls.push(run.attach(request()));
        runs.push(run);
    }
    (root, runs, calls)
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_a_programs_children_is_listed_drained_and_shut_down_in_one_walk() {
    is_linear("list", async |length| {
        let registry = RunRegistry::new();
        let _chain = chain(&registry, length);
        let began = Instant::now();
        assert_eq!(registry.list().len(), 1);
        began.elapsed()
    })
    .await;
    is_linear("shutdown", async |length| {
        let registry = RunRegistry::new();
        let (root, runs, calls) = chain(&registry, length);
        let began = Instant::now();
        assert_eq!(registry.shutdown(), 1);
        let took = began.elapsed();
        assert_eq!(
            runs[length - 1].terminal_reason(),
            Some(TerminalReason::Shutdown)
        );
        drop((root, calls, runs));
        took
    })
    .await;
    is_linear("drain", async |length| {
        let registry = RunRegistry::new();
        let (_root, runs, calls) = chain(&registry, length);
        let began = Instant::now();
        let drain = registry.drain(Duration::from_secs(30));
        let took = began.elapsed();
        drop(calls);
        assert_eq!(drain.await, 0);
        assert_eq!(
            runs[length - 1].terminal_reason(),
            Some(TerminalReason::Shutdown)
        );
        took
    })
    .await;
}

/// Opens a chain of sub-agents by the requests of one caller.
async fn by_requests(registry: &RunRegistry, length: usize) {
    let layer = RunLayer::new(registry.clone()).owner_by(|_| us());
    let service = layer.layer(Upstream::script(healthy()));
    for n in 0..length {
        let mut request = request();
        let mut run = RequestRun::new(id(&format!("r-{n}")));
        if n > 0 {
            run = run.child_of(id(&format!("r-{}", n - 1)));
        }
        request.extensions_mut().insert(run);
        let answer: Response<_> = service.clone().oneshot(request).await.unwrap();
        answer.into_body().read().await.whole();
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_by_requests_is_paged_and_drained_in_one_walk() {
    is_linear("page", async |length| {
        let registry = RunRegistry::new();
        by_requests(&registry, length).await;
        let began = Instant::now();
        assert_eq!(registry.page(None, 100).runs.len(), 100);
        began.elapsed()
    })
    .await;
    is_linear("drain", async |length| {
        let registry = RunRegistry::new();
        by_requests(&registry, length).await;
        let began = Instant::now();
        assert_eq!(registry.drain(Duration::from_secs(30)).await, 0);
        began.elapsed()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn requests_build_sixteen_levels_and_deeper_runs_end_with_the_last_of_them() {
    let registry = RunRegistry::new();
    by_requests(&registry, 40).await;
    let parent = |n: usize| {
        let run = registry.get(us(), &id(&format!("r-{n}"))).unwrap();
        run.snapshot().parent.map(|parent| parent.to_string())
    };
    assert_eq!(parent(0), None);
    for n in 1..40 {
        let above = (n - 1).min(15);
        assert_eq!(parent(n), Some(format!("r-{above}")));
    }

    registry.abort(us(), &id("r-3"));

    let last = registry.get(us(), &id("r-39")).unwrap();
    assert_eq!(last.terminal_reason(), Some(TerminalReason::Aborted));
    let second = registry.get(us(), &id("r-2")).unwrap();
    assert_eq!(second.terminal_reason(), None);
}
