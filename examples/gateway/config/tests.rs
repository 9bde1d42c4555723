mod agents;
mod auth;
mod candidates;
mod cors;
mod disconnect;
mod fallback;
mod retry;
mod secrets;

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use super::error::ConfigError;
use super::{AttemptLimits, Config, Dialect, Retry, RunLimits, Shared, limit, resolve};

const CANDIDATE: &str = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"\n";

/// Resolves `head` and one good candidate after it, with one variable in the environment.
fn with_candidate(head: &str) -> Result<Config, ConfigError> {
    parse(&format!("{head}\n{CANDIDATE}"))
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    let env = |variable: &str| match variable {
        "KEY" => Some("sk-secret".to_owned()),
        "EMPTY" => Some(String::new()),
        "TWO_LINES" => Some("sk-\nsecret".to_owned()),
        "KEYS" => Some("coder:k-1,look-up:k-2:3".to_owned()),
        _ => None,
    };
    resolve::config(text, env).map_err(|problem| ConfigError::new(text, "gateway.toml", problem))
}

#[track_caller]
fn message(result: Result<Config, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn absent_limits_are_off() {
    let config = with_candidate("").unwrap();

    assert_eq!(config.run, RunLimits::default());
    assert_eq!(config.attempt, AttemptLimits::default());
    assert_eq!(config.pump_frames.get(), 32);
    assert_eq!(config.control_token, None);
    assert!(config.auth.is_none() && config.cors.is_none() && config.agents.is_empty());
}

#[test]
fn a_full_file_is_read() {
    let config = parse(
        r#"
        [run]
        step_timeout = "5m"
        max_turn_time = "30m"
        timeout = "1h"
        idle = "20m"
        [attempt]
        step_timeout = "1500ms"
        first_token_timeout = "60s"
        max_time = "10m"
        hold = "30s"
        [retry]
        max_attempts_per_candidate = 3
        per_error_key = 4
        per_run = 20
        shared_ratio = 0.5
        shared_floor = 2
        base_delay = "200ms"
        max_delay = "5s"
        max_retry_after = "20s"
        [disconnect]
        policy = "cancel"
        caller_deadline = true
        pump_frames = 8
        [control]
        token_env = "KEY"
        [[candidates]]
        name = "main"
        model = "m"
        base_url = "https://host:8443/v1"
        dialect = "anthropic"
        api_key_env = "KEY"
        context_window = 200000
        trusted = true
        "#,
    )
    .unwrap();

    assert_eq!(config.run.step_timeout, Some(Duration::from_secs(300)));
    assert_eq!(config.run.max_turn_time, Some(Duration::from_secs(1800)));
    assert_eq!(config.run.timeout, Some(Duration::from_secs(3600)));
    assert_eq!(config.run.idle, Some(Duration::from_secs(1200)));
    assert_eq!(
        config.attempt.step_timeout,
        Some(Duration::from_millis(1500))
    );
    assert_eq!(
        config.attempt.first_token_timeout,
        Some(Duration::from_secs(60))
    );
    assert_eq!(config.attempt.max_time, Some(Duration::from_secs(600)));
    assert_eq!(config.attempt.hold, Some(Duration::from_secs(30)));
    let retry = Retry {
        attempts: 3,
        per_error_key: Some(4),
        per_run: Some(20),
        shared: Some(Shared {
            ratio: 0.5,
            floor: 2,
        }),
        base_delay: Duration::from_millis(200),
        max_delay: Duration::from_secs(5),
        max_retry_after: Duration::from_secs(20),
    };
    assert_eq!(config.retry, retry);
    assert!(config.caller_deadline);
    assert_eq!(config.pump_frames.get(), 8);
    assert_eq!(config.control_token.unwrap().expose(), "sk-secret");
    assert_eq!(config.candidates[0].name, "main");
    assert_eq!(config.candidates[0].model, "m");
    assert_eq!(config.candidates[0].base_url, "https://host:8443/v1");
    assert_eq!(config.candidates[0].dialect, Dialect::Anthropic);
    assert_eq!(
        config.candidates[0].api_key.as_ref().unwrap().expose(),
        "sk-secret"
    );
    assert_eq!(config.candidates[0].context_window.unwrap().get(), 200_000);
    assert!(config.candidates[0].trusted);
}

#[test]
fn a_callers_deadline_counts_only_if_the_file_says_so() {
    for more in [
        "",
        "preset = \"recommended\"",
        "[disconnect]\ncaller_deadline = false",
    ] {
        assert!(!with_candidate(more).unwrap().caller_deadline, "{more}");
    }

    let word = message(with_candidate("[disconnect]\ncaller_deadline = \"yes\""));
    assert!(
        word.starts_with("gateway.toml:2:19: invalid type: string \"yes\", expected a boolean"),
        "{word}"
    );
}

#[test]
fn the_readmes_configuration_is_read() {
    let readme = include_str!("../../../README.md");
    let text = readme.split("```toml\n").nth(1).unwrap();
    let text = text.split("```").next().unwrap();
    let text = text
        .replace("UPSTREAM_API_KEY", "KEY")
        .replace("BACKUP_API_KEY", "KEY");

    let config = parse(&text).unwrap();

    let preset = parse(&format!("preset = \"recommended\"\n{CANDIDATE}")).unwrap();
    assert_eq!(config.candidates.len(), 2);
    assert_eq!(config.retry, preset.retry);
}

#[test]
fn a_candidate_is_named_after_its_model() {
    let candidate = &with_candidate("").unwrap().candidates[0];

    assert_eq!(candidate.name, "m");
    assert_eq!(candidate.dialect, Dialect::Any);
    assert_eq!(candidate.api_key, None);
    assert_eq!(candidate.context_window, None);
    assert!(!candidate.trusted);
}

#[test]
fn the_preset_fills_in_what_is_absent() {
    let config =
        with_candidate("preset = \"recommended\"\n[attempt]\nstep_timeout = \"7s\"").unwrap();

    assert_eq!(config.run.step_timeout, Some(Duration::from_secs(300)));
    assert_eq!(config.run.max_turn_time, None);
    assert_eq!(config.attempt.step_timeout, Some(Duration::from_secs(7)));
    assert_eq!(
        config.attempt.first_token_timeout,
        Some(Duration::from_secs(240))
    );
    assert_eq!(config.attempt.max_time, None);
}

#[test]
fn zero_switches_a_preset_limit_off() {
    let config = with_candidate("preset = \"recommended\"\n[run]\nstep_timeout = \"0s\"").unwrap();

    assert_eq!(config.run.step_timeout, None);
}

#[test]
fn long_limits_are_cut_to_thirty_days() {
    for long in ["31days", "1000years", "99999999999999999999999s"] {
        let config = with_candidate(&format!("[run]\ntimeout = \"{long}\"")).unwrap();

        assert_eq!(config.run.timeout, Some(limit::LONGEST), "{long}");
    }
}

#[test]
fn an_unknown_key_is_named_with_its_place() {
    let top = message(parse(&format!("colour = 1\n{CANDIDATE}")));
    let nested = message(with_candidate("[run]\nstep_timout = \"5s\""));
    let table = message(with_candidate("[runs]\n"));
    let of_candidate = message(parse(&format!("{CANDIDATE}key = \"k\"\n")));

    assert!(
        top.starts_with("gateway.toml:1:1: unknown key `colour`"),
        "{top}"
    );
    assert!(
        nested.starts_with("gateway.toml:2:1: unknown key `step_timout`"),
        "{nested}"
    );
    assert!(
        table.starts_with("gateway.toml:1:2: unknown key `runs`"),
        "{table}"
    );
    assert!(
        of_candidate.starts_with("gateway.toml:4:1: unknown key `key`"),
        "{of_candidate}"
    );
}

#[test]
fn keys_of_later_versions_are_not_unknown() {
    let keys = [
        ("[stop]\nphrases = [\"/stop\"]", "[stop]"),
        ("[run]\nmax_turns = 30", "run.max_turns"),
        (
            "[auth]\nkeys_env = \"KEYS\"\nmax_open_runs = 5",
            "auth.max_open_runs",
        ),
        (
            "[auth]\nkeys_env = \"KEYS\"\nturns_per_hour = 100",
            "auth.turns_per_hour",
        ),
        (
            "[auth]\nkeys_env = \"KEYS\"\n[agents.coder]\nmax_turns = 50",
            "agents.coder.max_turns",
        ),
    ];
    for (text, key) in keys {
        let message = message(with_candidate(text));

        assert!(
            message.ends_with(&format!(": {key} is not supported by this version yet")),
            "{message}"
        );
        assert!(message.starts_with("gateway.toml:"), "{message}");
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
fn other_wrong_values_are_refused() {
    let preset = message(with_candidate("preset = \"fast\""));
    let frames = message(with_candidate("[disconnect]\npump_frames = 0"));
    let negative = message(with_candidate("[disconnect]\npump_frames = -1"));
    let text = message(with_candidate("[disconnect]\npump_frames = \"8\""));
    let no_table = message(parse("disconnect = 3"));
    let policy = message(with_candidate("[disconnect]\npolicy = \"wait\""));
    let dialect = message(parse(&format!("{CANDIDATE}dialect = \"gemini\"\n")));
    let syntax = message(parse("[run\n"));

    assert_eq!(
        preset,
        "gateway.toml:1:10: unknown preset \"fast\": the only one is \"recommended\""
    );
    assert_eq!(
        frames,
        "gateway.toml:2:15: disconnect.pump_frames = 0 is not from 1 to 65536"
    );
    assert!(
        negative.contains("disconnect.pump_frames = -1 is not"),
        "{negative}"
    );
    assert!(
        text.contains("disconnect.pump_frames = \"8\" is not"),
        "{text}"
    );
    assert!(
        no_table.starts_with("gateway.toml:1:14: invalid type: integer `3`, expected a table"),
        "{no_table}"
    );
    assert!(
        policy.starts_with("gateway.toml:2:10: unknown variant `wait`"),
        "{policy}"
    );
    assert!(
        dialect.starts_with("gateway.toml:4:11: unknown variant `gemini`"),
        "{dialect}"
    );
    assert!(syntax.starts_with("gateway.toml:1:"), "{syntax}");
}

#[test]
fn a_file_that_cannot_be_read_keeps_the_cause() {
    let error = Config::load(Path::new("no/such/gateway.toml")).unwrap_err();

    assert_eq!(error.to_string(), "no/such/gateway.toml: cannot be read");
    assert!(error.source().is_some());
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
