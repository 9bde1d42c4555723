//! Tests of the delays that an upstream asks for in its headers.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use proptest::prelude::*;

use super::super::retry_after::{LONGEST, read};

const NANO: Duration = Duration::from_nanos(1);

fn read_all(pairs: &[(&'static str, &str)], now: SystemTime) -> Option<Duration> {
    let mut headers = HeaderMap::new();
    for &(name, value) in pairs {
        headers.append(name, value.parse().unwrap());
    }
    read(&headers, now)
}

fn at(secs: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(secs)
}

#[test]
fn seconds_and_milliseconds_are_read_to_the_digit() {
    let secs = Duration::from_secs;
    let cases = [
        ("0", Some(Duration::ZERO)),
        ("20", Some(secs(20))),
        (" 7 ", Some(secs(7))),
        ("1.5", Some(Duration::from_millis(1500))),
        ("2.", Some(secs(2))),
        ("0.000000001", Some(NANO)),
        ("0.0000000001", Some(NANO)),
        ("0.0000000010", Some(NANO)),
        ("1.1", Some(Duration::from_millis(1100))),
        ("2592001", Some(LONGEST)),
        ("99999999999999999999999999", Some(LONGEST)),
        ("", None),
        ("-1", None),
        ("+1", None),
        (".5", None),
        ("1e3", None),
        ("NaN", None),
        ("inf", None),
        ("1.2.3", None),
        ("5, 6", None),
        ("5s", None),
        ("soon", None),
    ];
    for (text, expected) in cases {
        let found = read_all(&[("retry-after", text)], at(0));
        assert_eq!(found, expected, "{text}");
        let found = read_all(&[("retry-after-ms", text)], at(0));
        assert_eq!(found.is_some(), expected.is_some(), "{text} ms");
    }
    let millis = |text| read_all(&[("retry-after-ms", text)], at(0));
    assert_eq!(millis("1500"), Some(Duration::from_millis(1500)));
    assert_eq!(millis("0.5"), Some(Duration::from_micros(500)));
    assert_eq!(millis("0.0000001"), Some(NANO));
}

#[test]
fn a_date_is_awaited_and_one_that_has_passed_asks_for_nothing() {
    let text = "Sun, 06 Nov 1994 08:49:37 GMT";
    let date = 784_111_777;
    let cases = [
        (date - 90, Duration::from_secs(90)),
        (date, Duration::ZERO),
        (date + 1, Duration::ZERO),
        (0, LONGEST),
    ];
    for (now, expected) in cases {
        let found = read_all(&[("retry-after", text)], at(now));
        assert_eq!(found, Some(expected), "{now}");
    }
    let nearly = at(date) - Duration::from_millis(1);
    let found = read_all(&[("retry-after", text)], nearly);
    assert_eq!(found, Some(Duration::from_millis(1)));
    let garbage = "Sun, 06 Nov 1994 08:49:99 GMT";
    assert_eq!(read_all(&[("retry-after", garbage)], at(0)), None);
}

#[test]
fn milliseconds_win_and_the_first_usable_header_of_a_name_counts() {
    let cases: [(&[(&'static str, &str)], _); 5] = [
        (&[("retry-after", "9"), ("retry-after-ms", "20")], Some(20)),
        (&[("retry-after-ms", "x"), ("retry-after", "9")], Some(9000)),
        (&[("retry-after", "x"), ("retry-after", "9")], Some(9000)),
        (&[("retry-after", "3"), ("retry-after", "9")], Some(3000)),
        (&[("retry-after-ms", "x"), ("retry-after", "-1")], None),
    ];
    for (pairs, millis) in cases {
        let expected = millis.map(Duration::from_millis);
        assert_eq!(read_all(pairs, at(0)), expected, "{pairs:?}");
    }
}

proptest! {
    #[test]
    fn any_value_is_read_or_refused(
        value in proptest::collection::vec(any::<u8>(), 0..40),
        date in "(Sun|Mon), [0-9]{2} (Nov|Feb) [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
        digits in "[0-9]{0,30}[.]?[0-9]{0,30}",
        now in any::<u32>(),
    ) {
        for bytes in [&value, date.as_bytes(), digits.as_bytes()] {
            let Ok(value) = http::HeaderValue::from_bytes(bytes) else { continue };
            for name in ["retry-after", "retry-after-ms"] {
                let mut headers = HeaderMap::new();
                headers.insert(name, value.clone());
                let found = read(&headers, at(now.into()));
                prop_assert!(found.is_none_or(|delay| delay <= LONGEST));
            }
        }
    }

    #[test]
    fn a_delay_is_never_shorter_than_asked(secs in 0u32..2_000_000, fraction in "[0-9]{1,15}") {
        let found = read_all(&[("retry-after", &format!("{secs}.{fraction}"))], at(0)).unwrap();
        let exact: u128 = format!("{secs}{fraction:0<15}").parse().unwrap();
        let found = found.as_nanos() * 1_000_000;
        prop_assert!(found >= exact && found - exact < 1_000_000);
    }
}
