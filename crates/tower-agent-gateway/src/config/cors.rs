//! `[cors]`: the other origins from which pages may call.

use http::{HeaderValue, Uri};
use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::config::{ConfigError, KeyPart};

/// The origins, beside this machine's, from which pages may call the callers' routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cors {
    /// Any origin; allowed only if callers must show a key.
    Any,
    /// The listed origins, as browsers write them.
    Of(Vec<HeaderValue>),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct CorsTable {
    /// The origins of pages that may call `/v1`: scheme, host and port; "*" only with `[auth]`.
    #[schemars(length(min = 1))]
    origins: Vec<String>,
}

pub(super) fn cors(table: &CorsTable, auth: bool) -> Result<Cors, ConfigError> {
    let entries = &table.origins;
    if entries.is_empty() {
        let message = "is empty: to allow none, leave [cors] out";
        return Err(ConfigError::new(["cors", "origins"], message));
    }
    if let Some(any) = entries.iter().position(|entry| entry == "*") {
        let wrong = |why: &str| Err(at(any, why));
        return match (auth, entries.len()) {
            (true, 1) => Ok(Cors::Any),
            (true, _) => wrong("is \"*\" beside others: any origin is among them"),
            (false, _) => wrong("is \"*\", which needs [auth]: any page could spend your keys"),
        };
    }
    let (mut origins, mut errors) = (Vec::new(), Vec::new());
    for (index, text) in entries.iter().enumerate() {
        match origin(index, text) {
            Ok(origin) => origins.push(origin),
            Err(error) => errors.push(error),
        }
    }
    ConfigError::join(errors).map_or(Ok(Cors::Of(origins)), Err)
}

fn at(index: usize, message: impl Into<String>) -> ConfigError {
    let key = [KeyPart::from("cors"), "origins".into(), index.into()];
    ConfigError::new(key, message)
}

fn origin(index: usize, text: &str) -> Result<HeaderValue, ConfigError> {
    let wrong = |why: &str| {
        let message = format!("{text:?} {why}, as in \"https://app.example\"");
        at(index, message)
    };
    // Parsing alone is not enough: a URL with a path parses too, and no `Origin` would match it.
    let (scheme, rest) = text
        .split_once("://")
        .ok_or_else(|| wrong("is not an origin: it must be scheme and host"))?;
    if !scheme.starts_with(|first: char| first.is_ascii_alphabetic()) {
        return Err(wrong(
            "is not an origin: its scheme must begin with a letter",
        ));
    }
    if rest.contains(['/', '?', '#', '@', '*']) {
        return Err(wrong("must be scheme, host and port alone"));
    }
    let uri: Uri = text
        .parse()
        .map_err(|error| wrong(&format!("is not an origin ({error})")))?;
    let authority = uri.authority().filter(|authority| {
        let port = authority.port_u16().is_some() || authority.as_str() == authority.host();
        port && !authority.host().is_empty()
    });
    let Some(authority) = authority else {
        return Err(wrong("must name a host, and a port only from 0 to 65535"));
    };
    let (scheme, host) = (
        scheme.to_ascii_lowercase(),
        authority.host().to_ascii_lowercase(),
    );
    let usual = match &*scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    // Browsers leave the default port out.
    let written = match authority.port_u16().filter(|port| Some(*port) != usual) {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    };
    HeaderValue::try_from(written).map_err(|_| wrong("no header may carry"))
}
