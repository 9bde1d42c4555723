use std::{any::Any, fmt};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header::InvalidHeaderValue};

use super::{
    base_url::{BaseUrl, InvalidBaseUrl},
    credential::{ACCOUNT, ApiKey},
    operation::{CandidateDialect, Operation},
};
use crate::{
    body::ReplayBody,
    error::InvalidRequest,
    llm::Prompt,
    run::{AttemptTarget, Limits, Run},
};

/// One model at one upstream, which a request may be sent to.
///
/// Without a [`base_url`](Self::base_url) it is the upstream that the request
/// goes to anyway, and only `model` in the body changes. With one it is a place
/// of its own, which sees nothing of the caller's credentials unless
/// [`forward_credentials`](Self::forward_credentials) allows it.
///
/// ```
/// use http::{HeaderName, HeaderValue, Uri};
/// use tower_agent::{Candidate, CandidateDialect};
///
/// # fn main() -> Result<(), tower_agent::BoxError> {
/// let candidate = Candidate::new("claude-sonnet")
///     .name("backup")
///     .base_url(Uri::from_static("https://api.example.com/v1"))?
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
#[derive(Clone)]
pub struct Candidate {
    pub(crate) model: String,
    name: Option<String>,
    pub(crate) base_url: Option<BaseUrl>,
    dialect: CandidateDialect,
    pub(crate) headers: HeaderMap,
    pub(crate) api_key: Option<ApiKey>,
    pub(crate) credential: Option<String>,
    context_window: Option<u64>,
    limits: Option<Limits>,
    pub(crate) trusted: bool,
    pub(crate) forward_credentials: bool,
}

impl AttemptTarget for Candidate {
    fn label(&self) -> &str {
        Self::label(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Candidate {
    /// The model as its upstream calls it.
    pub fn new(model: impl Into<String>) -> Self {
        Self {
            model: model.into(),
            name: None,
            base_url: None,
            dialect: CandidateDialect::Any,
            headers: HeaderMap::new(),
            api_key: None,
            credential: None,
            context_window: None,
            limits: None,
            trusted: false,
            forward_credentials: false,
        }
    }

    /// What callers, logs and hooks call it. By default the model.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Its own upstream, up to the operation: `https://host/v1`. The operation
    /// is the known end of the request's path (`chat/completions`, `responses`,
    /// `messages`, `messages/count_tokens`, `embeddings`, `images/...`); the
    /// query is kept. By default the request's URL stays.
    ///
    /// No layer follows a redirect or an upgrade of this upstream: it is a
    /// failure, [`Redirect`](crate::llm::failure::FailureClass::Redirect), after which the
    /// next candidate is asked, and the caller never sees it.
    ///
    /// # Errors
    ///
    /// If the URL is not absolute, has credentials or a query, or is neither
    /// `http` nor `https`.
    pub fn base_url(mut self, url: Uri) -> Result<Self, InvalidBaseUrl> {
        self.base_url = Some(BaseUrl::new(&url)?);
        Ok(self)
    }

    /// The requests that it understands. By default all.
    #[must_use]
    pub const fn dialect(mut self, dialect: CandidateDialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Sent instead of what the caller or this layer says; replaces an earlier
    /// one of that name. The value counts as a secret. The lengths of bodies
    /// are not to be set: `content-length` and `transfer-encoding` do nothing.
    #[must_use]
    pub fn header(mut self, name: HeaderName, mut value: HeaderValue) -> Self {
        value.set_sensitive(true);
        self.headers.insert(name, value);
        self
    }

    /// Its own key: `authorization: Bearer KEY`, and to Anthropic's operations
    /// `x-api-key: KEY`. The caller's own credential is then not sent.
    ///
    /// # Errors
    ///
    /// If the key holds bytes that no header can.
    pub fn api_key(mut self, key: &str) -> Result<Self, InvalidHeaderValue> {
        self.api_key = Some(ApiKey::new(key)?);
        Ok(self)
    }

    /// Names the account that it calls on. Candidates of one id share what
    /// befalls the account: a refused key, an exhausted quota. The id is
    /// printed; it is not the key. By default accounts are told apart by
    /// upstream and key.
    #[must_use]
    pub fn credential(mut self, id: impl Into<String>) -> Self {
        self.credential = Some(id.into());
        self
    }

    /// How many tokens it takes.
    #[must_use]
    pub const fn context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// The clocks of its attempts, instead of those of the layers.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// Whether the upstream is another supervisor of ours: it is told the run's
    /// id, its terminal reasons are believed, and its answers keep what they say for
    /// their server, such as `set-cookie`. By default it is not.
    #[must_use]
    pub const fn trusted(mut self, trusted: bool) -> Self {
        self.trusted = trusted;
        self
    }

    /// Whether the caller's `authorization`, `x-api-key`, `api-key`,
    /// `x-goog-api-key` and `cookie` go to an upstream or an account of its
    /// own. By default they do not.
    #[must_use]
    pub const fn forward_credentials(mut self, forward: bool) -> Self {
        self.forward_credentials = forward;
        self
    }

    /// The model as its upstream calls it.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Its name, or the model.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.model)
    }

    /// Whom a request was made out to, for the services inside of a
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
        request.extensions().get::<Run>()?.served_by()
    }

    /// What it is sent for the JSON request `body`: the same bytes but for the
    /// value of the top-level `model`. None is copied. A body without a `model`
    /// stays as it is.
    ///
    /// # Errors
    ///
    /// If the body is not a JSON object, or its `model` is not a string or
    /// there twice.
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
            Prompt::read(body)?.splice(body, &self.model),
        ))
    }

    /// Whether it understands a request. One that is not known is nobody's
    /// dialect, and so everybody's.
    pub(crate) fn speaks(&self, operation: Option<Operation>) -> bool {
        match operation {
            Some(operation) => self.dialect.speaks(operation),
            // Where it would be found elsewhere nobody knows.
            None => self.base_url.is_none(),
        }
    }

    pub(crate) const fn spoken(&self) -> CandidateDialect {
        self.dialect
    }

    /// How many tokens it takes, if that is known.
    pub(crate) const fn window(&self) -> Option<u64> {
        self.context_window
    }

    pub(crate) const fn own_limits(&self) -> Option<Limits> {
        self.limits
    }

    /// Whether its requests go to a URL of its own.
    pub(crate) const fn is_elsewhere(&self) -> bool {
        self.base_url.is_some()
    }

    pub(crate) const fn is_trusted(&self) -> bool {
        self.trusted
    }
}

/// Values of headers are secrets: only their names are printed.
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
            .field("trusted", &self.trusted)
            .field("forward_credentials", &self.forward_credentials)
            .finish()
    }
}

impl Candidate {
    /// Whether it calls on an account of its own.
    pub(crate) fn has_own_account(&self) -> bool {
        self.api_key.is_some() || ACCOUNT.iter().any(|name| self.headers.contains_key(name))
    }

    /// Whether callers' accounts are kept from it.
    pub(crate) const fn is_sent_no_account(&self) -> bool {
        self.base_url.is_some() && !self.forward_credentials
    }

    /// Whether a refused or exhausted credential of one is that of the other.
    pub(crate) fn same_credential(&self, other: &Self) -> bool {
        match (&self.credential, &other.credential) {
            (Some(this), Some(other)) => return this == other,
            (None, None) => {}
            _ => return false,
        }
        // Two that call on the caller's account at the same place are equal here.
        let same_origin = match (&self.base_url, &other.base_url) {
            (Some(this), Some(other)) => this.same_origin(other),
            (None, None) => true,
            _ => false,
        };
        same_origin
            && self.api_key == other.api_key
            && ACCOUNT
                .iter()
                .all(|name| self.headers.get(name) == other.headers.get(name))
    }

    /// Whether they are one candidate, listed twice.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.label() == other.label()
            && self.model == other.model
            && self.base_url == other.base_url
            && self.spoken() == other.spoken()
            && self.headers == other.headers
            && self.same_credential(other)
    }

    /// Whether an outage of one is likely that of the other.
    pub(crate) fn same_provider(&self, other: &Self) -> bool {
        match (&self.base_url, &other.base_url) {
            (Some(this), Some(other)) => this.same_authority(other),
            (None, None) => true,
            _ => false,
        }
    }
}
