//! An axum server whose handlers are supervised: one route streams, one calls a
//! slow tool under the run of its request.
//!
//! ```text
//! cargo run --all-features --example axum_server
//! ```
//!
//! It serves on a free port of this machine, asks itself three times, prints
//! what a client sees, and ends.

use std::{convert::Infallible, time::Duration};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse, Response},
    routing::post,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::BodyExt;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_agent::{
    BoxError, ClientDisconnectLayer, HardCeilingLayer, PumpLayer, Run, RunLayer, RunRegistry,
    StepTimeoutLayer, TerminalResponseLayer,
};

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let registry = RunRegistry::new();
    let app = Router::new()
        .route("/healthy/chat/completions", post(|| answer(3)))
        .route("/hung/chat/completions", post(|| answer(2)))
        .route("/tool", post(tool))
        .layer(
            ServiceBuilder::new()
                .layer(TerminalResponseLayer::new())
                .layer(RunLayer::new(registry.clone()))
                .layer(PumpLayer::new())
                .layer(ClientDisconnectLayer::new())
                .layer(HardCeilingLayer::new(Duration::from_secs(30)))
                .layer(StepTimeoutLayer::new(Duration::from_secs(1))),
        );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = async { axum::serve(listener, app).await.map_err(BoxError::from) };
    let client = async {
        for path in [
            "/healthy/chat/completions",
            "/hung/chat/completions",
            "/tool",
        ] {
            println!(
                "--- POST {path}\n{}",
                ask(&format!("http://{address}{path}")).await?
            );
        }
        for run in registry.list() {
            println!("{} ended as {:?}, {:?}", run.run, run.reason, run.message);
        }
        Ok::<_, BoxError>(())
    };
    // Whichever ends first: the client, or the server with an error.
    let ended = futures_util::future::select(Box::pin(server), Box::pin(client)).await;
    ended.factor_first().0
}

/// Streams three tokens, of which the hung model never sends the last.
async fn answer(tokens: usize) -> Response {
    let event = |data: String| Ok::<_, Infallible>(Bytes::from(format!("data: {data}\n\n")));
    let delta = move |n: usize| {
        event(format!(
            r#"{{"choices":[{{"index":0,"delta":{{"content":"token {n}"}}}}]}}"#
        ))
    };
    let said = stream::iter((0..tokens).map(delta));
    let body = if tokens < 3 {
        Body::from_stream(said.chain(stream::pending()))
    } else {
        Body::from_stream(said.chain(stream::iter([event("[DONE]".to_owned())])))
    };
    let events = HeaderValue::from_static("text/event-stream");
    ([(header::CONTENT_TYPE, events)], body).into_response()
}

/// A tool has a window of its own; the run goes on without it.
async fn tool(run: Run) -> (StatusCode, String) {
    let search = run.tool("search").window(Duration::from_millis(200));
    match search.watch(std::future::pending::<String>()).await {
        Ok(found) => (StatusCode::OK, found),
        Err(stopped) => (StatusCode::OK, format!("no result: {}", stopped.message())),
    }
}

async fn ask(url: &str) -> Result<String, BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http::<String>();
    let answer = client
        .request(Request::post(url).body(String::new())?)
        .await?;
    let status = answer.status();
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(format!("{status}\n{}", String::from_utf8_lossy(&body)))
}
