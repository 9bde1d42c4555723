mod agents;
mod auth;
mod candidates;
mod cors;
mod disconnect;
mod fallback;
mod health;
mod limits;
mod loops;
mod progress;
mod retry;
mod secrets;
mod server;
mod stop;
mod watchdog;
mod whole;

use std::error::Error;
use std::path::Path;

use super::error::ConfigError;
use super::{Config, Dialect, resolve};

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
fn a_candidate_is_named_after_its_model() {
    let candidate = &with_candidate("").unwrap().candidates[0];

    assert_eq!(candidate.name, "m");
    assert_eq!(candidate.dialect, Dialect::Any);
    assert_eq!(candidate.api_key, None);
    assert_eq!(candidate.context_window, None);
    assert!(!candidate.trusted);
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
fn other_wrong_values_are_refused() {
    let preset = message(with_candidate("preset = \"fast\""));
    let no_table = message(parse("disconnect = 3"));
    let policy = message(with_candidate("[disconnect]\npolicy = \"wait\""));
    let dialect = message(parse(&format!("{CANDIDATE}dialect = \"gemini\"\n")));
    let syntax = message(parse("[run\n"));

    assert_eq!(
        preset,
        "gateway.toml:1:10: unknown preset \"fast\": the only one is \"recommended\""
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
