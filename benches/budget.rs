//! What a retry budget costs: T6, T6b.
//!
//! `cargo bench --bench budget`. One operation is a deposit and a withdrawal,
//! which is granted; with two threads it is the time until both have done
//! theirs, per operation of one thread.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use std::{hint::black_box, sync::Barrier, thread, time::Duration};

use criterion::{Criterion, criterion_group, criterion_main};
use tokio::time::Instant;
use tower::retry::budget::{Budget, TpsBudget};
use tower_agent::{
    RetryBudget,
    run::{ErrorAllowance, ErrorKey},
};

/// As many repeats as first attempts, so that each pair is granted.
fn ours() -> RetryBudget {
    RetryBudget::new().shared(1.0, 10)
}

fn towers() -> TpsBudget {
    TpsBudget::new(Duration::from_secs(10), 10, 1.0)
}

fn pair(budget: &RetryBudget, candidate: Option<&str>) {
    budget.deposit(candidate);
    budget.withdraw(candidate).unwrap().spend();
}

/// As a future would keep the grant while it waits.
fn owned_pair(budget: &RetryBudget) {
    budget.deposit(None);
    budget.withdraw(None).unwrap().into_owned().spend();
}

fn towers_pair(budget: &TpsBudget) {
    budget.deposit();
    assert!(black_box(budget.withdraw()));
}

fn one_thread(c: &mut Criterion) {
    let mut group = c.benchmark_group("T6_budget_1_thread");
    let budget = ours();
    group.bench_function("tower_agent", |b| b.iter(|| pair(&budget, None)));
    group.bench_function("tower_agent_owned", |b| b.iter(|| owned_pair(&budget)));
    group.bench_function("tower_agent_named", |b| {
        b.iter(|| pair(&budget, black_box(Some("gpt-4.1"))));
    });
    let budget = towers();
    group.bench_function("tower", |b| b.iter(|| towers_pair(&budget)));
    group.finish();
}

fn two_threads(c: &mut Criterion) {
    let mut group = c.benchmark_group("T6_budget_2_threads");
    let budget = ours();
    group.bench_function("tower_agent", |b| {
        b.iter_custom(|times| together(times, || pair(&budget, None)));
    });
    group.bench_function("tower_agent_owned", |b| {
        b.iter_custom(|times| together(times, || owned_pair(&budget)));
    });
    group.bench_function("tower_agent_named", |b| {
        b.iter_custom(|times| together(times, || pair(&budget, black_box(Some("gpt-4.1")))));
    });
    let budget = towers();
    group.bench_function("tower", |b| {
        b.iter_custom(|times| together(times, || towers_pair(&budget)));
    });
    group.finish();
}

/// How long two threads take that do it `times` times each, at once.
fn together(times: u64, operation: impl Fn() + Sync) -> Duration {
    let barrier = Barrier::new(2);
    let work = || {
        barrier.wait();
        let start = Instant::now();
        (0..times).for_each(|_| operation());
        start.elapsed()
    };
    thread::scope(|scope| {
        let other = scope.spawn(work);
        work().max(other.join().unwrap())
    })
}

/// A failure reaches the harness: may it be tried again?
fn decision(c: &mut Criterion) {
    const MESSAGE: &str = "Rate limit reached, please try again in 1.2s (req_011CSHoEeqs5C35K2U)";

    let mut group = c.benchmark_group("T6b_decision");
    // Within the limits, however long the bench runs.
    let budget = ours().per_error_key(u32::MAX).per_run(u32::MAX);
    let counts = budget.counts();
    let decide = |key| {
        assert_eq!(counts.count(key), ErrorAllowance::Within);
        pair(&budget, None);
    };
    let key = ErrorKey::new("gpt-4.1", MESSAGE);
    group.bench_function("tower_agent", |b| b.iter(|| decide(black_box(key))));
    group.bench_function("tower_agent_and_key", |b| {
        b.iter(|| decide(ErrorKey::new(black_box("gpt-4.1"), black_box(MESSAGE))));
    });
    group.bench_function("key_alone", |b| {
        b.iter(|| ErrorKey::new(black_box("gpt-4.1"), black_box(MESSAGE)));
    });
    let budget = towers();
    group.bench_function("tower", |b| b.iter(|| towers_pair(&budget)));
    group.finish();
}

criterion_group!(benches, one_thread, two_threads, decision);
criterion_main!(benches);
