//! Tests of the delays that an upstream asks for in a body.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::{
        class::FailureClass::{Quota, RateLimit},
        retry_after::LONGEST,
    },
    judge,
};
use crate::failure::{classifier::Failure, retry_after};

const NANO: Duration = Duration::from_nanos(1);

fn limited(message: &str) -> Failure {
    let body = serde_json::json!({"error": {"message": message}});
    judge(429, &[], &body.to_string()).unwrap()
}

fn google(delay: &str) -> String {
    format!(
        r#"{{"error":{{"code":429,"message":"x","status":"RESOURCE_EXHAUSTED","details":[{{"retryDelay":"{delay}"}}]}}}}"#
    )
}

#[test]
fn prose_is_read_in_all_the_forms_it_comes_in() {
    let cases = [
        ("Please try again in 1.2s. Visit https://x", Some(1_200)),
        ("Please try again in 350ms.", Some(350)),
        ("try again in 1m30s", Some(90_000)),
        ("try again in 6m0s", Some(360_000)),
        ("try again in 7m12.5s.", Some(432_500)),
        ("try again in 1h2m3s", Some(3_723_000)),
        ("try again in 1d", Some(86_400_000)),
        ("TRY AGAIN IN 2s", Some(2_000)),
        ("Try again in 50 seconds.", Some(50_000)),
        ("Try again in 1 second", Some(1_000)),
        ("Try again in 1 minute 5 seconds", Some(65_000)),
        ("Try again in 2 minutes", Some(120_000)),
        ("Try again in 1 hour.", Some(3_600_000)),
        ("Try again in 2 hours", Some(7_200_000)),
        ("Try again in 1 day", Some(86_400_000)),
        ("Try again in 2 days", Some(172_800_000)),
        ("Try again in 5 milliseconds", Some(5)),
        ("Try again in 1 millisecond", Some(1)),
        ("Please retry in 34.5s.", Some(34_500)),
        (
            "Please retry after 20 seconds. Please contact",
            Some(20_000),
        ),
        ("Try again after 15 minutes", Some(900_000)),
        (
            "Try again in a moment, or retry after 3 seconds",
            Some(3_000),
        ),
        ("try again in full; try again in 4s", Some(4_000)),
        ("Try again in 5", None),
        ("Try again in 5 moons", None),
        ("Try again in .5s", None),
        ("Try again in -5s", None),
        ("Try again in 1.2.3s", None),
        ("Try again in s", None),
        ("Try again later. It took 5s", None),
        ("", None),
    ];
    for (message, millis) in cases {
        let expected = millis.map(Duration::from_millis);
        assert_eq!(limited(message).retry_after, expected, "{message}");
    }
}

#[test]
fn google_s_delay_is_read_to_the_nanosecond() {
    let cases = [
        ("34s", Some(Duration::from_secs(34))),
        ("34.074824224s", Some(Duration::from_nanos(34_074_824_224))),
        ("0.0000000001s", Some(NANO)),
        ("0s", Some(Duration::ZERO)),
        ("99999999999999999999s", Some(LONGEST)),
        ("34", None),
        ("-34s", None),
        ("1m", None),
        ("s", None),
        ("", None),
    ];
    for (text, expected) in cases {
        let failure = judge(429, &[], &google(text)).unwrap();
        assert_eq!(failure.retry_after, expected, "{text}");
    }
}

#[test]
fn the_head_goes_first_then_the_field_then_the_words() {
    let body = google("34s").replace("\"x\"", "\"retry in 7s\"");
    let secs = |found: Failure| found.retry_after.map(|delay| delay.as_secs());
    let head = judge(429, &[("retry-after", "3")], &body).unwrap();
    assert_eq!(secs(head), Some(3));
    let head = judge(429, &[("retry-after", "soon")], &body).unwrap();
    assert_eq!(secs(head), Some(34));
    let words = judge(429, &[], &body.replace("retryDelay", "x")).unwrap();
    assert_eq!(secs(words), Some(7));
}

#[test]
fn words_count_only_where_waiting_helps() {
    let message = r#"{"error":{"message":"Try again in 7s"}}"#;
    for (status, waits) in [
        (429, true),
        (503, true),
        (400, false),
        // The account rests at least for so long.
        (401, true),
        // Credit comes back at the end of a short window only.
        (402, true),
    ] {
        let failure = judge(status, &[], message).unwrap();
        assert_eq!(failure.retry_after.is_some(), waits, "{status}");
        let failure = judge(status, &[("retry-after", "9")], message).unwrap();
        assert_eq!(failure.retry_after, Some(Duration::from_secs(9)));
    }
    for (wait, class) in [("59m", RateLimit), ("1h", Quota), ("2 days", Quota)] {
        let body = message.replace("7s", wait);
        assert_eq!(judge(402, &[], &body).unwrap().class, class, "{wait}");
    }
}

proptest! {
    #[test]
    fn any_words_are_read_or_not(
        text in "\\PC{0,60}",
        parts in "(again in |retry in |retry after |[0-9]{0,30}|[.]| |ms|s|m|h|d|days|ü){0,12}",
    ) {
        for message in [&text, &parts] {
            let found = limited(message).retry_after;
            prop_assert!(found.is_none_or(|delay| delay <= LONGEST));
            let _ = retry_after::seconds(message);
        }
    }

    #[test]
    fn no_delay_is_shorter_than_asked(
        hours in 0u64..100,
        minutes in 0u64..1_000,
        secs in 0u64..100_000,
        fraction in "[0-9]{1,15}",
    ) {
        let message = format!("Please try again in {hours}h{minutes}m{secs}.{fraction}s.");
        let found = limited(&message).retry_after.unwrap().as_nanos() * 1_000_000;
        let whole = u128::from(hours * 3_600 + minutes * 60 + secs);
        let exact = whole * 1_000_000_000_000_000 + format!("{fraction:0<15}").parse::<u128>().unwrap();
        prop_assert!(found >= exact && found - exact < 1_000_000);
    }
}
