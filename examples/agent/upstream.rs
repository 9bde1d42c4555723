//! A simulated model that asks for tools, over unary chat completions.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU64, Ordering},
};

use axum::{Json, Router, routing::post};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Asks for each tool of the request once, in their order, and then answers.
///
/// The gateway's simulated upstream has both models too.
pub(crate) const AGENT: &str = "sim-agent";

/// Asks for the first tool of the request again and again.
pub(crate) const POLLING: &str = "sim-polling";

/// Serves on a free port, until the process ends; answers where.
pub(crate) async fn spawn() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let app = Router::new().route("/v1/chat/completions", post(answer));
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of its own, off the request path"
    )]
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

async fn answer(Json(request): Json<Value>) -> Json<Value> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    let (message, finish_reason) = match next(&request) {
        Some((name, arguments)) => {
            let function = json!({"name": name, "arguments": arguments.to_string()});
            let call =
                json!({"id": format!("call_{number}"), "type": "function", "function": function});
            let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
            (message, "tool_calls")
        }
        None => {
            let message =
                json!({"role": "assistant", "content": "Hello from the simulated upstream."});
            (message, "stop")
        }
    };
    Json(json!({
        "id": format!("chatcmpl-{number}"),
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15},
    }))
}

/// The tool that the model asks for next, with its arguments.
fn next(request: &Value) -> Option<(&Value, Value)> {
    if request["model"] == POLLING {
        let name = &request["tools"][0]["function"]["name"];
        return Some((name, json!({"job": "job-1"})));
    }
    let messages = request["messages"].as_array().into_iter().flatten();
    let turn = messages.filter(|message| message["role"] == "tool").count();
    let tool = request["tools"].get(turn)?;
    Some((&tool["function"]["name"], json!({"turn": turn})))
}
