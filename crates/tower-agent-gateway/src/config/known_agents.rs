//! `[known_agents]`: how requests without `x-run-id` get their runs.

use http::HeaderName;
use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::{
    config::{ConfigError, KeyPart},
    layers::run::{AgentHeaders, KnownAgents},
};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct KnownAgentsTable {
    /// Whether the agents that the gateway knows get runs. True by default.
    built_in: Option<bool>,
    /// Further agents, which come first.
    headers: Vec<HeadersTable>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct HeadersTable {
    /// The header with the session.
    session: String,
    /// The header with the user's turn; without it the words of the user tell turns apart.
    turn: Option<String>,
    /// The header with the sub-agent, which the main agent does not send.
    agent: Option<String>,
    /// The header with the sub-agent's parent; the main agent is the parent without it. Only with
    /// `agent`.
    parent: Option<String>,
}

pub(super) fn known_agents(table: &KnownAgentsTable) -> Result<KnownAgents, ConfigError> {
    let known = match table.built_in {
        Some(false) => KnownAgents::none(),
        _ => KnownAgents::new(),
    };
    let mut errors = Vec::new();
    let known = (table.headers.iter().enumerate()).fold(known, |known, (index, entry)| {
        let wrong = |key: &'static str, message| {
            let path = ["known_agents".into(), "headers".into(), index.into()];
            ConfigError::new(path.into_iter().chain([KeyPart::from(key)]), message)
        };
        match headers(entry) {
            Ok(headers) => known.with(headers),
            Err(found) => {
                errors.extend(found.into_iter().map(|(key, message)| wrong(key, message)));
                known
            }
        }
    });
    ConfigError::join(errors).map_or(Ok(known), Err)
}

/// Reads an entry; an error has its key.
fn headers(table: &HeadersTable) -> Result<AgentHeaders, Vec<(&'static str, String)>> {
    let mut errors = Vec::new();
    let mut name = |key, text: Option<&str>| -> Option<HeaderName> {
        let text = text?;
        let name = text.parse();
        name.map_err(|_| errors.push((key, format!("{text:?} is not the name of a header"))))
            .ok()
    };
    let session = name("session", Some(&table.session));
    let turn = name("turn", table.turn.as_deref());
    let agent = name("agent", table.agent.as_deref());
    let parent = name("parent", table.parent.as_deref());
    if table.parent.is_some() && table.agent.is_none() {
        errors.push(("parent", "has no effect without `agent`".to_owned()));
    }
    let Some(session) = session.filter(|_| errors.is_empty()) else {
        return Err(errors);
    };
    let mut headers = AgentHeaders::session(session);
    if let Some(turn) = turn {
        headers = headers.turn(turn);
    }
    if let Some(agent) = agent {
        headers = headers.agent(agent);
    }
    if let Some(parent) = parent {
        headers = headers.parent(parent);
    }
    Ok(headers)
}
