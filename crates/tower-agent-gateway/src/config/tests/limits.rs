//! covers: A2, A5

use std::time::Duration;

use super::super::{AttemptLimits, RunLimits, limit};
use super::{message, with_candidate};

#[test]
fn absent_limits_are_off() {
    let config = with_candidate("").unwrap();

    assert_eq!(config.run, RunLimits::default());
    assert_eq!(config.attempt, AttemptLimits::default());
    assert_eq!(config.control_token, None);
    assert_eq!(config.shutdown_drain, None);
    assert!(config.auth.is_none() && config.cors.is_none() && config.agents.is_empty());
}

#[test]
fn the_preset_fills_in_what_is_absent() {
    let config =
        with_candidate("preset = \"recommended\"\n[attempt]\nstep_timeout = \"7s\"").unwrap();

    assert_eq!(config.run.step_timeout, Some(Duration::from_secs(300)));
    assert_eq!(config.run.max_turn_time, Some(Duration::from_secs(3600)));
    assert_eq!(config.run.max_turns, Some(30));
    assert_eq!(config.attempt.step_timeout, Some(Duration::from_secs(7)));
    assert_eq!(
        config.attempt.first_token_timeout,
        Some(Duration::from_secs(240))
    );
    assert_eq!(config.attempt.max_time, None);
}

#[test]
fn zero_switches_a_preset_limit_off() {
    let config =
        with_candidate("preset = \"recommended\"\n[run]\nstep_timeout = \"0s\"\nmax_turn_time = \"0s\"\nmax_turns = 0")
            .unwrap();

    assert_eq!(config.run.step_timeout, None);
    assert_eq!(config.run.max_turn_time, None);
    assert_eq!(config.run.max_turns, None);
}

#[test]
fn long_limits_are_cut_to_thirty_days() {
    for long in ["31days", "1000years", "99999999999999999999999s"] {
        let config = with_candidate(&format!("[run]\ntimeout = \"{long}\"")).unwrap();

        assert_eq!(config.run.timeout, Some(limit::LONGEST), "{long}");
    }
}

#[test]
fn wrong_durations_name_key_and_value() {
    let negative = message(with_candidate("[run]\nstep_timeout = \"-5s\""));
    let word = message(with_candidate("[run]\nmax_turn_time = \"soon\""));
    let unitless = message(with_candidate("[attempt]\nmax_time = \"60\""));
    let integer = message(with_candidate("[attempt]\nfirst_token_timeout = 60"));
    let empty = message(with_candidate("[run]\ntimeout = \"\""));
    let too_fine = message(with_candidate("[run]\ntimeout = \"0.5ns\""));

    assert_eq!(
        negative,
        "gateway.toml:2:16: run.step_timeout = \"-5s\" is negative: write \"0s\" to switch the limit off"
    );
    assert!(
        word.starts_with("gateway.toml:2:17: run.max_turn_time = \"soon\" is not a duration"),
        "{word}"
    );
    assert!(
        unitless.starts_with("gateway.toml:2:12: attempt.max_time = \"60\" is not a duration"),
        "{unitless}"
    );
    assert!(
        integer.contains("attempt.first_token_timeout = 60 is not a duration"),
        "{integer}"
    );
    assert!(
        empty.contains("run.timeout = \"\" is not a duration"),
        "{empty}"
    );
    assert!(
        too_fine.contains("run.timeout = \"0.5ns\" is not a duration"),
        "{too_fine}"
    );
}

#[test]
fn a_run_is_idle_after_half_an_hour_unless_the_file_says_otherwise() {
    let idle = |head: &str| with_candidate(head).unwrap().run.idle;

    assert_eq!(idle(""), Some(Duration::from_secs(1800)));
    assert_eq!(idle("[run]\nidle = \"5m\""), Some(Duration::from_secs(300)));
    assert_eq!(idle("[run]\nidle = \"0s\""), None);
}

#[test]
fn a_number_of_turns_is_read_before_it_is_refused() {
    let message = message(with_candidate("[run]\nmax_turns = -1"));

    assert!(
        message.contains("run.max_turns = -1 is not a whole number"),
        "{message}"
    );
}
