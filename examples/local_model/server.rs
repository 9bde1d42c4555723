//! A simulated model server on this machine, in one of six conditions.

use std::{
    convert::Infallible,
    future,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::{StreamExt, stream};
use http::{StatusCode, header};
use serde_json::json;
use tokio::{
    net::TcpSocket,
    time::{Instant, sleep},
};

/// The time for which the server reads a long prompt.
pub(crate) const PREFILL: Duration = Duration::from_secs(4);

/// The time until a restarted process accepts connections, and the time until it has loaded
/// its model.
pub(crate) const BOOT: Duration = Duration::from_secs(1);
pub(crate) const LOAD: Duration = Duration::from_millis(2500);

const PING: &str = ": still reading the prompt\n\n";
const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"42\"}}]}\n\n";
const DONE: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Condition {
    /// Reads a long prompt and sends no byte meanwhile.
    Slow,
    /// Reads a long prompt and sends heartbeats meanwhile.
    SlowWithHeartbeats,
    /// Accepts connections, and answers nothing on them.
    Hung,
    /// Sends heartbeats, and then no byte, though its health route still answers.
    Stalled,
    /// Asks for the same tool in each answer.
    Looping,
    /// Refuses connections, then loads its model, then answers.
    Restarting,
}

/// A server, and the number of requests that it has received.
#[derive(Clone, Debug)]
pub(crate) struct LocalModelServer {
    pub(crate) address: SocketAddr,
    condition: Condition,
    start: Instant,
    calls: Arc<AtomicU32>,
    probes: Arc<AtomicU32>,
}

impl LocalModelServer {
    /// Serves on a free port until the process ends.
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of its own, off the request path"
    )]
    pub(crate) fn start(condition: Condition) -> std::io::Result<Self> {
        // A bound socket that does not listen yet refuses connections.
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let server = Self {
            address: socket.local_addr()?,
            condition,
            start: Instant::now(),
            calls: Arc::default(),
            probes: Arc::default(),
        };
        let app = Router::new()
            .route("/health", get(health))
            .route("/v1/chat/completions", post(answer))
            .with_state(server.clone());
        match condition {
            Condition::Restarting => {
                tokio::spawn(async move {
                    sleep(BOOT).await;
                    axum::serve(socket.listen(16)?, app).await
                });
            }
            _ => {
                let listener = socket.listen(16)?;
                tokio::spawn(async move { axum::serve(listener, app).await });
            }
        }
        Ok(server)
    }

    pub(crate) fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn probes(&self) -> u32 {
        self.probes.load(Ordering::Relaxed)
    }

    fn is_loading(&self) -> bool {
        self.condition == Condition::Restarting && self.start.elapsed() < LOAD
    }
}

async fn health(State(server): State<LocalModelServer>) -> StatusCode {
    server.probes.fetch_add(1, Ordering::Relaxed);
    match server.condition {
        Condition::Hung => future::pending().await,
        _ if server.is_loading() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    }
}

async fn answer(State(server): State<LocalModelServer>) -> Response {
    let call = server.calls.fetch_add(1, Ordering::Relaxed);
    let beats = [PING; 8].map(|ping| (PREFILL / 8, ping));
    let end = [(Duration::ZERO, TOKEN), (Duration::ZERO, DONE)];
    match server.condition {
        Condition::Slow => {
            sleep(PREFILL).await;
            events(end.to_vec(), false)
        }
        Condition::SlowWithHeartbeats => events([&beats[..], &end].concat(), false),
        Condition::Hung => future::pending().await,
        Condition::Stalled => events(beats[..2].to_vec(), true),
        Condition::Looping => Json(tool_call(call)).into_response(),
        // As llama.cpp answers while it loads.
        Condition::Restarting if server.is_loading() => {
            let error =
                json!({"code": 503, "message": "Loading model", "type": "unavailable_error"});
            (
                StatusCode::SERVICE_UNAVAILABLE,
                Json(json!({"error": error})),
            )
                .into_response()
        }
        Condition::Restarting => events(end.to_vec(), false),
    }
}

/// Streams each event after its pause, and then ends, or sends nothing more.
fn events(events: Vec<(Duration, &'static str)>, stalls: bool) -> Response {
    let sent = stream::iter(events).then(|(pause, event)| async move {
        sleep(pause).await;
        Ok::<_, Infallible>(event)
    });
    let rest = match stalls {
        true => stream::pending().boxed(),
        false => stream::empty().boxed(),
    };
    let head = [(header::CONTENT_TYPE, "text/event-stream")];
    (head, Body::from_stream(sent.chain(rest))).into_response()
}

fn tool_call(number: u32) -> serde_json::Value {
    let function = json!({"name": "job_status", "arguments": "{\"job\":7}"});
    let call = json!({"id": format!("call_{number}"), "type": "function", "function": function});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    json!({
        "id": format!("chatcmpl-{number}"), "object": "chat.completion", "created": 0, "model": "local",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
    })
}
