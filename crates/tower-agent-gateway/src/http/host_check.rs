//! Refuses requests with a malformed or ambiguous host.

use axum::{
    extract::Request,
    http::{Uri, header, uri::Authority},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode};

use super::check_layer::Check;

/// Answers 400 to a request with two hosts or a malformed one.
///
/// A proxy could read another host from such a request than the gateway, and then their checks by
/// host would disagree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCheck;

impl Check for HostCheck {
    fn check(&self, request: &mut Request) -> Result<(), Box<Response>> {
        if is_sound(request.uri(), request.headers()) {
            return Ok(());
        }
        let message = "the Host of the request is malformed, or there are two\n";
        Err(Box::new((StatusCode::BAD_REQUEST, message).into_response()))
    }
}

fn is_sound(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).into_iter();
    let host = hosts.next().map(|host| host.to_str().unwrap_or("@"));
    hosts.next().is_none()
        && host.is_none_or(|host| host.is_empty() || is_host(host))
        && uri.authority().is_none_or(|it| is_host(it.as_str()))
}

/// Whether `text` is one host with an optional port: no user before an `@`, no list.
fn is_host(text: &str) -> bool {
    if text.contains(['@', ',']) {
        return false;
    }
    let Ok(authority) = text.parse::<Authority>() else {
        return false;
    };
    let port = text.strip_prefix(authority.host());
    port.is_some_and(|port| {
        let port = port.strip_prefix(':').unwrap_or(port);
        // `u16::from_str` also takes a sign.
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        port.is_empty() || (is_number && port.parse::<u16>().is_ok())
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn sound(uri: &str, hosts: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, HeaderValue::from_str(host).unwrap());
        }
        is_sound(&uri.parse().unwrap(), &headers)
    }

    #[test]
    fn one_host_with_a_port_or_without_is_sound() {
        for host in [
            "localhost",
            "127.0.0.1:8787",
            "[::1]",
            "[::1]:80",
            "gw.example:",
            "",
        ] {
            assert!(sound("/runs", &[host]), "{host}");
        }
        assert!(sound("/runs", &[]));
        assert!(sound("http://localhost:1/runs", &["localhost:1"]));
    }

    #[test]
    fn two_hosts_or_a_malformed_one_are_not() {
        for host in [
            "evil.com@localhost",
            "@localhost",
            "localhost, evil.com",
            "localhost:x",
            "localhost:99999",
            "localhost:+80",
            "a:b:c",
            "local host",
            "localhost/",
        ] {
            assert!(!sound("/runs", &[host]), "{host}");
        }
        assert!(!sound("/runs", &["localhost", "localhost"]));
        assert!(!sound("http://evil.com@localhost/runs", &[]));
    }
}
