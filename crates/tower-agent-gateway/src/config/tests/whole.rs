//! Files as people write them.

use std::time::Duration;

use super::super::{Config, Dialect, Retry, SharedBudget};
use super::{CANDIDATE, parse};

#[test]
fn a_full_file_is_read() {
    let config = parse(
        r#"
        [run]
        step_timeout = "5m"
        max_turn_time = "30m"
        timeout = "1h"
        idle = "20m"
        max_turns = 40
        [attempt]
        step_timeout = "1500ms"
        first_token_timeout = "60s"
        max_time = "10m"
        hold = "30s"
        [retry]
        max_attempts_per_candidate = 3
        per_error_key = 4
        per_run = 20
        consecutive_errors = 5
        shared_ratio = 0.5
        shared_floor = 2
        base_delay = "200ms"
        max_delay = "5s"
        max_retry_after = "20s"
        [disconnect]
        policy = "cancel"
        caller_deadline = true
        [control]
        token_env = "KEY"
        drain = "3s"
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
    assert_eq!(config.run.max_turns, Some(40));
    assert_eq!(config.shutdown_drain, Some(Duration::from_secs(3)));
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
        consecutive_errors: Some(5),
        shared: Some(SharedBudget {
            ratio: 0.5,
            floor: 2,
        }),
        base_delay: Duration::from_millis(200),
        max_delay: Duration::from_secs(5),
        max_retry_after: Duration::from_secs(20),
    };
    assert_eq!(config.retry, retry);
    assert!(config.caller_deadline);
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

/// The configuration in a document; its keys are in these variables.
fn documented(document: &str) -> Config {
    let block = document.split("```toml\n").nth(1).unwrap();
    let text = block.split("```").next().unwrap();
    let text = text
        .replace("UPSTREAM_API_KEY", "KEY")
        .replace("BACKUP_API_KEY", "KEY")
        .replace("GATEWAY_KEYS", "KEYS")
        .replace("GATEWAY_TOKEN", "KEY");
    parse(&text).unwrap()
}

#[test]
fn the_readmes_configuration_is_read() {
    let config = documented(include_str!("../../../../../README.md"));

    let preset = parse(&format!("preset = \"recommended\"\n{CANDIDATE}")).unwrap();
    assert_eq!(config.candidates.len(), 2);
    assert_eq!(config.retry, preset.retry);
    assert_eq!(config.agents[0].retry.attempts, 3);
    assert!(config.cors.is_some());
}

#[test]
fn the_manuals_configuration_is_read() {
    let config = documented(include_str!("../../../../../docs/gateway.md"));

    let preset = parse(&format!("preset = \"recommended\"\n{CANDIDATE}")).unwrap();
    assert_eq!(config.candidates.len(), 2);
    assert_eq!(config.retry, preset.retry);
    assert_eq!(config.agents[0].retry.attempts, 3);
    assert!(config.cors.is_some() && config.loops.is_some() && config.stop.is_some());
}
