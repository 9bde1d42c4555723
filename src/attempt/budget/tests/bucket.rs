//! covers: T29

use super::super::bucket::{Bucket, PermitSource, Rates, TOKEN};

const SECOND: u64 = 1_000_000_000;

fn bucket(ratio: f64, floor: u32) -> Bucket {
    Bucket::new(Rates::new(ratio, floor))
}

/// A clock that no test may read.
fn unread() -> u64 {
    panic!("the clock was read")
}

fn drain(bucket: &Bucket, now: u64) -> usize {
    std::iter::from_fn(|| bucket.withdraw(|| now)).count()
}

#[test]
fn five_first_attempts_pay_for_one_repeat() {
    let bucket = bucket(0.2, 0);
    for _ in 0..4 {
        bucket.deposit();
    }
    assert_eq!(bucket.withdraw(unread), None);

    bucket.deposit();

    assert_eq!(bucket.withdraw(unread), Some(PermitSource::Deposits));
    assert_eq!(bucket.withdraw(unread), None);
}

#[test]
fn a_ratio_of_sixty_per_cent_grants_sixty_per_cent() {
    let bucket = bucket(0.6, 0);
    let granted = (0..1_000).filter(|_| {
        bucket.deposit();
        bucket.withdraw(unread).is_some()
    });
    assert_eq!(granted.count(), 600);
}

#[test]
fn deposits_are_used_first_and_without_the_clock() {
    let bucket = bucket(1.0, 10);
    bucket.deposit();
    assert_eq!(bucket.withdraw(unread), Some(PermitSource::Deposits));
    assert_eq!(bucket.withdraw(|| 0), Some(PermitSource::Floor));
}

#[test]
fn the_floor_is_there_at_once_and_every_second() {
    for floor in [1, 3, 7, 10, 999] {
        let bucket = bucket(0.2, floor);
        let floor = floor as usize;
        assert_eq!(drain(&bucket, 0), floor, "a full burst at the start");
        assert_eq!(drain(&bucket, 0), 0);
        assert_eq!(drain(&bucket, SECOND / 2), floor / 2);
        // A rounding in nanoseconds may put the last repeat just behind the second.
        assert_eq!(drain(&bucket, SECOND + 1_000), floor - floor / 2);
    }
}

#[test]
fn an_idle_bucket_has_one_second_of_the_floor_and_no_more() {
    let bucket = bucket(0.2, 10);
    let month = 30 * 24 * 3600 * SECOND;
    assert_eq!(drain(&bucket, month), 10);
    assert_eq!(drain(&bucket, month + SECOND / 10 - 1), 0);
    assert_eq!(drain(&bucket, month + SECOND / 10), 1);
}

#[test]
fn deposits_pile_up_to_ten_seconds_of_the_floor() {
    for (floor, tokens) in [(0, 10), (1, 10), (10, 100)] {
        let bucket = bucket(10.0, floor);
        for _ in 0..1_000 {
            bucket.deposit();
        }
        assert_eq!(bucket.deposited(), tokens * TOKEN);
    }
}

#[test]
fn a_refund_can_be_had_again_and_stays_below_the_cap() {
    let bucket = bucket(10.0, 1);
    bucket.deposit();
    let paid = bucket.withdraw(unread).unwrap();
    assert_eq!(bucket.deposited(), 9 * TOKEN);
    bucket.refund(paid);
    assert_eq!(bucket.deposited(), 10 * TOKEN);

    let paid = bucket.withdraw(unread).unwrap();
    bucket.deposit();
    bucket.refund(paid);
    assert_eq!(bucket.deposited(), 10 * TOKEN, "capped");

    assert_eq!(drain(&bucket, 0), 11);
    bucket.refund(PermitSource::Floor);
    assert_eq!(bucket.withdraw(|| 0), Some(PermitSource::Floor));
    assert_eq!(bucket.withdraw(|| 0), None);
}

#[test]
fn the_end_of_time_overflows_nothing() {
    let bucket = bucket(0.0, u32::MAX);
    bucket.deposit();
    assert_eq!(bucket.withdraw(|| u64::MAX), Some(PermitSource::Floor));
    assert_eq!(bucket.deposited(), 0, "a ratio of zero deposits nothing");
    bucket.refund(PermitSource::Floor);
    assert_eq!(bucket.withdraw(|| u64::MAX), Some(PermitSource::Floor));
}

#[test]
fn an_impossible_ratio_panics() {
    for ratio in [-0.1, 10.1, f64::NAN, f64::INFINITY] {
        let made = std::panic::catch_unwind(|| Rates::new(ratio, 10));
        let why = made.unwrap_err();
        let why = why.downcast_ref::<String>().unwrap();
        assert!(why.starts_with("the ratio of repeats"), "{why}");
    }
}
