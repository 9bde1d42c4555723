//! covers: T100

use std::net::SocketAddr;

use axum::{
    Router,
    body::Body,
    extract::ConnectInfo,
    http::{Request, StatusCode},
    routing::get,
};
use tower::ServiceExt;

use super::{CheckLayer, Operator};
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
