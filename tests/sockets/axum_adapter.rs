//! The layers on an axum router, behind `axum::serve`.
//!
//! covers: H1

use std::{net::SocketAddr, time::Duration};

use axum::{Router, routing::post as on_post};
use http::StatusCode;
use tokio::sync::mpsc;
use tower::ServiceBuilder;
use tower_agent::{
    ClientDisconnectLayer, HardCeilingLayer, NodeKind, PumpLayer, Run, RunLayer, RunRegistry,
    StepTimeoutLayer, TerminalReason, TerminalResponseLayer,
};

use crate::net::{Answer, Client, Raw, Version, eventually, post, request_of, run, serve, within};

const LONG: Duration = Duration::from_secs(600);

/// The whole answer over a connection of its own.
async fn ask(addr: SocketAddr, version: Version) -> Answer {
    let mut client = Client::connect(addr, version).await;
    client.ask(request_of("one")).await.unwrap()
}

/// All layers in one `ServiceBuilder`, as the docs show.
fn under_layers(route: Router, registry: RunRegistry, step: Duration) -> Router {
    route.layer(
        ServiceBuilder::new()
            .layer(TerminalResponseLayer::new())
            .layer(RunLayer::new(registry))
            .layer(PumpLayer::new())
            .layer(ClientDisconnectLayer::new())
            .layer(HardCeilingLayer::new(LONG))
            .layer(StepTimeoutLayer::new(step)),
    )
}

#[test]
fn a_handler_is_handed_the_call_of_its_request() {
    run(async {
        for version in Version::BOTH {
            let registry = RunRegistry::new();
            let handler = |run: Run| async move {
                assert_eq!(run.kind(), NodeKind::Call);
                run.id().to_string()
            };
            let route = Router::new().route("/v1/chat/completions", on_post(handler));
            let addr = serve(under_layers(route, registry.clone(), LONG)).await;

            let answer = ask(addr, version).await;
            assert_eq!(answer.status, StatusCode::OK);
            assert_eq!(answer.headers["x-run-id"].as_bytes(), answer.body);
            let reason = eventually(async || registry.list()[0].reason.clone()).await;
            assert_eq!(reason, TerminalReason::Completed);
        }
    });
}

#[test]
fn without_a_layer_a_handler_that_wants_the_run_is_answered_500_and_why() {
    run(async {
        let handler = |run: Run| async move { run.id().to_string() };
        let route = Router::new().route("/v1/chat/completions", on_post(handler));
        let addr = serve(route).await;

        let answer = ask(addr, Version::Http1).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        let told = "request carries no run: a layer that opens one is missing around the handler";
        assert_eq!(answer.body, told);
    });
}

#[test]
fn a_handler_that_is_silent_is_answered_504() {
    run(async {
        let handler = |_: Run| async { std::future::pending::<()>().await };
        let route = Router::new().route("/v1/chat/completions", on_post(handler));
        let step = Duration::from_millis(200);
        let addr = serve(under_layers(route, RunRegistry::new(), step)).await;

        let answer = ask(addr, Version::Http1).await;
        assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(answer.headers["x-terminal-reason"], "step_timeout");
        let body = answer.json();
        assert_eq!(body["error"]["code"], "step_timeout");
    });
}

/// What the handler handed to a task of its own ends with the client too.
#[test]
fn a_tool_in_another_task_ends_with_the_client() {
    run(async {
        let (seen, mut reasons) = mpsc::unbounded_channel();
        let handler = move |run: Run| {
            let tool = run.tool("search").watch(std::future::pending::<()>());
            let seen = seen.clone();
            tokio::spawn(async move { seen.send(tool.await.unwrap_err().reason) });
            std::future::pending::<()>()
        };
        let route = Router::new().route("/v1/chat/completions", on_post(handler));
        let registry = RunRegistry::new();
        let addr = serve(under_layers(route, registry.clone(), LONG)).await;
        let raw = Raw::request(addr, &post("one")).await;
        eventually(async || registry.list().pop().filter(|run| run.in_flight > 1)).await;
        drop(raw);

        let reason = within(reasons.recv()).await;
        assert_eq!(reason, Some(TerminalReason::ClientDisconnect));
    });
}
