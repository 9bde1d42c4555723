//! One model at one upstream: its URL, its account, and the requests that it gets.
//!
//! This file holds the candidate, its errors and its API key.

mod base_url;
mod headers;
mod model_list;
mod operation;
#[cfg(test)]
mod tests;

pub use self::operation::CandidateDialect;

#[cfg(feature = "config")]
pub(crate) use self::operation::without_last_operation;

pub(crate) use self::{
    headers::{strip_hop, strip_request_headers},
    operation::{Operation, generates},
};

use std::{any::Any, borrow::Cow, error::Error, fmt, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};

use self::base_url::BaseUrl;
use crate::{
    body::ReplayBody,
    error::InvalidRequest,
    headers::{CREDENTIALS, X_API_KEY},
    llm::RequestFields,
    run::{AttemptTarget, Limits, Price, Run},
};

/// One model at one upstream, to which a request may be sent.
///
/// Without a [`base_url`](Self::base_url) the request goes to its original upstream. With a base
/// URL the candidate has its own upstream, which gets the caller's credentials only if
/// [`forward_credentials`](Self::forward_credentials) is set. Of the body only `model` changes.
///
/// ```
/// use http::{HeaderName, HeaderValue};
/// use tower_agent::{Candidate, CandidateDialect};
///
/// # fn main() -> Result<(), tower_agent::attempt::InvalidCandidate> {
/// let candidate = Candidate::new("claude-sonnet")
///     .name("backup")
///     .base_url("https://api.example.com/v1")?
///     .dialect(CandidateDialect::Anthropic)
///     .api_key("secret")?
///     .header(
///         HeaderName::from_static("anthropic-version"),
///         HeaderValue::from_static("2023-06-01"),
///     )
///     .context_window(200_000);
/// assert_eq!(candidate.label(), "backup");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Candidate {
    pub(crate) model: String,
    label: Arc<str>,
    pub(crate) base_url: Option<BaseUrl>,
    dialect: CandidateDialect,
    pub(crate) headers: HeaderMap,
    pub(crate) api_key: Option<ApiKey>,
    pub(crate) credential: Option<String>,
    context_window: Option<u64>,
    limits: Option<Limits>,
    price: Option<Price>,
    pub(crate) trusted: bool,
    pub(crate) forward_credentials: bool,
    websocket: bool,
}

impl AttemptTarget for Candidate {
    fn label(&self) -> &Arc<str> {
        &self.label
    }

    fn price(&self) -> Option<Price> {
        self.price
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Candidate {
    /// Makes a candidate of a model, by the name that its upstream uses.
    ///
    /// Candidates without an upstream and a credential of their own are one account, the caller's.
    /// Such a candidate has no [`base_url`](Self::base_url), no [`api_key`](Self::api_key), no
    /// [`credential`](Self::credential) and no credential among its [headers](Self::header). After
    /// an answer for which the account is at fault, such as 401, the fallback layer tries no other
    /// candidate of that account.
    pub fn new(model: impl Into<String>) -> Self {
        let model = model.into();
        Self {
            label: model.as_str().into(),
            model,
            base_url: None,
            dialect: CandidateDialect::Any,
            headers: HeaderMap::new(),
            api_key: None,
            credential: None,
            context_window: None,
            limits: None,
            price: None,
            trusted: false,
            forward_credentials: false,
            websocket: false,
        }
    }

    /// The candidate's name for callers, logs and hooks; by default the model.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.label = name.into().into();
        self
    }

    /// The URL of the candidate's own upstream, up to the operation: `https://host/v1`.
    ///
    /// The operation is the known end of the request's path (`chat/completions`,
    /// `responses`, `messages`, `messages/count_tokens`, `embeddings`, `images/...`). The query
    /// stays, but for its [credentials](Self::forward_credentials). Without a base URL the
    /// request's URL stays.
    ///
    /// No layer follows a redirect or an upgrade of this upstream. Such an answer is a failure,
    /// [`Redirect`](crate::llm::failure::FailureClass::Redirect), after which another candidate may
    /// be tried. The caller never gets that answer.
    ///
    /// # Errors
    ///
    /// If the text is not a URL, or the URL is not absolute, is neither `http` nor `https`, names
    /// no host or an invalid port, or has credentials or a query.
    pub fn base_url(mut self, url: impl TryInto<Uri>) -> Result<Self, InvalidCandidate> {
        let url = url.try_into().map_err(|_| InvalidCandidate::Url)?;
        self.base_url = Some(BaseUrl::new(&url)?);
        Ok(self)
    }

    /// The dialect of the requests that the candidate accepts; by default all.
    #[must_use]
    pub const fn dialect(mut self, dialect: CandidateDialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// A header of the candidate's requests, instead of the caller's or the layer's.
    ///
    /// The header replaces an earlier one of that name. The value counts as a secret.
    /// `content-length`, `transfer-encoding` and `x-attempt` have no effect.
    #[must_use]
    pub fn header(mut self, name: HeaderName, mut value: HeaderValue) -> Self {
        value.set_sensitive(true);
        self.headers.insert(name, value);
        self
    }

    /// The candidate's own API key. By default the caller's keys are not sent beside it: see
    /// [`forward_credentials`](Self::forward_credentials).
    ///
    /// The key is sent as `authorization: Bearer KEY`, to Anthropic's operations as
    /// `x-api-key: KEY`.
    ///
    /// # Errors
    ///
    /// If the key holds bytes that no header can hold.
    pub fn api_key(mut self, key: &str) -> Result<Self, InvalidCandidate> {
        self.api_key = Some(ApiKey::new(key)?);
        Ok(self)
    }

    /// The id of the account that the candidate uses.
    ///
    /// Candidates of one id share the failures of the account: a refused key, an exhausted
    /// quota. The id is printed; it is not the key. By default the upstream, the key and the
    /// headers with a credential identify the account.
    #[must_use]
    pub fn credential(mut self, id: impl Into<String>) -> Self {
        self.credential = Some(id.into());
        self
    }

    /// The context window of the candidate's model, in tokens.
    #[must_use]
    pub const fn context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// The limits of the candidate's attempts. Each limit that is set replaces that of the layers
    /// further in; a limit in the request's extensions wins over it.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// The price of the candidate's tokens, for [caps on cost](crate::TokenCaps::max_cost).
    #[must_use]
    pub const fn price(mut self, price: Price) -> Self {
        self.price = Some(price);
        self
    }

    /// Whether the candidate's upstream is another tower-agent of the program; false by default.
    ///
    /// A trusted upstream gets the run's id. The terminal reason in a failed answer of it ends the
    /// call, if the answer names that run. Its answers keep the headers that the layer removes from
    /// the answers of others, such as `set-cookie`.
    #[must_use]
    pub const fn trusted(mut self, trusted: bool) -> Self {
        self.trusted = trusted;
        self
    }

    /// Whether the candidate gets the caller's credentials in spite of its own upstream or
    /// account.
    ///
    /// The credentials are the headers `authorization`, `x-api-key`, `api-key`, `x-goog-api-key`,
    /// `openai-organization`, `openai-project`, `cookie` and `x-amz-security-token`, and in the
    /// query `key`, `api_key`, `api-key`, `apikey` and `access_token`. By default a candidate with
    /// its own upstream gets none of them. One with only its own account gets only `cookie`,
    /// `x-amz-security-token` and those in the query.
    #[must_use]
    pub const fn forward_credentials(mut self, forward: bool) -> Self {
        self.forward_credentials = forward;
        self
    }

    /// Whether the candidate's upstream speaks the Responses API over WebSocket; false by default.
    ///
    /// No layer opens a socket. A program's client may, which asks
    /// [`speaks_websocket`](Self::speaks_websocket) of the candidate that its request is
    /// [for](Self::of).
    #[must_use]
    pub const fn websocket(mut self, speaks: bool) -> Self {
        self.websocket = speaks;
        self
    }

    /// The candidate's model, by the name that its upstream uses.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The candidate's name, or its model if it has no name.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether the candidate's upstream speaks the Responses API over [WebSocket](Self::websocket).
    #[must_use]
    pub const fn speaks_websocket(&self) -> bool {
        self.websocket
    }

    /// The candidate that a request is for, inside of a
    /// [`ModelFallbackLayer`](crate::ModelFallbackLayer).
    ///
    /// ```
    /// use tower_agent::Candidate;
    ///
    /// fn region<B>(request: &http::Request<B>) -> &'static str {
    ///     match Candidate::of(request).map(Candidate::label) {
    ///         Some("backup") => "eu",
    ///         _ => "us",
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> Option<&Self> {
        request.extensions().get::<Run>()?.attempts().served_by()
    }

    /// Replaces the value of the top-level `model` in the JSON request `body`.
    ///
    /// All other bytes stay, and none is copied. A body without a `model` stays unchanged.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object, or its `model` is not a valid string or occurs twice.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use tower_agent::Candidate;
    ///
    /// let asked = Bytes::from(r#"{"model":"large","temperature":1.0000000000000000001}"#);
    /// let sent = Candidate::new("small").patch(&asked).unwrap();
    /// assert_eq!(sent.len(), asked.len());
    /// ```
    pub fn patch(&self, body: &Bytes) -> Result<ReplayBody, InvalidRequest> {
        Ok(ReplayBody::spliced(
            RequestFields::read(body)?.splice(body, &self.model),
        ))
    }

    /// Whether the candidate accepts requests of this operation; `None` is an unknown path.
    pub(crate) fn speaks(&self, operation: Option<Operation>) -> bool {
        match operation {
            Some(operation) => self.dialect.speaks(operation),
            // For a candidate with its own upstream, no URL can be built from an unknown operation.
            None => self.base_url.is_none(),
        }
    }

    pub(crate) const fn spoken(&self) -> CandidateDialect {
        self.dialect
    }

    /// The context window of the candidate's model in tokens, if it is known.
    pub(crate) const fn window(&self) -> Option<u64> {
        self.context_window
    }

    pub(crate) const fn own_limits(&self) -> Option<Limits> {
        self.limits
    }

    /// Whether the candidate's requests go to an upstream of its own.
    pub(crate) const fn has_own_upstream(&self) -> bool {
        self.base_url.is_some()
    }

    pub(crate) const fn is_trusted(&self) -> bool {
        self.trusted
    }
}

/// Prints only the names of headers: their values are secrets.
impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base_url = self.base_url.as_ref().map(ToString::to_string);
        let headers: Vec<_> = self.headers.keys().map(HeaderName::as_str).collect();
        f.debug_struct("Candidate")
            .field("name", &self.label())
            .field("model", &self.model)
            .field("base_url", &base_url)
            .field("dialect", &self.dialect)
            .field("headers", &headers)
            .field("api_key", &self.api_key.is_some())
            .field("credential", &self.credential)
            .field("context_window", &self.context_window)
            .field("limits", &self.limits)
            .field("price", &self.price)
            .field("trusted", &self.trusted)
            .field("forward_credentials", &self.forward_credentials)
            .field("websocket", &self.websocket)
            .finish()
    }
}

impl Candidate {
    /// Whether the candidate uses an account of its own: an API key, or a credential among its
    /// headers.
    pub(crate) fn has_own_account(&self) -> bool {
        let is_own = |name| self.headers.contains_key(name);
        self.api_key.is_some() || !self.headers.is_empty() && CREDENTIALS.iter().any(is_own)
    }

    /// Whether the candidate has its own upstream, which gets none of the caller's credentials.
    pub(crate) const fn hides_credentials(&self) -> bool {
        self.base_url.is_some() && !self.forward_credentials
    }

    /// Whether both candidates use the same account, so that a refused key affects both.
    pub(crate) fn same_credential(&self, other: &Self) -> bool {
        match (&self.credential, &other.credential) {
            (Some(this), Some(other)) => return this == other,
            (None, None) => {}
            _ => return false,
        }
        // Two candidates on the caller's account at one upstream compare equal here.
        let same_origin = match (&self.base_url, &other.base_url) {
            (Some(this), Some(other)) => this.same_origin(other),
            (None, None) => true,
            _ => false,
        };
        same_origin
            && self.api_key == other.api_key
            && CREDENTIALS
                .iter()
                .all(|name| self.headers.get(name) == other.headers.get(name))
    }

    /// Whether an outage of one candidate probably affects the other: they share a host and port,
    /// or both use the request's upstream.
    pub(crate) fn same_provider(&self, other: &Self) -> bool {
        match (&self.base_url, &other.base_url) {
            (Some(this), Some(other)) => this.same_authority(other),
            (None, None) => true,
            _ => false,
        }
    }
}

/// The reason why a setting of a [`Candidate`] is not usable.
///
/// The error's text repeats neither the URL, which may hold a password, nor the API key.
///
/// ```
/// use tower_agent::{Candidate, attempt::InvalidCandidate};
///
/// let relative = Candidate::new("small").base_url("/v1");
/// assert_eq!(relative.unwrap_err(), InvalidCandidate::Scheme);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidCandidate {
    /// The text of the base URL is not a URL.
    Url,
    /// The base URL is not absolute, or neither `http` nor `https`.
    Scheme,
    /// The base URL names no host, or an invalid port.
    Host,
    /// The base URL holds a user or a password.
    UserInfo,
    /// The base URL has a query.
    Query,
    /// The API key holds bytes that no header can hold.
    ApiKey,
}

impl fmt::Display for InvalidCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "base URL is not a URL",
            Self::Scheme => "base URL is not an absolute http or https URL",
            Self::Host => "base URL names no host, or an invalid port",
            Self::UserInfo => "base URL holds credentials, which belong into the API key",
            Self::Query => "base URL has a query",
            Self::ApiKey => "API key holds bytes that no header can hold",
        })
    }
}

impl Error for InvalidCandidate {}

/// Headers that select a part of an account; an upstream refuses them with another account's key.
pub(crate) static WITHIN_ACCOUNT: [HeaderName; 2] = [
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
];

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
    pub(crate) fn new(key: &str) -> Result<Self, InvalidCandidate> {
        let sensitive = |text: &str| {
            let mut value = HeaderValue::from_str(text).map_err(|_| InvalidCandidate::ApiKey)?;
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
