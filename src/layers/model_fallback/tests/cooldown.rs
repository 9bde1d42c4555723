//! The book of cooldowns, which has no clock.
//!
//! covers: F6

use std::time::Duration;

use super::super::cooldown::{
    CooldownBackoff, CooldownKey, CooldownProbe, CooldownState, CooldownWindows, Keys,
};
use crate::llm::{Rest, failure::FailureClass};

const LADDER: CooldownBackoff = CooldownBackoff::new();
const PROBING: CooldownProbe = CooldownProbe {
    every: secs(30),
    margin: secs(120),
};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn hours(hours: u64) -> Duration {
    secs(hours * 3600)
}

fn rest(class: FailureClass, stated: Option<Duration>) -> Rest {
    Rest {
        class,
        concern: class.concern(),
        stated,
    }
}

/// The cooldown keys of a candidate with an account of its own.
fn keys(number: u64) -> Keys {
    let key = |offset| CooldownKey {
        digest: 4 * number + offset,
        is_callers: false,
    };
    Keys {
        candidate: "a".into(),
        model: key(0),
        model_of_account: key(1),
        account: key(2),
        provider: key(3),
    }
}

/// The cooldown keys of a candidate that uses the account of a caller.
fn of_caller(number: u64) -> Keys {
    let mut keys = keys(number);
    keys.account.is_callers = true;
    keys.model_of_account.is_callers = true;
    keys
}

/// How long a candidate is left alone after each of so many failures in a row, each as
/// soon as the window before it has ended.
fn row(class: FailureClass, failures: usize) -> Vec<Duration> {
    let mut book = CooldownWindows::default();
    let mut now = secs(1000);
    let windows = (0..failures).map(|_| {
        book.fail(&keys(1), rest(class, None), false, &LADDER, now);
        let left = left(&book, &keys(1), now);
        now += left;
        left
    });
    windows.collect()
}

fn left(book: &CooldownWindows, keys: &Keys, now: Duration) -> Duration {
    match book.state(keys, NEVER, now) {
        CooldownState::Cooling { left, .. } => left,
        _ => Duration::ZERO,
    }
}

const NEVER: CooldownProbe = CooldownProbe {
    every: secs(30),
    margin: Duration::ZERO,
};

#[test]
fn what_passes_by_itself_is_left_alone_for_half_a_minute_to_five_minutes() {
    let steps = [30, 60, 300, 300, 300].map(secs);
    for class in [
        FailureClass::StepTimeout,
        FailureClass::Transport,
        FailureClass::RateLimit,
        FailureClass::Overloaded,
        FailureClass::NotReady,
        FailureClass::Server,
    ] {
        assert_eq!(row(class, 5), steps, "{class}");
    }
}

#[test]
fn what_must_be_mended_is_left_alone_for_ten_minutes_to_a_day() {
    let minutes = [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440];
    for class in [
        FailureClass::Auth,
        FailureClass::ModelGone,
        FailureClass::Region,
        FailureClass::Certificate,
    ] {
        assert_eq!(row(class, 10), minutes.map(|it| secs(60 * it)), "{class}");
    }
}

#[test]
fn a_quota_is_left_alone_for_five_hours_to_a_day() {
    let row = row(FailureClass::Quota, 100);
    assert_eq!(row[..5], [5, 10, 20, 24, 24].map(hours));
    assert_eq!(row[99], hours(24), "no shift overflows");
}

#[test]
fn what_says_nothing_of_the_next_request_cools_nothing() {
    for class in [
        FailureClass::Deadline,
        FailureClass::RequestTimeout,
        FailureClass::Conflict,
        FailureClass::RequestLimit,
        FailureClass::ModelFault,
        FailureClass::ContextOverflow,
        FailureClass::TooLarge,
        FailureClass::ContentFilter,
        FailureClass::Caller,
    ] {
        assert_eq!(row(class, 3), [Duration::ZERO; 3], "{class}");
    }
}

#[test]
fn a_running_window_is_not_extended() {
    let mut book = CooldownWindows::default();
    book.fail(
        &keys(1),
        rest(FailureClass::Server, None),
        false,
        &LADDER,
        secs(0),
    );
    for at in [1, 10, 29] {
        book.fail(
            &keys(1),
            rest(FailureClass::Server, None),
            false,
            &LADDER,
            secs(at),
        );
        assert_eq!(left(&book, &keys(1), secs(at)), secs(30 - at));
    }
    book.fail(
        &keys(1),
        rest(FailureClass::Server, None),
        false,
        &LADDER,
        secs(30),
    );
    assert_eq!(
        left(&book, &keys(1), secs(30)),
        secs(60),
        "one row, not four"
    );
}

#[test]
fn what_the_upstream_asks_for_is_kept_within_a_day() {
    for (asked, window) in [(1, 1), (100, 100), (1_000_000, 86_400)] {
        let mut book = CooldownWindows::default();
        let asked = Some(secs(asked));
        book.fail(
            &keys(1),
            rest(FailureClass::RateLimit, asked),
            false,
            &LADDER,
            secs(0),
        );
        assert_eq!(left(&book, &keys(1), secs(0)), secs(window));
    }
}

#[test]
fn a_success_resets_the_row_and_a_beginning_of_one_the_window() {
    let mut book = CooldownWindows::default();
    let fail = |book: &mut CooldownWindows, at| {
        book.fail(
            &keys(1),
            rest(FailureClass::Server, None),
            false,
            &LADDER,
            secs(at),
        );
    };
    fail(&mut book, 0);
    fail(&mut book, 30);
    assert_eq!(left(&book, &keys(1), secs(30)), secs(60));

    book.lift(&keys(1), secs(60), secs(61));
    assert_eq!(left(&book, &keys(1), secs(61)), secs(0));
    fail(&mut book, 62);
    assert_eq!(
        left(&book, &keys(1), secs(62)),
        secs(300),
        "the third in a row"
    );

    book.succeed(&keys(1), secs(63));
    assert_eq!(book.len(), 0);
    fail(&mut book, 64);
    assert_eq!(left(&book, &keys(1), secs(64)), secs(30));
}

#[test]
fn a_success_that_began_before_the_failure_says_nothing() {
    let mut book = CooldownWindows::default();
    book.fail(
        &keys(1),
        rest(FailureClass::Server, None),
        false,
        &LADDER,
        secs(10),
    );
    book.lift(&keys(1), secs(9), secs(11));
    book.succeed(&keys(1), secs(9));
    assert_eq!(left(&book, &keys(1), secs(11)), secs(29));
}

#[test]
fn another_kind_of_failure_is_another_row() {
    let mut book = CooldownWindows::default();
    let account = |book: &mut CooldownWindows, class, at| {
        book.fail(&keys(1), rest(class, None), false, &LADDER, at);
        left(book, &keys(1), at)
    };
    assert_eq!(account(&mut book, FailureClass::Auth, secs(0)), secs(600));
    assert_eq!(account(&mut book, FailureClass::Quota, secs(600)), hours(5));
    let after = secs(600) + hours(5);
    assert_eq!(account(&mut book, FailureClass::Auth, after), secs(600));
}

#[test]
fn what_is_cooled_is_what_the_failure_is_about() {
    let [one, mut other] = [keys(1), keys(2)];
    // The keys of another model, on the same account, at the same host.
    (other.account, other.provider) = (one.account, one.provider);
    let mut elsewhere = keys(3);
    // The keys of the same model and host, on another account.
    (elsewhere.model, elsewhere.provider) = (one.model, one.provider);
    for (class, others) in [
        (FailureClass::RateLimit, [false, false]),
        (FailureClass::ModelGone, [false, false]),
        (FailureClass::Server, [false, true]),
        (FailureClass::Auth, [true, false]),
        (FailureClass::Quota, [true, false]),
        (FailureClass::Region, [true, true]),
        (FailureClass::Certificate, [true, true]),
    ] {
        let mut book = CooldownWindows::default();
        book.fail(&one, rest(class, None), false, &LADDER, secs(0));
        assert!(!left(&book, &one, secs(1)).is_zero());
        let cooled = [&other, &elsewhere].map(|keys| !left(&book, keys, secs(1)).is_zero());
        assert_eq!(cooled, others, "{class}");
    }
}

#[test]
fn the_end_of_a_window_is_probed_once_in_half_a_minute() {
    let mut book = CooldownWindows::default();
    book.fail(
        &keys(1),
        rest(FailureClass::Auth, None),
        false,
        &LADDER,
        secs(0),
    );
    let mut probes = Vec::new();
    for at in 0..600 {
        if book.state(&keys(1), PROBING, secs(at)) == CooldownState::Probe {
            book.probe(&keys(1), secs(at));
            probes.push(at);
        }
    }
    assert_eq!(probes, [480, 510, 540, 570]);
    assert_eq!(
        book.state(&keys(1), PROBING, secs(600)),
        CooldownState::Open
    );
}

#[test]
fn a_short_window_is_not_probed_at_once() {
    let mut book = CooldownWindows::default();
    let server = FailureClass::Server;
    book.fail(&keys(1), rest(server, None), false, &LADDER, secs(0));
    for at in 0..30 {
        let left = secs(30 - at);
        let class = server;
        let state = book.state(&keys(1), PROBING, secs(at));
        assert_eq!(state, CooldownState::Cooling { left, class });
    }
}

#[test]
fn who_is_cooled_twice_is_probed_when_both_allow_it() {
    let mut book = CooldownWindows::default();
    book.fail(
        &keys(1),
        rest(FailureClass::Server, None),
        false,
        &LADDER,
        secs(0),
    );
    book.fail(
        &keys(1),
        rest(FailureClass::Auth, None),
        false,
        &LADDER,
        secs(0),
    );
    let (left, class) = (secs(580), FailureClass::Auth);
    let state = book.state(&keys(1), PROBING, secs(20));
    assert_eq!(state, CooldownState::Cooling { left, class });
    let state = book.state(&keys(1), PROBING, secs(480));
    assert_eq!(state, CooldownState::Probe);
}

#[test]
fn of_two_windows_the_last_to_end_says_how_long_the_candidate_is_left_alone() {
    for (long, short) in [
        (FailureClass::Auth, FailureClass::Server),
        (FailureClass::Server, FailureClass::RateLimit),
    ] {
        let mut book = CooldownWindows::default();
        book.fail(
            &keys(1),
            rest(long, Some(secs(600))),
            false,
            &LADDER,
            secs(0),
        );
        book.fail(&keys(1), rest(short, None), false, &LADDER, secs(479));
        // The long window may be probed by now, the short one may not.
        let state = book.state(&keys(1), PROBING, secs(485));
        let (left, class) = (secs(115), long);
        assert_eq!(state, CooldownState::Cooling { left, class });
    }
}

#[test]
fn a_flood_of_callers_is_bounded_and_leaves_what_is_known_of_the_programs_own() {
    let mut book = CooldownWindows::default();
    book.fail(
        &keys(0),
        rest(FailureClass::Server, None),
        false,
        &LADDER,
        secs(0),
    );
    for caller in 1..10_000 {
        book.fail(
            &of_caller(caller),
            rest(FailureClass::Auth, None),
            false,
            &LADDER,
            secs(1),
        );
        assert!(book.len() <= 256, "{}", book.len());
    }
    assert_eq!(left(&book, &keys(0), secs(2)), secs(28));
    assert_eq!(left(&book, &of_caller(9_999), secs(2)), secs(599));
}
