use std::{error::Error, fmt, sync::Arc};

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// The proxy that a [`HyperService`](crate::HyperService) connects through, if any.
///
/// A request to an `http` URI goes to the proxy with its whole URI, and the proxy reads all of it,
/// credentials included. For an `https` URI the proxy makes a tunnel (`CONNECT`), and sees the
/// host's name only. The proxy itself is at an `http` or `https` URL; SOCKS is not supported.
///
/// `Debug` leaves out the proxy's URL and credential.
#[derive(Clone, Default)]
pub struct UpstreamProxy {
    rules: Option<Arc<Matcher>>,
}

/// The error of a proxy's URL that cannot be used.
///
/// The message does not repeat the URL, which may hold a credential.
#[derive(Debug)]
#[non_exhaustive]
pub struct InvalidProxyUrl;

impl UpstreamProxy {
    /// Connects to each upstream directly, whatever the environment says. This is the default.
    #[must_use]
    pub const fn none() -> Self {
        Self { rules: None }
    }

    /// Reads the proxy from the environment, now: `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and
    /// `NO_PROXY`, or the same names in lower case.
    ///
    /// An `https` upstream takes `HTTPS_PROXY`, an `http` upstream `HTTP_PROXY`, each else
    /// `ALL_PROXY`. `NO_PROXY` lists domains, addresses and networks that are connected to
    /// directly. A variable in upper case hides the one in lower case, even if it is empty; the
    /// value counts as absent if it is not a URL. A connection through a SOCKS proxy fails.
    ///
    /// If `REQUEST_METHOD` is set, there is no proxy: the process counts as a CGI program, whose
    /// `HTTP_PROXY` may be a header of its request.
    #[must_use]
    pub fn from_env() -> Self {
        Self {
            rules: Some(Arc::new(Matcher::from_env())),
        }
    }

    /// Connects to all upstreams through the proxy at `url`.
    ///
    /// The URL may hold a user and a password, percent-encoded, which are sent by the `Basic`
    /// scheme. A path of the URL is ignored. The environment, `NO_PROXY` included, is not read.
    ///
    /// # Errors
    ///
    /// If `url` is not an absolute `http` or `https` URL with a host, or if it has more than one
    /// `@`.
    pub fn all(url: &str) -> Result<Self, InvalidProxyUrl> {
        let uri: Uri = url.parse().map_err(|_| InvalidProxyUrl)?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        let has_host = uri.host().is_some_and(|host| !host.is_empty()) && has_valid_port(&uri);
        // Of a password with an unencoded `@` a part would be read as the host.
        let is_plain = uri
            .authority()
            .is_some_and(|authority| authority.as_str().matches('@').count() <= 1);
        let rules = Matcher::builder().all(url.to_owned()).build();
        // The rules drop a URL that they cannot read, without an error.
        let probe = Uri::from_static("http://upstream.invalid/");
        match is_http && has_host && is_plain && rules.intercept(&probe).is_some() {
            true => Ok(Self {
                rules: Some(Arc::new(rules)),
            }),
            false => Err(InvalidProxyUrl),
        }
    }

    /// The proxy for requests to `uri`; `None` connects directly.
    pub(crate) fn intercept(&self, uri: &Uri) -> Option<Intercept> {
        self.rules.as_ref()?.intercept(uri)
    }

    /// The credential that a request to `uri` carries to the proxy.
    ///
    /// Through a tunnel the request itself has none: the `CONNECT` request carries it.
    pub(crate) fn credential(&self, uri: &Uri) -> Option<HeaderValue> {
        if uri.scheme_str() != Some("http") {
            return None;
        }
        let mut credential = self.intercept(uri)?.basic_auth()?.clone();
        credential.set_sensitive(true);
        Some(credential)
    }
}

impl fmt::Debug for UpstreamProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamProxy")
            .field("is_none", &self.rules.is_none())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for InvalidProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the proxy is not an http or https URL with a host")
    }
}

impl Error for InvalidProxyUrl {}

/// Whether a URL has no port, or one that is a number of a port.
fn has_valid_port(uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else {
        return true;
    };
    // Of an IPv6 address only what follows the bracket can be a port.
    let behind = authority.as_str().rsplit(['@', ']']).next();
    let states = behind.is_some_and(|behind| behind.contains(':'));
    !states || authority.port_u16().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_is_no_http_url_is_refused_without_being_shown() {
        for url in [
            "",
            "proxy",
            "proxy:3128",
            "socks5://u:secret@h",
            "http://",
            "http://u:secret@",
            "http:// h",
            "http://proxy:99999",
            "http://u:secret@proxy:port",
            "http://[::1]:99999",
            "http://u:se@cret@secret:3128",
        ] {
            let error = UpstreamProxy::all(url).map(|_| ()).map_err(|error| {
                assert!(!format!("{error} {error:?}").contains("secret"));
            });
            assert_eq!(error, Err(()), "{url:?}");
        }
    }

    #[test]
    fn debug_shows_no_credential() {
        let proxy = UpstreamProxy::all("http://user:secret@proxy.example:3128").unwrap();
        let shown = format!("{proxy:?}");
        assert!(
            !shown.contains("secret") && !shown.contains("user"),
            "{shown}"
        );
    }

    #[test]
    fn only_a_request_over_plain_http_carries_the_credential() {
        let proxy = UpstreamProxy::all("http://user:p%40ss@proxy.example:3128").unwrap();
        let credential = |uri| proxy.credential(&Uri::from_static(uri));
        assert_eq!(credential("http://h/v1").unwrap(), "Basic dXNlcjpwQHNz");
        assert_eq!(credential("https://h/v1"), None);
        assert_eq!(
            UpstreamProxy::none().credential(&Uri::from_static("http://h/")),
            None
        );
    }
}
