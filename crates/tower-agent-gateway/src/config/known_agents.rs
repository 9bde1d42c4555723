//! `[known_agents]`: how requests without `x-run-id` get their runs.

use http::HeaderName;
use serde::Deserialize;
use tower_agent::{
    config::{ConfigError, KeyPart},
    layers::run::{AgentHeaders, KnownAgents},
};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct KnownAgentsTable {
    built_in: Option<bool>,
    headers: Vec<HeadersTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct HeadersTable {
    session: String,
    turn: Option<String>,
    agent: Option<String>,
    parent: Option<String>,
}

pub(super) fn known_agents(table: &KnownAgentsTable) -> Result<KnownAgents, ConfigError> {
    let known = match table.built_in {
        Some(false) => KnownAgents::none(),
        _ => KnownAgents::new(),
    };
    let mut entries = table.headers.iter().enumerate();
    entries.try_fold(known, |known, (index, entry)| {
        let headers = headers(entry).map_err(|(key, message)| {
            let path = [
                KeyPart::from("known_agents"),
                "headers".into(),
                index.into(),
            ];
            ConfigError::new(path.into_iter().chain([KeyPart::from(key)]), message)
        })?;
        Ok(known.with(headers))
    })
}

fn headers(table: &HeadersTable) -> Result<AgentHeaders, (&'static str, String)> {
    let name = |key, text: &str| {
        let name: Result<HeaderName, _> = text.parse();
        name.map_err(|_| (key, format!("{text:?} is not the name of a header")))
    };
    let optional = |key, text: &Option<String>| {
        let text = text.as_deref();
        text.map(|text| name(key, text)).transpose()
    };
    let mut headers = AgentHeaders::session(name("session", &table.session)?);
    if let Some(turn) = optional("turn", &table.turn)? {
        headers = headers.turn(turn);
    }
    if table.parent.is_some() && table.agent.is_none() {
        return Err(("parent", "is of no use without `agent`".to_owned()));
    }
    if let Some(agent) = optional("agent", &table.agent)? {
        headers = headers.agent(agent);
    }
    if let Some(parent) = optional("parent", &table.parent)? {
        headers = headers.parent(parent);
    }
    Ok(headers)
}
