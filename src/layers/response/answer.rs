use std::{error::Error, fmt};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::LengthLimitError;

use crate::{
    error::{BoxError, InvalidRequest, RequestCut, chain},
    layers::run::CallFailed,
    llm::{
        dialect::error_body,
        dialect::{Dialect, Truncated},
        failure::{CoolingDown, IncompleteJson, NotAStream, Redirected, TransportError, seconds},
        sse::ErrorInfo,
    },
    run::{InvalidRunId, RunId, TerminalReason, Terminated},
    supervise::dialect_of,
};

/// Who asked, as far as the shape of an error depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorFormat {
    pub(super) dialect: Dialect,
    /// It wants no body.
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

/// What an error is called, and its text, for a caller.
pub(super) struct ErrorAnswer {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) run: Option<RunId>,
    status: StatusCode,
    reason: Option<TerminalReason>,
    retry_after: Option<u64>,
}

impl ErrorAnswer {
    pub(super) fn of(error: &BoxError, statuses: Statuses) -> Self {
        let run = chain(&**error).find_map(|error| error.downcast_ref::<CallFailed>());
        // The end of another run is a failure of ours.
        let end = Terminated::find(&**error);
        if let Some(end) = end.filter(|end| run.is_none_or(|failed| failed.run == end.run)) {
            return Self {
                code: end.reason.as_str().to_owned(),
                message: end.message(),
                run: Some(end.run.clone()),
                status: (statuses.reason)(&end.reason),
                reason: Some(end.reason.clone()),
                retry_after: None,
            };
        }
        let (status, code, message) = describe(error);
        // Whom it concerns is the operator; the caller need not know our hosts.
        tracing::warn!(
            target: "tower_agent",
            run = run.map(|failed| tracing::field::display(&failed.run)),
            code,
            error = %Causes(&**error),
            "call failed"
        );
        Self {
            code: code.to_owned(),
            message,
            run: run.map(|failed| failed.run.clone()),
            status: (statuses.error)(error).unwrap_or(status),
            reason: None,
            retry_after: cooling(error).map(|cooling| seconds(cooling.soonest())),
        }
    }
}

/// An error and its sources for a log, each once: some repeat their source, and the id of
/// the run has a field of its own.
struct Causes<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = String::new();
        for error in chain(self.0).filter(|error| !error.is::<CallFailed>()) {
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

/// Whether nobody was asked because everybody is left alone.
fn cooling(error: &BoxError) -> Option<&CoolingDown> {
    chain(&**error).find_map(|error| error.downcast_ref())
}

fn describe(error: &BoxError) -> (StatusCode, &'static str, String) {
    for cause in chain(&**error) {
        if let Some(invalid) = cause.downcast_ref::<InvalidRunId>() {
            return (
                StatusCode::BAD_REQUEST,
                "invalid_request_error",
                format!("The run or session id is unusable: {invalid}."),
            );
        }
        if let Some(invalid) = cause.downcast_ref::<InvalidRequest>() {
            let status = StatusCode::BAD_REQUEST;
            return (status, "invalid_request_error", invalid.to_string());
        }
        if let Some(cooling) = cause.downcast_ref::<CoolingDown>() {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            // Which of the program's accounts is in trouble is not for everybody.
            let message = format!(
                "No model was asked: all that could serve have failed, and are left alone for {} s more.",
                seconds(cooling.soonest())
            );
            return (status, "cooling_down", message);
        }
        if cause.is::<RequestCut>() && !chain(cause).any(|cause| cause.is::<LengthLimitError>()) {
            let message = "The request could not be read to its end.";
            return (
                StatusCode::BAD_REQUEST,
                "invalid_request_error",
                message.to_owned(),
            );
        }
        if cause.is::<LengthLimitError>() {
            return (
                StatusCode::PAYLOAD_TOO_LARGE,
                "request_too_large",
                "The request body is larger than this server takes.".to_owned(),
            );
        }
        if let Some(late) = cause.downcast_ref::<NotAStream>() {
            let said = match &*late.message {
                "" => "the answer is no stream of events",
                message => message,
            };
            let message = format!(
                "The upstream answered {}: {said} (upstream_failed).",
                late.status
            );
            return (StatusCode::BAD_GATEWAY, "upstream_failed", message);
        }
        if let Some(redirected) = cause.downcast_ref::<Redirected>() {
            let message = format!(
                "The upstream answered {}, which is no answer of a model and is not followed (upstream_failed).",
                redirected.status
            );
            return (StatusCode::BAD_GATEWAY, "upstream_failed", message);
        }
        if cause.is::<Truncated>() || cause.is::<IncompleteJson>() {
            return (
                StatusCode::BAD_GATEWAY,
                "upstream_failed",
                "The upstream's answer was cut before its end (upstream_failed). Retry, or simplify the request."
                    .to_owned(),
            );
        }
    }
    if TransportError::is_in(&**error) {
        let message =
            "The upstream could not be reached, or the connection to it broke (upstream_failed).";
        return (
            StatusCode::BAD_GATEWAY,
            "upstream_failed",
            message.to_owned(),
        );
    }
    let message = "The server failed to process the request.";
    (
        StatusCode::INTERNAL_SERVER_ERROR,
        "server_error",
        message.to_owned(),
    )
}

pub(super) fn to_error(
    caller: ErrorFormat,
    statuses: Statuses,
    error: &BoxError,
) -> Response<Bytes> {
    build(caller, ErrorAnswer::of(error, statuses))
}

pub(super) fn to_unready(
    caller: ErrorFormat,
    statuses: Statuses,
    error: &BoxError,
) -> Response<Bytes> {
    let mut told = ErrorAnswer::of(error, statuses);
    if told.reason.is_none() && told.status == StatusCode::INTERNAL_SERVER_ERROR {
        told.status = StatusCode::SERVICE_UNAVAILABLE;
        "The server is not ready to take the request.".clone_into(&mut told.message);
    }
    build(caller, told)
}

fn build(caller: ErrorFormat, told: ErrorAnswer) -> Response<Bytes> {
    let run = told.run.as_ref().map(RunId::to_string);
    let body = error_body(
        caller.dialect,
        &ErrorInfo {
            code: &told.code,
            message: &told.message,
            run_id: run.as_deref(),
            sequence: 0,
            response_id: None,
        },
    );
    let mut answer = Response::new(body);
    *answer.status_mut() = told.status;
    let headers = answer.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    // An id is made of characters that a header may hold.
    if let Some(Ok(run)) = run.map(HeaderValue::try_from) {
        headers.insert(HeaderName::from_static("x-run-id"), run);
    }
    if let Some(after) = told.retry_after {
        headers.insert(header::RETRY_AFTER, after.into());
    }
    if let Some(reason) = told.reason {
        if !matches!(reason, TerminalReason::Failed(_)) {
            forbid_retry(&reason, headers);
        }
        answer.extensions_mut().insert(reason);
    }
    answer
}

/// SDKs ask this header before they look at the status.
fn forbid_retry(reason: &TerminalReason, headers: &mut HeaderMap) {
    if let Ok(name) = HeaderValue::try_from(reason.as_str()) {
        headers.insert(HeaderName::from_static("x-terminal-reason"), name);
    }
    let retry = if reason.is_retryable() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        "true"
    } else {
        "false"
    };
    headers.insert(
        HeaderName::from_static("x-should-retry"),
        HeaderValue::from_static(retry),
    );
}

/// How reasons and other errors become statuses.
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
