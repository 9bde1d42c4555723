use std::{sync::Arc, time::Duration};

use tokio::time;

use crate::{
    attempt::budget::{
        Count, Jitter, NextAttempt, RetryBudget,
        bucket::{NAME, NAMES},
    },
    llm::failure::FailureClass,
    run::Run,
};

fn granted(budget: &RetryBudget, candidate: Option<&str>) -> usize {
    let grants = std::iter::from_fn(|| budget.withdraw(candidate));
    grants.take(100).map(|grant| grant.spend()).count()
}

#[tokio::test(start_paused = true)]
async fn by_default_the_floor_is_ten_and_the_ratio_a_fifth() {
    let budget = RetryBudget::default();
    assert_eq!(granted(&budget, None), 10);

    for _ in 0..5 {
        budget.deposit(None);
    }
    assert_eq!(granted(&budget, None), 1);

    time::advance(Duration::from_millis(500)).await;
    assert_eq!(granted(&budget, None), 5);
}

#[test]
fn the_defaults_are_what_the_setters_say() {
    let budget = RetryBudget::new();
    let settings = budget.settings();
    assert_eq!(settings.max_attempts_per_candidate, 2);
    assert_eq!(
        (settings.per_error_key, settings.per_run),
        (Some(3), Some(10))
    );
    assert_eq!(settings.delays.base, Duration::from_millis(500));
    assert_eq!(settings.delays.max, Duration::from_secs(8));
    assert_eq!(settings.delays.jitter, Jitter::Full);
    assert_eq!(settings.max_retry_after, Duration::from_secs(60));
    assert_eq!(settings.min_attempt, Duration::from_millis(100));
    assert_eq!(settings.count, Count::Harness);
}

#[test]
fn a_setter_changes_its_setting() {
    let (short, long) = (Duration::from_millis(7), Duration::from_secs(9));
    let budget = RetryBudget::new()
        .max_attempts_per_candidate(5)
        .per_error_key(None)
        .per_run(4)
        .delays(short, long)
        .jitter(Jitter::Decorrelated)
        .max_retry_after(long)
        .min_attempt(short)
        .count(Count::Every);
    let settings = budget.settings();
    assert_eq!(settings.max_attempts_per_candidate, 5);
    assert_eq!((settings.per_error_key, settings.per_run), (None, Some(4)));
    assert_eq!((settings.delays.base, settings.delays.max), (short, long));
    assert_eq!(settings.delays.jitter, Jitter::Decorrelated);
    assert_eq!(
        (settings.max_retry_after, settings.min_attempt),
        (long, short)
    );
    assert_eq!(settings.count, Count::Every);
}

#[test]
#[should_panic(expected = "at least one attempt")]
fn no_attempt_at_all_is_no_setting() {
    drop(RetryBudget::new().max_attempts_per_candidate(0));
}

#[test]
fn clones_share_what_was_spent_and_not_their_settings() {
    let budget = RetryBudget::new().shared(1.0, 0);
    let other = budget.clone().max_attempts_per_candidate(7);
    assert_eq!(budget.settings().max_attempts_per_candidate, 2);

    budget.deposit(Some("a"));
    assert_eq!(granted(&other, Some("a")), 1);
    assert_eq!(granted(&budget, Some("a")), 0);

    budget.deposit(None);
    let anew = budget.clone().shared(1.0, 0);
    assert_eq!(granted(&anew, None), 0, "nothing is shared any more");
    assert_eq!(granted(&budget, None), 1);
}

#[test]
fn a_candidate_does_not_starve_another() {
    let budget = RetryBudget::new().shared(1.0, 0);
    budget.deposit(Some("a"));
    budget.deposit(Some("b"));
    budget.deposit(None);
    for candidate in [Some("a"), Some("b"), None] {
        assert_eq!(granted(&budget, candidate), 1);
    }
}

#[test]
fn an_unshared_budget_always_grants() {
    let budget = RetryBudget::new().shared(0.0, 0).unshared();
    budget.deposit(None);
    assert_eq!(granted(&budget, Some("a")), 100);
    assert!(budget.bucket(None).is_none());
}

#[test]
fn names_beyond_the_bound_share_one_bucket() {
    let budget = RetryBudget::new().shared(1.0, 0);
    for name in 0..NAMES {
        budget.deposit(Some(&format!("known {name}")));
    }
    let bucket = |name: &str| budget.bucket(Some(name)).unwrap();

    assert!(Arc::ptr_eq(bucket("late"), bucket("later")));
    assert!(!Arc::ptr_eq(bucket("late"), bucket("known 0")));
    assert!(!Arc::ptr_eq(bucket("late"), budget.bucket(None).unwrap()));

    assert_eq!(granted(&budget, Some("late")), 0, "governed");
    budget.deposit(Some("late"));
    assert_eq!(granted(&budget, Some("later")), 1);
    assert_eq!(granted(&budget, Some("known 255")), 1);
}

#[test]
fn threads_that_name_a_candidate_first_find_one_bucket() {
    let budget = RetryBudget::new();
    let names: Vec<_> = (0..NAMES).map(|name| name.to_string()).collect();
    let barrier = std::sync::Barrier::new(3);
    let look_up = || {
        barrier.wait();
        let buckets = names.iter().map(|name| budget.bucket(Some(name)).unwrap());
        buckets.collect::<Vec<_>>()
    };

    let found = std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(look_up));
        threads.map(|thread| thread.join().unwrap())
    });

    for (place, bucket) in found[0].iter().enumerate() {
        assert!(found.iter().all(|found| Arc::ptr_eq(found[place], bucket)));
        let same = found[0].iter().filter(|other| Arc::ptr_eq(other, bucket));
        assert_eq!(same.count(), 1, "each has its own");
    }
}

#[test]
fn a_name_too_long_to_keep_is_not_kept() {
    let budget = RetryBudget::new();
    let bucket = |length: usize| budget.bucket(Some(&"x".repeat(length))).unwrap();
    assert!(Arc::ptr_eq(bucket(NAME + 1), bucket(NAME + 2)));
    assert!(!Arc::ptr_eq(bucket(NAME + 1), bucket(NAME)));
    assert!(Arc::ptr_eq(bucket(NAME), bucket(NAME)));
}

#[test]
fn a_grant_goes_back_unless_it_is_spent() {
    let budget = RetryBudget::new().shared(1.0, 0);
    budget.deposit(None);

    let grant = budget.withdraw(None).unwrap();
    assert!(budget.withdraw(None).is_none());
    drop(grant);

    budget.withdraw(None).expect("it went back").spend();
    assert!(budget.withdraw(None).is_none(), "it did not go back");
}

#[test]
fn an_owned_grant_goes_back_once_too() {
    let budget = RetryBudget::new().shared(1.0, 0);
    budget.deposit(None);

    let grant = budget.withdraw(None).unwrap().into_owned();
    assert!(budget.withdraw(None).is_none(), "still held");
    drop(grant);
    let grant = budget.withdraw(None).expect("it went back").into_owned();
    assert!(budget.withdraw(None).is_none(), "it went back once");

    grant.into_owned().spend();
    assert!(budget.withdraw(None).is_none(), "it did not go back");
}

#[test]
fn a_hook_may_refuse() {
    let run = Run::open();
    let next = |attempt| NextAttempt {
        run: &run,
        attempt,
        candidate: Some("a"),
        after: FailureClass::Overloaded,
    };
    let budget = RetryBudget::new();
    assert!(budget.allows(&next(9)));

    let budget = budget.before_attempt(|next| next.attempt < 3 && next.candidate == Some("a"));
    assert!(budget.allows(&next(2)));
    assert!(!budget.allows(&next(3)));
    assert!(format!("{budget:?}").contains("before_attempt: true"));
}

#[test]
fn counts_have_the_limits_of_the_budget() {
    use crate::run::{ErrorAllowance, ErrorKey};

    let key = ErrorKey::new("tool", "failed");
    let counts = RetryBudget::new().per_error_key(0).counts();
    assert_eq!(counts.count(key), ErrorAllowance::KeySpent);
    let counts = RetryBudget::new().per_run(0).counts();
    assert_eq!(counts.count(key), ErrorAllowance::RunSpent);
}
