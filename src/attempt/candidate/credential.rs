use std::borrow::Cow;

use http::{
    HeaderName, HeaderValue,
    header::{self, InvalidHeaderValue},
};

use super::operation::Operation;

/// Headers that say on whose account a call is.
pub(crate) static ACCOUNT: [HeaderName; 4] = [
    header::AUTHORIZATION,
    X_API_KEY,
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];

/// Headers that choose between what an account may use: another's would be
/// refused.
pub(crate) static WITHIN_ACCOUNT: [HeaderName; 2] = [
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];

/// A session at a cloud, beside what is signed.
pub(crate) const SESSION_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// Names of what says the same in a query, whatever their case.
const PARAMETERS: [&str; 5] = ["key", "api_key", "api-key", "apikey", "access_token"];

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// A key in both ways that it is sent. Without `Debug`, so that nobody derives
/// one around it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ApiKey {
    bearer: HeaderValue,
    plain: HeaderValue,
}

impl ApiKey {
    pub(crate) fn new(key: &str) -> Result<Self, InvalidHeaderValue> {
        let sensitive = |text: &str| {
            let mut value = HeaderValue::from_str(text)?;
            value.set_sensitive(true);
            Ok(value)
        };
        Ok(Self {
            bearer: sensitive(&format!("Bearer {key}"))?,
            plain: sensitive(key)?,
        })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.plain.as_bytes()
    }

    /// As `operation` expects it.
    pub(crate) fn header(&self, operation: Option<Operation>) -> (HeaderName, HeaderValue) {
        if operation.is_some_and(Operation::is_anthropic) {
            (X_API_KEY, self.plain.clone())
        } else {
            (header::AUTHORIZATION, self.bearer.clone())
        }
    }
}

/// A query without the caller's credentials.
pub(crate) fn without_credentials(query: &str) -> Cow<'_, str> {
    let is_credential = |part: &&str| {
        let name = part.split('=').next().unwrap_or_default();
        PARAMETERS
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known))
    };
    if !query.split('&').any(|part| is_credential(&part)) {
        return query.into();
    }
    let kept: Vec<&str> = query
        .split('&')
        .filter(|part| !is_credential(part))
        .collect();
    kept.join("&").into()
}
