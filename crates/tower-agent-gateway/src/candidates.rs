//! The models that may serve, as the library knows them.

use http::{HeaderMap, Request, header};
use http_body::Body;
use tower_agent::{
    BoxError, Candidate, CandidateDialect, Cooldowns, IdleBreaker, ModelFallbackLayer, RetryBudget,
    error::InvalidRequest,
};

use crate::config::{self, Config, Dialect, Retry, SharedBudget};

/// Moves calls between the candidates of a configuration, in its order. Clones
/// know together whom to leave alone, and who served a session.
pub(crate) fn fallback(config: &Config) -> Result<ModelFallbackLayer, BoxError> {
    let candidates = config.candidates.iter().map(candidate);
    let candidates = candidates.collect::<Result<Vec<_>, _>>()?;
    let layer = ModelFallbackLayer::new(candidates).sticky(config.fallback.sticky);
    Ok(match config.fallback.cooldown {
        true => layer.cooldowns(Cooldowns::new()),
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

/// What all runs together may repeat; clones share it.
pub(crate) fn shared(shared: Option<SharedBudget>) -> RetryBudget {
    match shared {
        Some(shared) => RetryBudget::new().shared(shared.ratio, shared.floor),
        None => RetryBudget::new().unshared(),
    }
}

/// What one run may repeat, and how many failures it may have, out of what all
/// share.
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

/// Lets pass what may be JSON; the fallback layer reads it. A form would name
/// its model itself, and nothing at all would reach an upstream as it is.
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
