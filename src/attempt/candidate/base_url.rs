//! The URL of an upstream, to which the path of an operation is joined.

use std::{error::Error, fmt};

use http::{
    Uri,
    uri::{Authority, Scheme},
};

use super::operation::Operation;
use crate::error::InvalidRequest;

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

/// The URL of an upstream, up to the path of the operation: `https://host/v1`.
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
