//! Converts `[[candidates]]`, `[fallback]` and `[retry]` into the library's layers and budgets.

use http::{HeaderMap, Request, header};
use http_body::Body;
use tower_agent::{
    BoxError, Candidate, CandidateDialect, Cooldowns, IdleBreaker, ModelFallbackLayer, RetryBudget,
    error::InvalidRequest,
};

use crate::config::{self, Config, Dialect, Retry, SharedBudget};

/// Builds the layer that moves calls between the candidates, in the file's order.
///
/// Clones share the sticky sessions.
pub(crate) fn fallback(
    config: &Config,
    cooldowns: &Cooldowns,
) -> Result<ModelFallbackLayer, BoxError> {
    let candidates = config.candidates.iter().map(candidate);
    let candidates = candidates.collect::<Result<Vec<_>, _>>()?;
    let layer = ModelFallbackLayer::new(candidates).sticky(config.fallback.sticky);
    Ok(match config.fallback.cooldown {
        true => layer.cooldowns(cooldowns.clone()),
        false => layer,
    })
}

fn candidate(from: &config::Candidate) -> Result<Candidate, BoxError> {
    let mut candidate = Candidate::new(&from.model)
        .name(&from.name)
        .base_url(from.base_url.clone())?
        .dialect(match from.dialect {
            Dialect::Any => CandidateDialect::Any,
            Dialect::OpenAi => CandidateDialect::OpenAi,
            Dialect::Anthropic => CandidateDialect::Anthropic,
        })
        .trusted(from.trusted);
    if let Some(key) = &from.api_key {
        candidate = candidate.api_key(key.expose())?;
    }
    if let Some(tokens) = from.context_window {
        candidate = candidate.context_window(tokens.get());
    }
    Ok(candidate)
}

/// The retry budget that all runs share; clones draw from the same one.
pub(crate) fn shared(shared: Option<SharedBudget>) -> RetryBudget {
    match shared {
        Some(shared) => RetryBudget::new().shared(shared.ratio, shared.floor),
        None => RetryBudget::new().unshared(),
    }
}

/// Adds the limits of one run, one call and the delays to `shared`.
pub(crate) fn budget(
    shared: RetryBudget,
    retry: &Retry,
    idle: Option<config::IdleBreaker>,
) -> RetryBudget {
    let budget = shared
        .max_attempts_per_candidate(retry.attempts)
        .per_error_key(retry.per_error_key)
        .per_run(retry.per_run)
        .consecutive_errors(retry.consecutive_errors)
        .delays(retry.base_delay, retry.max_delay)
        .max_retry_after(retry.max_retry_after);
    let Some(idle) = idle else {
        return budget;
    };
    budget.idle_breaker(
        idle.silent,
        match idle.fails_over {
            true => IdleBreaker::FailOver,
            false => IdleBreaker::End,
        },
    )
}

/// Refuses an empty body or a form; any other body may be JSON.
///
/// The fallback layer parses JSON and would pass these two on. A form names its model itself,
/// and an empty body would reach an upstream unchanged.
pub(crate) fn may_be_json<B: Body>(request: Request<B>) -> Result<Request<B>, InvalidRequest> {
    if request.body().is_end_stream() {
        return Err(InvalidRequest::new(
            "the request body is not JSON: it is empty",
        ));
    }
    if is_form(request.headers()) {
        return Err(InvalidRequest::new(
            "the request body is not JSON: it is a form",
        ));
    }
    Ok(request)
}

fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| {
        let (kind, _) = kind.split_once('/').unwrap_or((kind, ""));
        kind.trim().eq_ignore_ascii_case("multipart")
    })
}
