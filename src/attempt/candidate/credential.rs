use std::borrow::Cow;

use http::{
    HeaderName, HeaderValue,
    header::{self, InvalidHeaderValue},
};

use super::operation::Operation;

use crate::headers::X_API_KEY;

/// Headers that select a part of an account; with another account's key they are refused.
pub(crate) static WITHIN_ACCOUNT: [HeaderName; 2] = [
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];

/// The header with the session of a signed request at a cloud provider.
pub(crate) const SESSION_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// The query parameters that hold a credential, in any letter case.
const PARAMETERS: [&str; 5] = ["key", "api_key", "api-key", "apikey", "access_token"];

/// An API key as both header values in which it is sent.
///
/// The type has no `Debug`, so that no type around it can derive one that prints it.
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

    /// The name and value of the header in which `operation` expects this key.
    pub(crate) fn header(&self, operation: Option<Operation>) -> (HeaderName, HeaderValue) {
        if operation.is_some_and(Operation::is_anthropic) {
            (X_API_KEY, self.plain.clone())
        } else {
            (header::AUTHORIZATION, self.bearer.clone())
        }
    }
}

/// Removes the parameters that hold the caller's credentials from a query.
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
