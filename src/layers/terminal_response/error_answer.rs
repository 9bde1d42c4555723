use std::{borrow::Cow, error::Error, fmt};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::LengthLimitError;

use crate::{
    attempt::{self, FailedAttempts},
    error::{BoxError, InvalidRequest, RequestCut, chain},
    headers::{X_RUN_ID, X_SHOULD_RETRY, X_TERMINAL_REASON},
    layers::run::CallFailed,
    llm::{
        NotAStream,
        dialect::{Dialect, Truncated, error_body},
        failure::{AllCandidatesCoolingDown, IncompleteJson, Redirected, TransportError},
        seconds,
        sse::ErrorInfo,
    },
    registry::RunsFrozen,
    run::{InvalidRunId, RunId, RunPaused, TerminalReason, Terminated},
    supervise::dialect_of,
};

/// The properties of the caller's request that decide the format of an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorFormat {
    pub(super) dialect: Dialect,
    /// Whether the request is a HEAD request, which gets an answer without a body.
    pub(super) head: bool,
}

impl ErrorFormat {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let anthropic = || request.headers().contains_key("anthropic-version");
        let dialect = match dialect_of(request) {
            Dialect::Any if anthropic() => Dialect::Anthropic,
            known => known,
        };
        Self {
            dialect,
            head: request.method() == Method::HEAD,
        }
    }
}

/// The status, code, text and headers of an error answer for the caller.
pub(super) struct ErrorAnswer {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) run: Option<RunId>,
    status: StatusCode,
    reason: Option<TerminalReason>,
    tries: Option<FailedAttempts>,
    retry_after: Option<u64>,
    /// Whether the run is paused: the client is told to try again, as a 503 alone may not tell it.
    is_paused: bool,
}

impl ErrorAnswer {
    /// The answer to a call that failed with `error`; `is_unready` says that the inner service did
    /// not become ready for the call.
    pub(super) fn of(error: &BoxError, statuses: Statuses, is_unready: bool) -> Self {
        let run = chain(&**error).find_map(|error| error.downcast_ref::<CallFailed>());
        // A `Terminated` of another run is not an end of this run, but a failure of its call.
        let end = Terminated::find(&**error);
        let tries = FailedAttempts::find(&**error).cloned();
        if let Some(end) = end.filter(|end| run.is_none_or(|failed| failed.run == end.run)) {
            return Self {
                code: end.reason.as_str().to_owned(),
                message: end.message(),
                run: Some(end.run.clone()),
                status: (statuses.reason)(&end.reason),
                reason: Some(end.reason.clone()),
                tries,
                retry_after: None,
                is_paused: false,
            };
        }
        let retry_after = chain(&**error).find_map(|error| {
            let is_frozen = error.is::<RunsFrozen>();
            if error.is::<RunPaused>() {
                return Some(RunPaused::RETRY_AFTER);
            }
            let cooling = error.downcast_ref::<AllCandidatesCoolingDown>();
            let cooling = cooling.map(AllCandidatesCoolingDown::soonest);
            cooling.or_else(|| is_frozen.then_some(RunsFrozen::RETRY_AFTER))
        });
        let is_paused = chain(&**error).any(|error| error.is::<RunPaused>());
        let (status, code, mut message) = describe(error, is_unready);
        if let Some(why) = tries.as_ref().and_then(FailedAttempts::why_none_followed) {
            message = format!("{message} No other attempt followed: {why}.");
        }
        // The log gets the causes and the caller does not, as they may name hosts.
        tracing::warn!(
            target: "tower_agent",
            run = run.map(|failed| tracing::field::display(&failed.run)),
            code = &*code,
            error = %Causes(&**error),
            "call failed"
        );
        Self {
            code: code.into_owned(),
            message,
            run: run.map(|failed| failed.run.clone()),
            status: (statuses.error)(error).unwrap_or(status),
            reason: None,
            tries,
            retry_after: retry_after.map(seconds),
            is_paused,
        }
    }
}

/// Prints an error and its sources for a log, without repetitions.
///
/// Some errors repeat the text of their source. `CallFailed` is left out, as the log has the run's
/// id in a field of its own, and so are failed attempts that `no further attempt` has listed.
struct Causes<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = String::new();
        let causes = chain(self.0).filter(|it| !it.is::<CallFailed>() && !attempt::is_logged(*it));
        for error in causes {
            let text = error.to_string();
            if !last.is_empty() {
                if last.ends_with(&text) {
                    continue;
                }
                f.write_str(": ")?;
            }
            f.write_str(&text)?;
            last = text;
        }
        Ok(())
    }
}

fn describe(error: &BoxError, is_unready: bool) -> (StatusCode, Cow<'static, str>, String) {
    let invalid = |message| {
        (
            StatusCode::BAD_REQUEST,
            "invalid_request_error".into(),
            message,
        )
    };
    let upstream = |message| (StatusCode::BAD_GATEWAY, "upstream_failed".into(), message);
    for cause in chain(&**error) {
        if let Some(error) = cause.downcast_ref::<InvalidRunId>() {
            return invalid(format!("The run or session id is unusable: {error}."));
        }
        if let Some(error) = cause.downcast_ref::<InvalidRequest>() {
            return invalid(error.to_string());
        }
        if cause.is::<RunsFrozen>() {
            let message = "The operator of this server admits no new runs for now (frozen). Runs that \
                           are open go on.";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return (status, "frozen".into(), message.to_owned());
        }
        if let Some(paused) = cause.downcast_ref::<RunPaused>() {
            let mut message = paused.to_string();
            message[..1].make_ascii_uppercase();
            let message = format!("{message} (run_paused). Try again later.");
            return (
                StatusCode::SERVICE_UNAVAILABLE,
                "run_paused".into(),
                message,
            );
        }
        if let Some(cooling) = cause.downcast_ref::<AllCandidatesCoolingDown>() {
            // No names of candidates: callers must not learn which of the program's accounts
            // failed.
            let message = format!(
                "No model was asked: all that could serve have failed, and are left alone for {} s more.",
                seconds(cooling.soonest())
            );
            return (
                StatusCode::SERVICE_UNAVAILABLE,
                "cooling_down".into(),
                message,
            );
        }
        if cause.is::<RequestCut>() && !chain(cause).any(|cause| cause.is::<LengthLimitError>()) {
            return invalid("The request could not be read to its end.".to_owned());
        }
        if cause.is::<LengthLimitError>() {
            let message = "The request body is larger than this server takes.".to_owned();
            return (
                StatusCode::PAYLOAD_TOO_LARGE,
                "request_too_large".into(),
                message,
            );
        }
        if let Some(late) = cause.downcast_ref::<NotAStream>() {
            let status = late.status;
            let said = match &*late.message {
                "" => "the answer is no stream of events",
                message => message,
            };
            let message = format!("The upstream answered {status}: {said} (upstream_failed).");
            let (answered, code, message) = upstream(message);
            // Agents act on the upstream's own code: one that compacts on an overflow, for example.
            let code = late.code.clone().map_or(code, Cow::Owned);
            return (answered, code, message);
        }
        if let Some(redirected) = cause.downcast_ref::<Redirected>() {
            return upstream(format!(
                "The upstream answered {}, which is no answer of a model and is not followed (upstream_failed).",
                redirected.status
            ));
        }
        if cause.is::<Truncated>() || cause.is::<IncompleteJson>() {
            let message = "The upstream's answer was cut before its end (upstream_failed). Retry, or simplify the request.";
            return upstream(message.to_owned());
        }
    }
    if TransportError::is_in(&**error) {
        let message =
            "The upstream could not be reached, or the connection to it broke (upstream_failed).";
        return upstream(message.to_owned());
    }
    let (status, message) = match is_unready {
        true => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The server is not ready to take the request.",
        ),
        false => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "The server failed to process the request.",
        ),
    };
    (status, "server_error".into(), message.to_owned())
}

/// Makes the answer in the format of the caller's request.
pub(super) fn build(caller: ErrorFormat, error: ErrorAnswer) -> Response<Bytes> {
    let run = error.run.as_ref().map(RunId::to_string);
    let body = error_body(
        caller.dialect,
        &ErrorInfo {
            code: &error.code,
            message: &error.message,
            run_id: run.as_deref(),
            sequence: 0,
            response_id: None,
        },
    );
    let mut answer = Response::new(body);
    *answer.status_mut() = error.status;
    let headers = answer.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    // A `RunId` only has characters that are valid in a header.
    if let Some(Ok(run)) = run.map(HeaderValue::try_from) {
        headers.insert(X_RUN_ID, run);
    }
    if let Some(after) = error.retry_after {
        headers.insert(header::RETRY_AFTER, after.into());
    }
    if error.is_paused {
        headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("true"));
    }
    if let Some(reason) = error.reason {
        if !matches!(reason, TerminalReason::Failed(_)) {
            set_reason_headers(&reason, headers);
        }
        answer.extensions_mut().insert(reason);
    }
    if let Some(tries) = error.tries {
        answer.extensions_mut().insert(tries);
    }
    answer
}

/// Sets the reason's headers; SDKs obey `x-should-retry` before they look at the status.
fn set_reason_headers(reason: &TerminalReason, headers: &mut HeaderMap) {
    if let Ok(name) = HeaderValue::try_from(reason.as_str()) {
        headers.insert(X_TERMINAL_REASON, name);
    }
    let retry = if reason.is_retryable() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        "true"
    } else {
        "false"
    };
    headers.insert(X_SHOULD_RETRY, HeaderValue::from_static(retry));
}

/// The functions that choose the status of an answer: for a reason, and for another error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Statuses {
    pub(super) reason: fn(&TerminalReason) -> StatusCode,
    pub(super) error: fn(&BoxError) -> Option<StatusCode>,
}

impl Statuses {
    pub(super) const DEFAULT: Self = Self {
        reason: TerminalReason::status,
        error: |_| None,
    };
}
