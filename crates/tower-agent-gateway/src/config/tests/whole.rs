//! Files as people write them.

use tower_agent::{AgentStack, RunRegistry};

use super::{CANDIDATE, Config, parse};

/// The configuration in a document; its keys are in these variables.
fn documented(document: &str) -> Config {
    let block = document.split("```toml\n").nth(1).unwrap();
    let text = block.split("```").next().unwrap();
    let text = text
        .replace("UPSTREAM_API_KEY", "KEY")
        .replace("ANTHROPIC_API_KEY", "KEY")
        .replace("OPENAI_API_KEY", "KEY")
        .replace("BACKUP_API_KEY", "KEY")
        .replace("GATEWAY_KEYS", "KEYS")
        .replace("GATEWAY_TOKEN", "KEY");
    parse(&text).unwrap()
}

/// The stack of an agent prints its own number of attempts.
fn has_the_preset_but_for_its_agent(config: &Config) {
    let preset = parse(&format!("preset = \"recommended\"\n{CANDIDATE}")).unwrap();
    let registry = RunRegistry::new();
    let retry = |config: &Config, agent: &str| {
        let stack = AgentStack::server(&registry).limits(&config.agent);
        let printed = format!("{:?}", stack.for_agent(&config.agent, agent));
        let (_, retry) = printed.split_once("retry: Some(").unwrap();
        retry.split("attempt_ceiling").next().unwrap().to_owned()
    };
    assert_eq!(config.candidates.len(), 2);
    assert_eq!(retry(config, "other"), retry(&preset, "other"));
    assert!(retry(config, "coder").contains("max_attempts_per_candidate: 3"));
    assert!(config.cors.is_some());
}

#[test]
fn the_readmes_configuration_is_read() {
    let config = documented(include_str!("../../../../../README.md"));

    assert_eq!(config.candidates.len(), 3);
    assert!(config.agent.detects_loops() && config.agent.has_prices());
    let printed = config.agent.to_toml().unwrap();
    assert_eq!(printed["run"]["max_turns"].as_integer(), Some(50));
    assert_eq!(printed["run"]["max_cost"].as_float(), Some(5.0));
    assert_eq!(config.warnings().count(), 0);
}

#[test]
fn the_manuals_configuration_is_read() {
    let config = documented(include_str!("../../../../../docs/gateway.md"));

    has_the_preset_but_for_its_agent(&config);
    assert!(config.agent.detects_loops());
    assert_eq!(config.warnings().count(), 0);
}
