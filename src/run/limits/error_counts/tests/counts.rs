use std::{sync::Barrier, thread};

use crate::run::limits::error_counts::{
    ErrorAllowance::{self, BothSpent, KeySpent, RunSpent, Within},
    ErrorCounts, ErrorKey, KEYS,
};

fn key(of: usize) -> ErrorKey {
    // As a subject, so that the number is not taken out.
    ErrorKey::new(&of.to_string(), "failed")
}

#[test]
fn the_fourth_of_a_key_is_one_too_many() {
    let counts = ErrorCounts::new(Some(3), Some(10));
    let verdicts = [1, 1, 2, 1, 1, 2, 1].map(|of| counts.count(key(of)));
    assert_eq!(
        verdicts,
        [Within, Within, Within, Within, KeySpent, Within, KeySpent]
    );
}

#[test]
fn the_eleventh_of_a_run_is_one_too_many() {
    let counts = ErrorCounts::new(Some(3), Some(10));
    for of in 0..10 {
        assert_eq!(counts.count(key(of)), Within);
    }
    assert_eq!(counts.count(key(10)), RunSpent);
    assert_eq!(counts.count(key(11)), RunSpent, "and so is each after it");
}

#[test]
fn a_key_and_the_run_may_be_spent_at_once() {
    let counts = ErrorCounts::new(Some(1), Some(1));
    let verdicts = [1, 1, 2].map(|of| counts.count(key(of)));
    assert_eq!(verdicts, [Within, BothSpent, RunSpent]);
}

#[test]
fn without_limits_nothing_is_too_much() {
    let counts = ErrorCounts::new(None, None);
    assert!((0..10_000).all(|of| counts.count(key(of % 2)) == Within));
}

#[test]
fn tightening_keeps_the_smaller_and_what_was_counted() {
    let counts = ErrorCounts::new(None, Some(2));
    assert_eq!(counts.count(key(1)), Within);
    counts.tighten(Some(1), Some(9));
    assert_eq!(counts.count(key(2)), Within);
    assert_eq!(counts.count(key(3)), RunSpent, "nine is not smaller");
    assert_eq!(counts.count(key(1)), BothSpent);

    counts.tighten(Some(5), None);
    assert_eq!(counts.count(key(3)), BothSpent, "nor is five, or none");
}

#[test]
fn keys_beyond_the_bound_count_as_one() {
    let counts = ErrorCounts::new(Some(2), None);
    for of in 0..KEYS {
        assert_eq!(counts.count(key(of)), Within);
    }
    let late = [0, 1, 2].map(|of| counts.count(key(KEYS + of)));
    assert_eq!(late, [Within, Within, KeySpent]);
    let known = [KEYS - 1, KEYS - 1].map(|of| counts.count(key(of)));
    assert_eq!(known, [Within, KeySpent]);
}

#[test]
fn threads_count_each_failure_once() {
    const THREADS: usize = 4;
    const EACH: usize = 2_000;
    let limit = u32::try_from(THREADS * EACH / 2).unwrap();
    let counts = ErrorCounts::new(Some(limit / 2), Some(limit));
    let barrier = Barrier::new(THREADS);
    let work = &|thread: usize| {
        barrier.wait();
        let verdicts = (0..EACH).map(|round| match thread % 2 {
            // Half of the failures share a key, the others are of many.
            0 => counts.count(key(0)),
            _ => counts.count(key(1 + (round + thread) % 60)),
        });
        verdicts.collect::<Vec<_>>()
    };

    let verdicts = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });

    let of = |verdict: ErrorAllowance| verdicts.iter().filter(|other| **other == verdict).count();
    // 4,000 of one key with a limit of 2,000; of the others none comes near.
    assert_eq!(of(KeySpent) + of(BothSpent), 2_000);
    // In all the first 4,000 are within the run, whatever their keys are.
    assert_eq!(of(Within) + of(KeySpent), 4_000);
    assert_eq!(of(RunSpent) + of(BothSpent), THREADS * EACH - 4_000);
}
