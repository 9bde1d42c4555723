//! `[[candidates]]`: the models and their upstreams.

use std::num::NonZeroU64;

use http::Uri;
use serde::Deserialize;
use toml::Spanned;

use super::error::Problem;
use super::file;
use super::secret::{Secret, secret};

/// One entry of `[[candidates]]`.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// The name of the candidate in calls and in logs.
    pub(crate) name: String,
    /// The model that requests to the upstream name.
    pub(crate) model: String,
    /// The part of the URL before the operation: absolute, without query or trailing slash.
    pub(crate) base_url: Uri,
    /// The API that the upstream speaks.
    pub(crate) dialect: Dialect,
    /// The credential that its upstream gets, if any.
    pub(crate) api_key: Option<Secret>,
    /// The context window of the model in tokens, if known.
    pub(crate) context_window: Option<NonZeroU64>,
    /// Whether the gateway believes the upstream's `x-terminal-reason` and sends it the run's
    /// id.
    pub(crate) trusted: bool,
}

/// The API that a candidate's upstream speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dialect {
    /// All of them: each request goes on in its own dialect.
    #[default]
    Any,
    /// OpenAI chat, Responses and embeddings.
    OpenAi,
    /// Anthropic messages.
    Anthropic,
}

pub(super) fn candidates(
    files: Vec<Spanned<file::CandidateTable>>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Candidate>, Problem> {
    if files.is_empty() {
        return Err(Problem::new(
            "no candidate: add one [[candidates]] with `model` and `base_url`",
        ));
    }
    let mut known: Vec<Candidate> = Vec::with_capacity(files.len());
    for file in files {
        let span = file.span();
        let candidate = candidate(file.into_inner(), &env)?;
        if known.iter().any(|other| other.name == candidate.name) {
            let message = format!(
                "a second candidate is named {:?}: give it another `name`",
                candidate.name
            );
            return Err(Problem::new(message).at(span));
        }
        known.push(candidate);
    }
    Ok(known)
}

fn candidate(
    file: file::CandidateTable,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Candidate, Problem> {
    if file.model.get_ref().is_empty() {
        return Err(Problem::new("candidates.model is empty").at(file.model.span()));
    }
    if let Some(name) = file.name.as_ref().filter(|name| name.get_ref().is_empty()) {
        return Err(Problem::new("candidates.name is empty").at(name.span()));
    }
    let model = file.model.into_inner();
    let name = file.name.map_or_else(|| model.clone(), Spanned::into_inner);
    let api_key = file
        .api_key_env
        .map(|variable| secret(&format!("candidate {name:?}"), &variable, env))
        .transpose()?;
    Ok(Candidate {
        base_url: url("candidates.base_url", &file.base_url, "https://host/v1")?,
        dialect: file.dialect,
        context_window: file.context_window,
        trusted: file.trusted,
        name,
        model,
        api_key,
    })
}

/// Resolves the URL of `key`; errors say what it should look like.
pub(super) fn url(key: &str, text: &Spanned<String>, example: &str) -> Result<Uri, Problem> {
    let url = text.get_ref();
    // Hidden, because the message ends up in logs and the URL may hold a password.
    let shown = if url.contains('@') { "[hidden]" } else { url };
    let wrong = |why: &str| {
        let message = format!("{key} = {shown:?} {why}, as in {example:?}");
        Problem::new(message).at(text.span())
    };

    let uri: Uri = url
        .trim_end_matches('/')
        .parse()
        .map_err(|error| wrong(&format!("is not a URL ({error}): it must be absolute")))?;
    let (Some("http" | "https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(wrong("must be an absolute http or https URL"));
    };
    if url.contains('@') {
        return Err(wrong("must not hold credentials"));
    }
    if uri.query().is_some() || url.contains('#') {
        return Err(wrong("must have no query and no fragment"));
    }
    if authority.host().is_empty()
        || (authority.port_u16().is_none() && authority.as_str() != authority.host())
    {
        return Err(wrong("must name a host, and a port only from 0 to 65535"));
    }
    Ok(uri)
}
