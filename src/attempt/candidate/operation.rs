//! The operations of a model API, by path, the base URL above them, and the APIs that a
//! candidate speaks.

use std::{error::Error, fmt};

use http::{
    Method, Request, Uri,
    uri::{Authority, Scheme},
};

use crate::error::InvalidRequest;

/// An operation of a model API, by the last segments of the request's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    ChatCompletions,
    Responses,
    Messages,
    CountTokens,
    Embeddings,
    ImageGenerations,
    ImageEdits,
    ImageVariations,
}

impl Operation {
    pub(super) const ALL: [Self; 8] = [
        Self::ChatCompletions,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Embeddings,
        Self::ImageGenerations,
        Self::ImageEdits,
        Self::ImageVariations,
    ];

    /// Finds the operation at the end of a path; no path ends with two of them.
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        Self::ALL.into_iter().find(|operation| {
            path.strip_suffix(operation.path())
                .is_some_and(|base| base.is_empty() || base.ends_with('/'))
        })
    }

    /// The operation's path below the base URL, without a leading slash.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat/completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::CountTokens => "messages/count_tokens",
            Self::Embeddings => "embeddings",
            Self::ImageGenerations => "images/generations",
            Self::ImageEdits => "images/edits",
            Self::ImageVariations => "images/variations",
        }
    }

    pub(crate) const fn is_anthropic(self) -> bool {
        matches!(self, Self::Messages | Self::CountTokens)
    }
}

/// Whether a model generates for this request, which makes it a turn of its run.
///
/// Embeddings, counts of tokens and lists of models are no turns. A path that is unknown
/// or ambiguous counts as one that generates.
pub(crate) fn generates<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    match Operation::from_path(path) {
        None => !(reads && is_of_models(path)),
        Some(operation @ (Operation::Embeddings | Operation::CountTokens)) => {
            // A server that routes by the beginning of the path may find another operation.
            let path = path.strip_suffix('/').unwrap_or(path);
            let base = path.strip_suffix(operation.path());
            base.and_then(Operation::from_path).is_some()
        }
        Some(_) => true,
    }
}

/// Whether `path` is that of the list of models, or of one model.
fn is_of_models(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut segments = path.rsplit('/');
    segments.next() == Some("models") || segments.next() == Some("models")
}

/// The API of the requests that a [`Candidate`](crate::attempt::Candidate) accepts.
///
/// A request in another dialect is not sent to the candidate; no layer translates requests.
///
/// ```
/// use tower_agent::{Candidate, CandidateDialect};
///
/// let candidate = Candidate::new("claude").dialect(CandidateDialect::Anthropic);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CandidateDialect {
    /// The candidate accepts all requests.
    #[default]
    Any,
    /// Requests to OpenAI's `chat/completions`, `responses`, `embeddings` and `images`, and to
    /// compatible APIs.
    OpenAi,
    /// Requests to Anthropic's `messages` and `messages/count_tokens`.
    Anthropic,
}

impl CandidateDialect {
    /// The dialect's short name, for messages to people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    /// The dialect of the requests for `operation`.
    pub(crate) const fn of(operation: Operation) -> Self {
        if operation.is_anthropic() {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    pub(crate) fn speaks(self, operation: Operation) -> bool {
        self == Self::Any || self == Self::of(operation)
    }
}

/// The reason why a base URL is not usable.
///
/// The error's text never repeats the URL, which may hold a password.
///
/// ```
/// use http::Uri;
/// use tower_agent::{Candidate, attempt::InvalidBaseUrl};
///
/// let relative = Candidate::new("small").base_url(Uri::from_static("/v1"));
/// assert_eq!(relative.unwrap_err(), InvalidBaseUrl::Scheme);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidBaseUrl {
    /// The URL is not absolute, or neither `http` nor `https`.
    Scheme,
    /// The URL names no host, or an invalid port.
    Host,
    /// The URL holds a user or a password.
    UserInfo,
    /// The URL has a query.
    Query,
}

impl fmt::Display for InvalidBaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => "base URL is not an absolute http or https URL",
            Self::Host => "base URL names no host, or a port that is none",
            Self::UserInfo => "base URL holds credentials, which belong into the API key",
            Self::Query => "base URL has a query",
        })
    }
}

impl Error for InvalidBaseUrl {}

/// The URL of an upstream, up to the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrl {
    scheme: Scheme,
    // The host and the port, without the scheme's default, so that equal authorities compare
    // equal.
    authority: Authority,
    // The path of the URL, without a trailing slash.
    path: String,
}

impl BaseUrl {
    pub(crate) fn new(url: &Uri) -> Result<Self, InvalidBaseUrl> {
        let (scheme, own_port) = match url.scheme_str() {
            Some(name) if name.eq_ignore_ascii_case("http") => (Scheme::HTTP, 80),
            Some(name) if name.eq_ignore_ascii_case("https") => (Scheme::HTTPS, 443),
            _ => return Err(InvalidBaseUrl::Scheme),
        };
        let authority = url.authority().ok_or(InvalidBaseUrl::Host)?;
        if authority.as_str().contains('@') {
            return Err(InvalidBaseUrl::UserInfo);
        }
        if url.query().is_some() {
            return Err(InvalidBaseUrl::Query);
        }
        let (host, port) = (authority.host(), authority.port_u16());
        if host.is_empty() || (port.is_none() && host != authority.as_str()) {
            return Err(InvalidBaseUrl::Host);
        }
        let authority = if port == Some(own_port) {
            host.parse().map_err(|_| InvalidBaseUrl::Host)?
        } else {
            authority.clone()
        };
        Ok(Self {
            scheme,
            authority,
            path: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The URL of `operation` below this base URL, with the caller's query.
    pub(crate) fn join(
        &self,
        operation: Operation,
        query: Option<&str>,
    ) -> Result<Uri, InvalidRequest> {
        let (mark, query) = query.map_or(("", ""), |query| ("?", query));
        let path = format!("{}/{}{mark}{query}", self.path, operation.path());
        Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .map_err(|error| InvalidRequest::new(format!("the request's URL is unusable: {error}")))
    }

    pub(crate) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    pub(crate) fn origin(&self) -> (&str, &str) {
        (self.scheme.as_str(), self.authority.as_str())
    }

    pub(crate) fn same_authority(&self, other: &Self) -> bool {
        self.authority == other.authority
    }

    pub(crate) fn same_origin(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.same_authority(other)
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.path)
    }
}
