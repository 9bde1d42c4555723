//! The URL of an upstream, to which the path of an operation is joined.

use std::fmt;

use http::{
    Uri,
    uri::{Authority, Scheme},
};

use super::{InvalidCandidate, operation::Operation};
use crate::error::InvalidRequest;

/// The URL of an upstream, up to the path of the operation: `https://host/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseUrl {
    scheme: Scheme,
    // The host and the port, without the scheme's default port, so that equal authorities
    // compare equal.
    authority: Authority,
    // The path of the URL, without a trailing slash.
    path: String,
}

impl BaseUrl {
    pub(crate) fn new(url: &Uri) -> Result<Self, InvalidCandidate> {
        let (scheme, own_port) = match url.scheme_str() {
            Some(name) if name.eq_ignore_ascii_case("http") => (Scheme::HTTP, 80),
            Some(name) if name.eq_ignore_ascii_case("https") => (Scheme::HTTPS, 443),
            _ => return Err(InvalidCandidate::Scheme),
        };
        let authority = url.authority().ok_or(InvalidCandidate::Host)?;
        if authority.as_str().contains('@') {
            return Err(InvalidCandidate::UserInfo);
        }
        if url.query().is_some() {
            return Err(InvalidCandidate::Query);
        }
        let (host, port) = (authority.host(), authority.port_u16());
        if host.is_empty() || (port.is_none() && host != authority.as_str()) {
            return Err(InvalidCandidate::Host);
        }
        let authority = if port == Some(own_port) {
            host.parse().map_err(|_| InvalidCandidate::Host)?
        } else {
            authority.clone()
        };
        Ok(Self {
            scheme,
            authority,
            path: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// The URL of `operation` below this base URL, with `query` if there is one.
    pub(crate) fn join(
        &self,
        operation: Operation,
        query: Option<&str>,
    ) -> Result<Uri, InvalidRequest> {
        let (mark, query) = query.map_or(("", ""), |query| ("?", query));
        let path = [self.path.as_str(), "/", operation.path(), mark, query].concat();
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
