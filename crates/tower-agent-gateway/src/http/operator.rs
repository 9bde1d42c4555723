//! The check of the operator's credential.

use std::net::SocketAddr;

use axum::{
    extract::{ConnectInfo, Request},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};

use super::{
    callers::bearers,
    check_layer::Check,
    origin_check::{host, is_loopback},
};
use crate::config::Secret;

/// The credential of the operator: the control token, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Operator {
    token: Option<Secret>,
}

/// Headers that proxies add: whole names, then beginnings, then endings.
const PROXIED: [&str; 5] = ["client-ip", "forwarded", "via", "x-forwarded", "x-real-ip"];
const PROXIED_BEGINS: [&str; 3] = ["x-forwarded-", "x-envoy-", "cf-"];
const PROXIED_ENDS: [&str; 2] = ["-client-ip", "-connecting-ip"];

impl Operator {
    pub(crate) const fn new(token: Option<Secret>) -> Self {
        Self { token }
    }
}

/// Admits only the operator's requests.
///
/// If there is a control token, the request must carry it. Otherwise the request must come from
/// this machine. [`OriginCheck`](super::OriginCheck) has refused pages of other origins before.
impl Check for Operator {
    fn check(&self, request: &mut Request) -> Result<(), Box<Response>> {
        let (is_allowed, refusal) = match &self.token {
            Some(token) => (
                bearers(request.headers()).any(|given| token.is(given)),
                "this route needs the control token\n",
            ),
            None => (
                is_local(request),
                "this route serves requests from this machine only\n",
            ),
        };
        if is_allowed {
            return Ok(());
        }
        Err(Box::new((StatusCode::FORBIDDEN, refusal).into_response()))
    }
}

/// Whether a request comes from this machine, names it as its host, and came through no proxy.
///
/// The peer's address alone proves nothing: a page can have its own name resolve to a loopback
/// address.
fn is_local(request: &Request) -> bool {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.is_some_and(|peer| peer.ip().to_canonical().is_loopback())
        && host(request.uri(), request.headers()).is_some_and(is_loopback)
        // A proxy on this machine forwards requests of other machines.
        && !is_proxied(request.headers())
}

fn is_proxied(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| {
        let name = name.as_str();
        PROXIED.contains(&name)
            || PROXIED_BEGINS.iter().any(|begins| name.starts_with(begins))
            || PROXIED_ENDS.iter().any(|ends| name.ends_with(ends))
    })
}

#[cfg(test)]
mod tests {
    //! covers: T100

    use axum::{Router, body::Body, routing::get};
    use tower::ServiceExt;

    use super::{super::check_layer::CheckLayer, *};
    use crate::config::Config;

    fn operator(token: bool) -> Operator {
        let (head, env) = match token {
            // What every environment has.
            true => ("[control]\ntoken_env = \"PATH\"\n", std::env::var("PATH")),
            false => ("", Ok(String::new())),
        };
        let text = format!("{head}[[candidates]]\nmodel = \"m\"\nbase_url = \"http://h/v1\"\n");
        assert!(env.is_ok());
        Operator::new(Config::parse(&text, "test").unwrap().control_token)
    }

    async fn status(operator: Operator, peer: &str, headers: &[(&str, &str)]) -> StatusCode {
        let app = Router::new()
            .route("/runs", get(|| async {}))
            .layer(CheckLayer(operator));
        let mut request = Request::builder().uri("/runs");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let peer: SocketAddr = peer.parse().unwrap();
        let request = request.extension(ConnectInfo(peer)).body(Body::empty());
        app.oneshot(request.unwrap()).await.unwrap().status()
    }

    /// Such a peer is refused whichever `Host` its request names.
    #[tokio::test]
    async fn without_a_token_a_peer_of_another_machine_is_refused() {
        let host = ("host", "localhost:8787");
        for peer in [
            "192.0.2.1:4000",
            "[2001:db8::1]:4000",
            "[::ffff:192.0.2.1]:4000",
        ] {
            let status = status(operator(false), peer, &[host]).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{peer}");
        }
        for peer in [
            "127.0.0.1:4000",
            "127.1.2.3:4000",
            "[::1]:4000",
            "[::ffff:127.0.0.1]:4000",
        ] {
            let status = status(operator(false), peer, &[host]).await;
            assert_eq!(status, StatusCode::OK, "{peer}");
        }
    }

    #[tokio::test]
    async fn without_a_token_a_proxy_of_this_machine_speaks_for_others() {
        let host = ("host", "127.0.0.1:8787");
        for name in ["forwarded", "x-forwarded-for", "x-real-ip"] {
            let headers = [host, (name, "127.0.0.1")];
            let status = status(operator(false), "127.0.0.1:4000", &headers).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{name}");
        }
    }

    #[tokio::test]
    async fn with_a_token_the_peer_does_not_matter_and_the_token_does() {
        let token = format!("bearer {}", std::env::var("PATH").unwrap());
        let peer = "192.0.2.1:4000";
        let known = [("host", "gateway.example"), ("authorization", &*token)];
        assert_eq!(status(operator(true), peer, &known).await, StatusCode::OK);
        for peer in [peer, "127.0.0.1:4000"] {
            let status = status(operator(true), peer, &[("host", "localhost")]).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{peer}");
        }
    }
}
