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

/// covers: A7
#[test]
fn a_local_profile_has_heartbeats_in_place_of_windows() {
    for preset in ["", "preset = \"recommended\"\n"] {
        let local = format!("{preset}[attempt]\nprofile = \"local\"");
        let attempt = with_candidate(&local).unwrap().attempt;
        let windows = (attempt.step_timeout, attempt.first_token_timeout);
        assert_eq!(windows, (None, None));
        assert_eq!(attempt.heartbeat, Some(Duration::from_secs(10)));
    }
    let text = "[attempt]\nprofile = \"local\"\nheartbeat = \"30s\"\nmax_time = \"1h\"";
    let attempt = with_candidate(text).unwrap().attempt;
    assert_eq!(attempt.heartbeat, Some(Duration::from_secs(30)));
    let cloud = with_candidate("[attempt]\nprofile = \"cloud\"").unwrap();
    assert_eq!(cloud.attempt, with_candidate("").unwrap().attempt);

    for (text, says) in [
        ("profile = \"edge\"", "2:11: unknown variant `edge`"),
        (
            "heartbeat = \"1s\"",
            "2:13: attempt.heartbeat is of no use without attempt.profile = \"local\"",
        ),
        (
            "heartbeat = \"0s\"\nprofile = \"local\"",
            "2:13: attempt.heartbeat must be longer than zero",
        ),
        (
            "step_timeout = \"9s\"\nprofile = \"local\"",
            "2:16: attempt.step_timeout is of no use with attempt.profile = \"local\"",
        ),
    ] {
        let message = message(with_candidate(&format!("[attempt]\n{text}")));
        let start = format!("gateway.toml:{says}");
        assert!(message.starts_with(&start), "{message}");
    }
}

/// covers: A12
#[test]
fn limits_on_time_are_observed_if_there_are_any() {
    let config = with_candidate(
        "[run]\ntimeout = \"1h\"\nobserve = true\n[attempt]\nmax_time = \"1h\"\nobserve = true",
    );
    let config = config.unwrap();
    assert!(config.run.observe && config.attempt.observe);
    let preset = with_candidate("preset = \"recommended\"").unwrap();
    assert!(!preset.run.observe && !preset.attempt.observe);

    for (text, says) in [
        (
            "[run]\nobserve = true",
            "2:11: run.observe is of no use without a limit on time beside it",
        ),
        (
            "[attempt]\nhold = \"1s\"\nobserve = true",
            "3:11: attempt.observe is of no use without a limit on time beside it",
        ),
        (
            "[run]\ntimeout = \"1h\"\nobserve = true\n[disconnect]\ncaller_deadline = true",
            "5:19: disconnect.caller_deadline is of no use beside observe of a run's limits",
        ),
    ] {
        let message = message(with_candidate(text));
        let start = format!("gateway.toml:{says}");
        assert!(message.starts_with(&start), "{message}");
    }
}

/// covers: B6
#[test]
fn a_partial_text_is_kept_up_to_a_number_of_bytes() {
    let text = "[run]\npartial = 100\n[auth]\nkeys_env = \"KEYS\"\n[agents.coder]\npartial = 0";
    let config = with_candidate(text).unwrap();
    assert_eq!(config.run.partial, Some(100));
    assert_eq!(config.agents[0].run.partial, None);
    let message = message(with_candidate("[run]\npartial = 1048577"));
    let says = "gateway.toml:2:11: run.partial = 1048577 is not a whole number from 0 to 1048576";
    assert_eq!(message, says);
}
