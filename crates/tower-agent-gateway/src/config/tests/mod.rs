mod agents;
mod auth;
mod cors;
mod health;
mod known_agents;
mod replicas;
mod schema;
mod secrets;
mod server;
mod telemetry;
mod watchdog;
mod webhooks;
mod whole;

use std::path::Path;

use super::{Config, ConfigError};

const CANDIDATE: &str = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"\n";

/// Resolves `head` and one good candidate after it, with the variables of [`parse`].
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
    resolve(text, env)
}

/// Resolves `text` as the program resolves a file, with the variables of `env`.
fn resolve(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
    let config = Config::resolve(text, env);
    if config.is_ok() {
        schema::accepts(text);
    }
    config.map_err(|error| error.in_toml(text).in_file("gateway.toml"))
}

#[track_caller]
fn message(result: Result<Config, ConfigError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn without_tables_of_its_own_the_gateway_does_nothing_more() {
    let config = with_candidate("").unwrap();

    assert_eq!(config.control_token, None);
    assert_eq!(config.shutdown_drain, None);
    assert!(config.auth.is_none() && config.cors.is_none());
    assert!(config.health.is_none() && config.watchdog.is_none());
}

#[test]
fn there_is_a_candidate() {
    let wanted = "gateway.toml: no candidate: add one [[candidates]] with `model` and `base_url`";

    assert_eq!(message(parse("")), wanted);
    assert_eq!(message(parse("[server]\n")), wanted);
}

#[test]
fn an_unknown_key_is_named_with_its_place() {
    for (text, starts, ends) in [
        (
            "colour = 1",
            "1:1: colour: unknown key, expected one of `preset`, ",
            "",
        ),
        (
            "[runs]\n",
            "1:2: runs: unknown key, did you mean `run`? expected one of `preset`, ",
            ", `replicas`, `webhooks`",
        ),
        (
            "[run]\nstep_timout = 1",
            "2:1: run.step_timout: unknown key, ",
            ", `partial`",
        ),
        (
            "[control]\ntoken = 1",
            "2:1: control.token: unknown key, ",
            "`token_env`, `token_file`, `drain`",
        ),
    ] {
        let message = message(with_candidate(text));
        let is_it = message.starts_with(&format!("gateway.toml:{starts}"));
        assert!(is_it && message.ends_with(ends), "{message}");
    }
}

#[test]
fn the_stacks_tables_and_the_gateways_are_told_in_one_way() {
    for (text, says) in [
        (
            "[run]\nstep_timeout = \"-5s\"",
            "2:16: run.step_timeout: \"-5s\" is negative",
        ),
        (
            "[control]\ndrain = \"-5s\"",
            "2:9: control.drain: \"-5s\" is negative",
        ),
        (
            "disconnect = 3",
            "1:14: disconnect: invalid type: integer `3`, expected a table",
        ),
        (
            "control = 3",
            "1:11: control: invalid type: integer `3`, expected a table",
        ),
        (
            "[[server]]\nhead_timeout = \"5s\"",
            "1:1: server: invalid type: sequence, expected a table",
        ),
        (
            "server = [\"5s\"]",
            "1:10: server: invalid type: sequence, expected a table",
        ),
        ("[run\n", "1:"),
    ] {
        let message = message(with_candidate(text));
        assert!(
            message.starts_with(&format!("gateway.toml:{says}")),
            "{message}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_the_cause() {
    let error = Config::load(Path::new("no/such/gateway.toml")).unwrap_err();

    let start = "no/such/gateway.toml: cannot be read: No such file";
    assert!(error.to_string().starts_with(start), "{error}");
}
