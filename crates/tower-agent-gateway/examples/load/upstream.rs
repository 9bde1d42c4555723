//! A chat API that answers at once: a unary answer, or a stream of 50 events.

use std::convert::Infallible;

use axum::{
    Router,
    body::{Body, Bytes},
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::stream;

const EVENTS: usize = 50;

const ANSWER: &str = r#"{"id":"chatcmpl-123","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"The quick brown fox jumps over the lazy dog."},"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":10,"total_tokens":22}}"#;

const EVENT: &str = r#"data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1700000000,"model":"m","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}

"#;

const LAST: &str = r#"data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1700000000,"model":"m","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

"#;

/// smg reads from `owned_by` which engine it has before it.
const MODELS: &str = r#"{"object":"list","data":[{"id":"m","object":"model","created":1700000000,"owned_by":"sglang"}]}"#;

/// Beside the chat API, the routes that smg asks before it forwards to an upstream.
pub(crate) fn app() -> Router {
    Router::new()
        .route("/v1/chat/completions", post(answer))
        .route("/health", get(()))
        .route(
            "/v1/models",
            get(([(CONTENT_TYPE, "application/json")], MODELS)),
        )
}

async fn answer(request: Bytes) -> Response {
    let streams = br#""stream":true"#;
    if request.windows(streams.len()).any(|part| part == streams) {
        let body = Body::from_stream(stream::unfold(0, event));
        return ([(CONTENT_TYPE, "text/event-stream")], body).into_response();
    }
    ([(CONTENT_TYPE, "application/json")], ANSWER).into_response()
}

/// The next event, in a write of its own: a model sends each token when it has it.
async fn event(sent: usize) -> Option<(Result<&'static str, Infallible>, usize)> {
    tokio::task::yield_now().await;
    let event = match sent {
        ..EVENTS => EVENT,
        EVENTS => LAST,
        _ => return None,
    };
    Some((Ok(event), sent + 1))
}
