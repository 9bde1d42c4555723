use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::{class::FailureClass, delay};
use crate::llm::dialect::error_in;

/// The details of an upstream's error beside its type, code and message.
#[derive(Debug, Default)]
pub(super) struct Details {
    /// The reason of the error in Google's `ErrorInfo.reason`; empty if there is none.
    pub(super) reason: String,
    /// The delay that Google asks for in `RetryInfo.retryDelay`.
    pub(super) retry_delay: Option<Duration>,
    /// Whether the exceeded quota, in Google's details, is a daily one.
    is_daily: bool,
    /// Whether OpenRouter's moderation stopped the request.
    is_moderated: bool,
    /// Whether the error is that of a provider behind OpenRouter.
    is_from_provider: bool,
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
        let asked = detail["retryDelay"].as_str().and_then(delay::seconds);
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
        match status {
            Some(StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE)
                if self.is_from_provider =>
            {
                Some(FailureClass::Overloaded)
            }
            _ => self.is_moderated.then_some(FailureClass::ContentFilter),
        }
    }
}
