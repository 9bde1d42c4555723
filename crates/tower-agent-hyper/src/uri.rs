//! Which URIs the service takes.

use std::{error::Error, fmt};

use http::Uri;

/// The error of a request whose URI is not an absolute `http` or `https` one, or has userinfo.
///
/// hyper would drop the userinfo, or show it to a proxy. A credential belongs in a header.
///
/// Nothing was sent. The message leaves out the URI, which may hold a secret.
#[derive(Debug)]
#[non_exhaustive]
pub struct UnsupportedUri;

pub(crate) fn is_supported(uri: &Uri) -> bool {
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let authority = uri.authority();
    is_http && authority.is_some_and(|authority| !authority.as_str().contains('@'))
}

impl fmt::Display for UnsupportedUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's URI is not an absolute http or https URI without userinfo")
    }
}

impl Error for UnsupportedUri {}
