//! Asks the upstream of each candidate for its models, to find out whether the candidate can serve.

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, StatusCode, Uri};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt;
use tower_agent::{BoxError, Candidate, ReplayBody};
use tower_agent_hyper::{HyperBody, HyperService};

use crate::{
    config::Config,
    http_client::{Roots, causes, http_client, read_at_most},
};

/// The longest that one candidate is waited for.
const LIMIT: Duration = Duration::from_secs(5);

/// The most bytes of a list of models that are read.
const MOST: usize = 8 << 20;

/// The answer of one candidate's upstream to the request for its models.
///
/// It prints as a line for the operator, without a credential.
#[derive(Debug)]
pub struct Probe {
    label: String,
    model: String,
    url: Uri,
    outcome: ProbeOutcome,
}

#[derive(Debug)]
enum ProbeOutcome {
    Unreachable(String),
    Answered(StatusCode, ModelList),
}

#[derive(Debug)]
enum ModelList {
    Has,
    Lacks,
    /// The list could not be read, for this reason; empty after a status that has no list.
    Unknown(String),
}

/// Asks each candidate of a configuration at the same time, each for up to 5 s.
///
/// # Errors
///
/// If the HTTP client cannot be built.
pub async fn probe(config: &Config) -> Result<Vec<Probe>, BoxError> {
    let urls = config.agent.candidate_tables().iter();
    let roots = Roots::of(urls.map(|candidate| candidate.base_url.get()));
    let client = http_client(&config.proxy, roots)?;
    let asked = config
        .candidates
        .iter()
        .map(|candidate| ask(&client, candidate));
    Ok(join_all(asked).await.into_iter().flatten().collect())
}

/// Asks one candidate; `None` if it has no upstream of its own.
async fn ask(client: &HyperService, candidate: &Candidate) -> Option<Probe> {
    let request = candidate.models_request()?;
    let url = request.uri().clone();
    let request = request.map(|()| ReplayBody::default());
    let outcome = answer(client.clone(), request, candidate.model()).await;
    Some(Probe {
        label: candidate.label().to_owned(),
        model: candidate.model().to_owned(),
        url,
        outcome,
    })
}

async fn answer(client: HyperService, request: Request<ReplayBody>, model: &str) -> ProbeOutcome {
    let until = Instant::now() + LIMIT;
    let answer = match timeout_at(until, client.oneshot(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return ProbeOutcome::Unreachable(causes(&*error)),
        Err(_elapsed) => return ProbeOutcome::Unreachable(format!("no answer within {LIMIT:?}")),
    };
    let status = answer.status();
    if !status.is_success() {
        return ProbeOutcome::Answered(status, ModelList::Unknown(String::new()));
    }
    let list = match timeout_at(until, read(answer.into_body())).await {
        Ok(Ok(body)) => models(&body, model),
        Ok(Err(why)) => ModelList::Unknown(why),
        Err(_elapsed) => ModelList::Unknown(format!("it was not read within {LIMIT:?}")),
    };
    ProbeOutcome::Answered(status, list)
}

async fn read(body: HyperBody) -> Result<Bytes, String> {
    let body = read_at_most(body, MOST).await;
    let body = body.map_err(|error| causes(&*error))?;
    body.ok_or_else(|| format!("it is longer than {} MiB", MOST >> 20))
}

/// Looks for the model in a list, as the APIs of OpenAI and Anthropic have it.
fn models(body: &[u8], model: &str) -> ModelList {
    let list: Value = serde_json::from_slice(body).unwrap_or_default();
    let Some(entries) = list["data"].as_array() else {
        return ModelList::Unknown("the answer is not a list of models".to_owned());
    };
    let is_it = |id: &str| id == model || id.strip_suffix(model).is_some_and(|it| it == "models/");
    match entries
        .iter()
        .filter_map(|entry| entry["id"].as_str())
        .any(is_it)
    {
        true => ModelList::Has,
        false => ModelList::Lacks,
    }
}

impl Probe {
    /// Whether calls to the candidate would fail: it cannot be reached, refuses the credential, or
    /// has no such path.
    #[must_use]
    pub fn fails(&self) -> bool {
        match &self.outcome {
            ProbeOutcome::Unreachable(_) => true,
            ProbeOutcome::Answered(status, _) => matches!(status.as_u16(), 401 | 403 | 404),
        }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            label,
            model,
            url,
            outcome,
        } = self;
        write!(f, "{label}: ")?;
        match outcome {
            ProbeOutcome::Unreachable(why) => write!(f, "not reachable: GET {url}: {why}"),
            ProbeOutcome::Answered(status, list) => {
                write!(f, "reachable: GET {url}: {status}")?;
                match (list, status.as_u16()) {
                    (ModelList::Has, _) => write!(f, "; the model {model:?} is listed"),
                    (ModelList::Lacks, _) => write!(f, "; the model {model:?} is not listed"),
                    (_, 401 | 403) => f.write_str("; is the key in api_key_env right?"),
                    (_, 404) => f.write_str("; does base_url end where the API begins?"),
                    (ModelList::Unknown(why), _) if why.is_empty() => Ok(()),
                    (ModelList::Unknown(why), _) => {
                        write!(f, "; whether {model:?} is listed is unknown: {why}")
                    }
                }
            }
        }
    }
}
