//! covers: A5

use proptest::prelude::*;

use super::*;

const NODE: &str = "x-stainless-timeout";
const PYTHON: &str = "x-stainless-read-timeout";
const GRPC: &str = "grpc-timeout";

const SHORTEST: Duration = ms(1);
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// What each header alone announces, by the field that it is for.
fn alone(name: &'static str, value: &str) -> Option<Duration> {
    let announced = by(&[(name, value)])?;
    let fields = [announced.answer, announced.silence, announced.total];
    let field = [NODE, PYTHON, GRPC].iter().position(|known| *known == name);
    let found = fields[field.unwrap()];
    assert_eq!(fields.iter().flatten().count(), 1, "{name}: {value}");
    assert_eq!(announced.until_the_head(), found);
    found
}

#[test]
fn seconds_are_read_as_the_sdks_write_them() {
    let cases = [
        ("600", 600_000),
        ("600.0", 600_000),
        (" 2 ", 2000),
        ("0.5", 500),
        ("12.25", 12_250),
        ("1e1", 10_000),
        ("1e-2", 10),
    ];
    for (text, millis) in cases {
        for name in [NODE, PYTHON] {
            assert_eq!(alone(name, text), Some(ms(millis)), "{text:?}");
        }
    }
}

#[test]
fn each_unit_of_grpc_is_read() {
    let cases = [
        ("2H", 7_200_000),
        ("2M", 120_000),
        ("2S", 2000),
        ("250m", 250),
        ("00000002S", 2000),
        ("250000u", 250),
        ("99000000n", 99),
    ];
    for (text, millis) in cases {
        assert_eq!(alone(GRPC, text), Some(ms(millis)), "{text:?}");
    }
}

#[test]
fn nonsense_announces_nothing() {
    let seconds = [
        "",
        " ",
        "0",
        "0.0",
        "-0",
        "-1",
        "-0.5",
        "nan",
        "NaN",
        "inf",
        "-inf",
        "Infinity",
        "None",
        "NOT_GIVEN",
        "10s",
        "5, 10",
        "1_000",
        "0x10",
        "1e",
        "e5",
        "..",
        "1.2.3",
        "--1",
        "٣",
    ];
    for text in seconds {
        for name in [NODE, PYTHON] {
            assert_eq!(alone(name, text), None, "{name}: {text:?}");
        }
    }
    let grpc = [
        "",
        "S",
        "0S",
        "00000000H",
        "-1S",
        "+1S",
        "1",
        "1s",
        "1h",
        "1 S",
        "1.5S",
        "123456789S",
        "1SS",
        "1S, 2S",
        "٣S",
        "1Š",
        "nanS",
    ];
    for text in grpc {
        assert_eq!(alone(GRPC, text), None, "{text:?}");
    }
}

#[test]
fn bytes_that_are_no_text_announce_nothing() {
    for name in [NODE, PYTHON, GRPC] {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_bytes(b"\xff5S").unwrap();
        headers.insert(HeaderName::from_static(name), value);
        assert_eq!(CallerLimits::of(&headers), None);
    }
}

#[test]
fn what_is_very_long_is_thirty_days() {
    let digits = "9".repeat(400);
    for text in ["2592001", "1e18", "1e300", "1e400", &*digits] {
        assert_eq!(alone(NODE, text), Some(LONGEST), "{text}");
        assert_eq!(alone(PYTHON, text), Some(LONGEST), "{text}");
    }
    assert_eq!(alone(GRPC, "99999999H"), Some(LONGEST));
}

#[test]
fn what_is_shorter_than_a_timer_can_measure_is_a_millisecond() {
    for text in ["1e-05", "0.0000001", "1e-300"] {
        assert_eq!(alone(NODE, text), Some(SHORTEST), "{text}");
    }
    assert_eq!(alone(GRPC, "1n"), Some(SHORTEST));
    assert_eq!(alone(GRPC, "999u"), Some(SHORTEST));
}

#[test]
fn of_several_of_one_name_the_shortest_counts_and_nonsense_hides_none() {
    let pairs = [(NODE, "9"), (NODE, "3"), (NODE, "0"), (NODE, "x")];

    assert_eq!(by(&pairs).unwrap().answer, Some(ms(3000)));
}

#[test]
fn the_head_is_due_at_the_earliest_and_lifts_what_was_only_for_it() {
    let announced = by(&[(NODE, "7"), (PYTHON, "3"), (GRPC, "9S")]).unwrap();

    assert_eq!(announced.until_the_head(), Some(ms(3000)));
    assert_eq!(announced.after_the_head(false), Some(ms(7000)));
    assert_eq!(announced.after_the_head(true), Some(ms(9000)));
}

#[test]
fn a_read_timeout_that_is_sent_under_both_names_is_no_limit_to_the_whole_answer() {
    let announced = by(&[(NODE, "600.0"), (PYTHON, "600")]).unwrap();

    assert_eq!(announced.silence, Some(ms(600_000)));
    assert_eq!(announced.after_the_head(false), None);
}

#[test]
fn no_header_announces_nothing() {
    assert_eq!(by(&[("x-timeout", "5")]), None);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_and_never_end_a_call_at_once(
        bytes in proptest::collection::vec(any::<u8>(), 0..40),
        number in "[-+]?[0-9]{0,25}[.]?[0-9]{0,25}([eE][-+]?[0-9]{0,4})?",
        timeout in "[0-9]{0,10}[HMSmunx]?",
    ) {
        for text in [&bytes, number.as_bytes(), timeout.as_bytes()] {
            let Ok(value) = HeaderValue::from_bytes(text) else { continue };
            for name in [NODE, PYTHON, GRPC] {
                let mut headers = HeaderMap::new();
                headers.insert(HeaderName::from_static(name), value.clone());
                let limit = CallerLimits::of(&headers).and_then(|read| read.until_the_head());
                prop_assert!(limit.is_none_or(|limit| (SHORTEST..=LONGEST).contains(&limit)));
            }
        }
    }

    #[test]
    fn what_is_read_is_what_was_written(millis in 1_u64..2_592_000_000) {
        let seconds = format!("{}.{:03}", millis / 1000, millis % 1000);
        let off = alone(NODE, &seconds).unwrap().abs_diff(ms(millis));
        prop_assert!(off < Duration::from_micros(1), "{}", seconds);
        if millis < 100_000_000 {
            prop_assert_eq!(alone(GRPC, &format!("{millis}m")), Some(ms(millis)));
        }
    }

    #[test]
    fn a_further_header_never_raises_a_limit(
        values in proptest::collection::vec((0_usize..3, "[0-9]{1,8}[HMSmun]?"), 1..6),
    ) {
        let named = |&(name, ref value): &(usize, String)| {
            ([NODE, PYTHON, GRPC][name], value.clone())
        };
        let all: Vec<_> = values.iter().map(named).collect();
        let of = |count: usize| {
            let pairs: Vec<_> = all[..count].iter().map(|(name, value)| (*name, &**value)).collect();
            by(&pairs).and_then(|announced| announced.until_the_head())
        };
        for count in 1..=all.len() {
            if let Some(before) = of(count - 1) {
                prop_assert!(of(count).is_some_and(|after| after <= before));
            }
        }
    }
}
