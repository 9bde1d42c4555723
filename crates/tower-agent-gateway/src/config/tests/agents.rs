//! covers: A5

use super::{message, with_candidate};

const AUTH: &str = "[auth]\nkeys_env = \"KEYS\"\n";

#[test]
fn an_agent_without_a_key_is_nobody() {
    let keyless = message(with_candidate("[agents.coder]\ntimeout = \"1s\""));
    let unknown = message(with_candidate(&format!("{AUTH}[agents.codr]\n")));
    let known = with_candidate(&format!("{AUTH}[agents.coder]\n")).unwrap();

    assert_eq!(
        keyless,
        "gateway.toml:1:9: agents.coder: is nobody: without [auth] no caller has a name"
    );
    assert_eq!(
        unknown,
        "gateway.toml:3:9: agents.codr: is nobody: no key of [auth] has this name"
    );
    assert_eq!(known.agent.agents().collect::<Vec<_>>(), ["coder"]);
}

/// It is the name of a table that means all agents, so it is not an agent's.
#[test]
fn the_defaults_of_agents_need_no_key() {
    let config = with_candidate("[agents.defaults]\ntimeoutSeconds = 5").unwrap();

    assert_eq!(config.agent.agents().count(), 0);
}
