//! `[cors]`: the other origins from which pages may call.

use http::{HeaderValue, Uri};
use toml::Spanned;

use super::error::Problem;
use super::file;

/// The origins from which pages may call the callers' routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cors {
    /// Any origin; allowed only if callers must show a key.
    Any,
    /// The listed origins, as browsers write them.
    Of(Vec<HeaderValue>),
}

pub(super) fn cors(table: file::CorsTable, auth: bool) -> Result<Cors, Problem> {
    let entries = table.origins.get_ref();
    if entries.is_empty() {
        let message = "cors.origins is empty: to allow none, leave [cors] out";
        return Err(Problem::new(message).at(table.origins.span()));
    }
    if let Some(any) = entries.iter().find(|entry| entry.get_ref() == "*") {
        let wrong = |why: &str| Err(Problem::new(format!("cors.origins {why}")).at(any.span()));
        return match (auth, entries.len()) {
            (true, 1) => Ok(Cors::Any),
            (true, _) => wrong("holds \"*\" and others: any origin is among them"),
            (false, _) => wrong("= [\"*\"] needs [auth]: any page could spend your keys"),
        };
    }
    entries
        .iter()
        .map(origin)
        .collect::<Result<_, _>>()
        .map(Cors::Of)
}

fn origin(entry: &Spanned<String>) -> Result<HeaderValue, Problem> {
    let text = entry.get_ref();
    let wrong = |why: &str| {
        let message =
            format!("cors.origins holds {text:?}, which {why}, as in \"https://app.example\"");
        Problem::new(message).at(entry.span())
    };
    // Not only parsed: a path would parse too, and then the entry would never match.
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
