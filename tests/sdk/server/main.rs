//! A server whose runs end for the reason that the request asks for, so that the official SDKs can
//! be shown every terminal reason, also those that no layer gives yet.
//!
//! A model with the wire name of a reason ends its run for it before the head. The model `stream`
//! says one delta and is silent, until `POST /runs/ID/end/REASON` ends its run: what nobody has read
//! yet is dropped when a run ends, so the reader says when. `GET /reasons` lists all that it knows.

mod deltas;
mod reasons;

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::{FutureExt, StreamExt, stream};
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use std::{convert::Infallible, future, pin::pin};
use tokio::{net::TcpListener, signal::unix};
use tower::ServiceBuilder;
use tower_agent::{BoxError, PumpLayer, Run, RunLayer, RunRegistry, TerminalResponseLayer};

/// What is read of a request, in any dialect.
#[derive(Debug, Deserialize)]
struct Asked {
    model: String,
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let registry = RunRegistry::new();
    let app = Router::new()
        .route("/v1/{*operation}", post(answer))
        .layer(
            ServiceBuilder::new()
                .layer(TerminalResponseLayer::new())
                .layer(RunLayer::new(registry.clone()))
                .layer(PumpLayer::new()),
        )
        .route("/runs/{id}/end/{reason}", post(end))
        .with_state(registry)
        .route("/reasons", get(|| async { Json(reasons::listed()) }));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut terminated = unix::signal(unix::SignalKind::terminate())?;
    println!("listening on http://{}", listener.local_addr()?);
    let served = async { axum::serve(listener, app).await };
    let (served, terminated) = (pin!(served), pin!(terminated.recv().map(|_| Ok(()))));
    let ended = futures_util::future::select(served, terminated).await;
    Ok(ended.factor_first().0?)
}

async fn answer(run: Run, Path(operation): Path<String>, Json(asked): Json<Asked>) -> Response {
    if asked.model == "stream" {
        return match deltas::first(&operation) {
            Some(first) => silent_after(first),
            None => refuse(format!("no stream is known for {operation}")),
        };
    }
    match reasons::named(&asked.model) {
        Some(reason) => {
            run.run().end(reason);
            // The layers answer.
            future::pending().await
        }
        None => refuse(format!("no reason is called {}", asked.model)),
    }
}

fn silent_after(first: String) -> Response {
    let body = stream::iter([Ok::<_, Infallible>(first)]).chain(stream::pending());
    let events = HeaderValue::from_static("text/event-stream");
    ([(header::CONTENT_TYPE, events)], Body::from_stream(body)).into_response()
}

async fn end(
    State(registry): State<RunRegistry>,
    Path((id, name)): Path<(String, String)>,
) -> Response {
    let runs = id.parse().map(|id| registry.find(&id)).unwrap_or_default();
    match (reasons::named(&name), &*runs) {
        (Some(reason), [run]) => Json(run.end(reason)).into_response(),
        (None, _) => refuse(format!("no reason is called {name}")),
        (_, runs) => refuse(format!("{} runs are called {id}", runs.len())),
    }
}

fn refuse(why: String) -> Response {
    (StatusCode::BAD_REQUEST, why).into_response()
}
