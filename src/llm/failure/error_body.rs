//! Finds out whether an answer's body is an error or an HTML page. Also reads the details of errors
//! of Google and OpenRouter.

use std::{sync::LazyLock, time::Duration};

use http::{HeaderMap, StatusCode, header};
use memchr::memmem::Finder;
use serde_json::Value;

use super::{class::FailureClass, error_codes, retry_after};
use crate::llm::{
    dialect::{StreamFailure, error_in},
    json_scanner::Scanner,
};

static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));

/// Whether the body of an answer with a good status is an error.
pub(super) fn is_error(body: &[u8]) -> bool {
    // This search avoids parsing nearly every answer: only a body with `error` as a key or as a
    // whole string is parsed. In a text that quotes the key, a backslash stands before the second
    // quotation mark, so the text does not match.
    if ERROR.find(body).is_none() {
        return false;
    }
    // Google sends a stream without SSE as a JSON list; this function reads its first element.
    let mut first = None;
    let read = Scanner::new(body).array(|json| {
        first.get_or_insert(json.span()?);
        Ok(())
    });
    let body = match read {
        Ok(true) => first.unwrap_or_default(),
        _ => body,
    };
    let Ok([error, kind, object, status]) =
        Scanner::members(body, [b"error", b"type", b"object", b"status"])
    else {
        return false;
    };
    let keys: [&[u8]; 5] = [b"choices", b"output", b"content", b"data", b"candidates"];
    let answers = Scanner::members(body, keys).unwrap_or_default();
    if is(kind, b"\"error\"") || is(object, b"\"error\"") || answers[0].is_some_and(have_failed) {
        return true;
    }
    let is_answer = answers.into_iter().flatten().any(is_filled);
    // A response with the status `failed` counts even with content: the model's output so far.
    let may_fail = is(status, b"\"failed\"") || !is_answer;
    may_fail && error.is_some_and(reports_error)
}

/// Whether an answer's body is an HTML page, as from a wrong address or a proxy.
pub(super) fn is_page(headers: &HeaderMap, body: &[u8]) -> bool {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let body = body.trim_ascii_start();
    let starts = |start: &[u8]| {
        let head = body.get(..start.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(start))
    };
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.as_bytes().get(..9));
    let is_announced = kind.is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/html"));
    // Some servers send JSON with the content type `text/html`, so its first byte counts more.
    let is_json = starts(b"{") || starts(b"[");
    starts(b"<!doctype html") || starts(b"<html") || is_announced && !is_json
}

fn is(span: Option<&[u8]>, wanted: &[u8]) -> bool {
    span == Some(wanted)
}

/// Whether a JSON value has more than two characters without whitespace, unlike `""`, `[]` and
/// `{}`, and is not null.
fn is_filled(span: &[u8]) -> bool {
    let text = span.iter().filter(|byte| !byte.is_ascii_whitespace());
    span != b"null" && text.take(3).count() == 3
}

/// Whether an answer has choices, and every one of them ended with an error.
fn have_failed(choices: &[u8]) -> bool {
    let (mut all, mut failed) = (0, 0);
    let read = Scanner::new(choices).array(|json| {
        let [error, reason] = Scanner::members(json.span()?, [b"error", b"finish_reason"])?;
        let error = error.filter(|error| error.starts_with(b"{") && is_filled(error));
        all += 1;
        failed += u32::from(is(reason, b"\"error\"") || error.is_some_and(reports_error));
        Ok(())
    });
    read.is_ok() && all > 0 && all == failed
}

/// Whether the value of an `error` key reports an error.
fn reports_error(span: &[u8]) -> bool {
    Scanner::new(span).is_error().unwrap_or_default()
}

/// The details of an upstream's error beside its type, code and message.
#[derive(Debug, Default)]
pub(super) struct Details {
    /// The reason of the error in Google's `ErrorInfo.reason`; empty if there is none.
    pub(super) reason: String,
    /// The delay that Google asks for in `RetryInfo.retryDelay`.
    pub(super) retry_delay: Option<Duration>,
    /// Whether Google's details name a daily quota as the exceeded one.
    is_daily: bool,
    /// Whether OpenRouter's moderation stopped the request.
    is_moderated: bool,
    /// Whether the error is that of a provider behind OpenRouter.
    is_from_provider: bool,
    /// Whether the provider behind OpenRouter says that the model's context is too short.
    is_overflow: bool,
}

/// Whether an error that a provider sent says that the model's context is too short.
fn is_overflow(raw: &str) -> bool {
    let error = StreamFailure::read(raw.as_bytes());
    let names = [&*error.kind, &*error.code];
    let class = error_codes::find_code(error_codes::EXACT, &names)
        .or_else(|| error_codes::find_message(None, &names, &error.message));
    class == Some(FailureClass::ContextOverflow)
}

impl Details {
    /// Reads the details of an error in a JSON body; any other body has none.
    pub(super) fn read(body: &[u8]) -> Self {
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return Self::default();
        };
        let error = error_in(&body);
        let metadata = &error["metadata"];
        let mut details = Self {
            is_moderated: metadata["reasons"].is_array() || metadata["flagged_input"].is_string(),
            is_from_provider: metadata["provider_name"].is_string(),
            is_overflow: metadata["raw"].as_str().is_some_and(is_overflow),
            ..Self::default()
        };
        for detail in error["details"].as_array().into_iter().flatten() {
            details.add(detail);
        }
        details
    }

    fn add(&mut self, detail: &Value) {
        if let Some(reason) = detail["reason"].as_str() {
            self.reason = reason.to_owned();
        }
        let asked = detail["retryDelay"].as_str().and_then(retry_after::seconds);
        self.retry_delay = self.retry_delay.max(asked);
        let mut violations = detail["violations"].as_array().into_iter().flatten();
        self.is_daily |= violations.any(|violation| {
            let says = |key: &str, words: &str| {
                let text = violation[key].as_str();
                text.is_some_and(|text| text.contains(words))
            };
            says("quotaId", "PerDay") || says("quotaMetric", "per_day")
        });
    }

    /// The failure class that the details determine, if any.
    pub(super) fn class(&self, status: Option<StatusCode>) -> Option<FailureClass> {
        if self.is_daily {
            return Some(FailureClass::Quota);
        }
        match status.map(|status| status.as_u16()) {
            None | Some(400 | 413 | 422) if self.is_overflow => Some(FailureClass::ContextOverflow),
            Some(502 | 503) if self.is_from_provider => Some(FailureClass::Overloaded),
            _ => self.is_moderated.then_some(FailureClass::ContentFilter),
        }
    }
}
