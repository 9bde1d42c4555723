use std::time::Duration;

use super::super::{Retry, SharedBudget};
use super::{message, with_candidate};

const OFF: Retry = Retry {
    attempts: 1,
    per_error_key: None,
    per_run: None,
    consecutive_errors: None,
    shared: None,
    base_delay: Duration::from_millis(500),
    max_delay: Duration::from_secs(8),
    max_retry_after: Duration::from_secs(60),
};

const PRESET: Retry = Retry {
    attempts: 2,
    per_error_key: Some(3),
    per_run: Some(10),
    shared: Some(SharedBudget {
        ratio: 0.2,
        floor: 10,
    }),
    ..OFF
};

#[track_caller]
fn retry(head: &str) -> Retry {
    with_candidate(head).unwrap().retry
}

fn shared(keys: &str) -> Option<SharedBudget> {
    retry(&format!("[retry]\n{keys}")).shared
}

#[test]
fn without_a_table_nothing_is_repeated() {
    assert_eq!(retry(""), OFF);
}

#[test]
fn an_empty_table_repeats_once_and_counts_nothing() {
    assert_eq!(retry("[retry]"), Retry { attempts: 2, ..OFF });
}

#[test]
fn the_preset_fills_in_its_numbers_with_and_without_the_table() {
    let preset = "preset = \"recommended\"\n";
    let more = Retry {
        attempts: 5,
        ..PRESET
    };

    assert_eq!(retry(preset), PRESET);
    assert_eq!(retry(&format!("{preset}[retry]")), PRESET);
    let table = "[retry]\nmax_attempts_per_candidate = 5";
    assert_eq!(retry(&format!("{preset}{table}")), more);
}

#[test]
fn zero_switches_a_count_off() {
    let off = retry(
        "preset = \"recommended\"\n[retry]\nper_error_key = 0\nper_run = 0\n\
         shared_ratio = 0\nshared_floor = 0",
    );

    assert_eq!(off, Retry { attempts: 2, ..OFF });
}

#[test]
fn one_of_what_is_shared_brings_the_other_along() {
    let ratio = SharedBudget {
        ratio: 1.0,
        floor: 10,
    };
    let floor = SharedBudget {
        ratio: 0.2,
        floor: 3,
    };
    let only_floor = SharedBudget {
        ratio: 0.0,
        ..floor
    };

    assert_eq!(shared("shared_ratio = 1"), Some(ratio));
    assert_eq!(shared("shared_floor = 3"), Some(floor));
    let keys = "shared_ratio = 0.0\nshared_floor = 3";
    assert_eq!(shared(keys), Some(only_floor));
}

#[test]
fn a_wait_of_zero_is_none() {
    let retry = retry("[retry]\nbase_delay = \"0s\"\nmax_delay = \"0s\"\nmax_retry_after = \"0s\"");

    assert_eq!(retry.base_delay, Duration::ZERO);
    assert_eq!(retry.max_delay, Duration::ZERO);
    assert_eq!(retry.max_retry_after, Duration::ZERO);
}

#[test]
fn wrong_numbers_name_key_value_and_place() {
    let attempts = "is not a whole number from 1 to 100";
    let failures = "is not a whole number from 0 to 1000000";
    let ratio = "is not a number from 0 to 10";
    for (key, value, why) in [
        ("max_attempts_per_candidate", "0", attempts),
        ("max_attempts_per_candidate", "101", attempts),
        ("max_attempts_per_candidate", "2.0", attempts),
        ("max_attempts_per_candidate", "\"2\"", attempts),
        ("per_error_key", "-1", failures),
        ("per_error_key", "1000001", failures),
        ("per_run", "true", failures),
        ("per_run", "4294967297", failures),
        ("shared_floor", "-3", failures),
        ("shared_floor", "[1]", failures),
        ("shared_ratio", "nan", ratio),
        ("shared_ratio", "inf", ratio),
        ("shared_ratio", "-0.1", ratio),
        ("shared_ratio", "10.5", ratio),
        ("shared_ratio", "\"a fifth\"", ratio),
    ] {
        let told = message(with_candidate(&format!("[retry]\n{key} = {value}")));

        let column = key.len() + 4;
        let wanted = format!("gateway.toml:2:{column}: retry.{key} = {value} {why}");
        assert_eq!(told, wanted);
    }
}

#[test]
fn wrong_waits_name_key_value_and_place() {
    for key in ["base_delay", "max_delay", "max_retry_after"] {
        let told = message(with_candidate(&format!("[retry]\n{key} = 5")));

        let column = key.len() + 4;
        let start = format!("gateway.toml:2:{column}: retry.{key} = 5 is not a duration");
        assert!(told.starts_with(&start), "{told}");
    }
}

#[test]
fn a_first_wait_is_no_longer_than_the_longest() {
    let base = message(with_candidate("[retry]\nbase_delay = \"10s\""));
    let max = retry("[retry]\nmax_delay = \"100ms\"");

    assert_eq!(
        base,
        "gateway.toml:2:14: retry.base_delay (10s) is longer than retry.max_delay (8s)"
    );
    assert_eq!(max.base_delay, Duration::from_millis(100));
    assert_eq!(max.max_delay, Duration::from_millis(100));
}
