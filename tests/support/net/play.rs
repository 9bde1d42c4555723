//! What the upstream of this process does with a request.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::Request;
use http_body_util::BodyExt;
use serde_json::Value;

use super::model_upstream::{ModelUpstream, Open, Seen};

/// One delta of a chat stream.
const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"t\"}}]}\n\n";

/// What ends a stream that says what it cost.
const REST: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";

/// What a slow one takes.
const LATER: Duration = Duration::from_millis(700);

/// What is sent before the first content.
const PRELUDE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";

/// A whole stream, as `ok-stream` is served.
pub(crate) const STREAM: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"served\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// A whole answer.
pub(crate) const WHOLE: &str = "{\"ok\": true}";

pub(super) async fn answer(
    State(upstream): State<ModelUpstream>,
    request: Request<Body>,
) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    upstream.open.fetch_add(1, Ordering::SeqCst);
    let open = Open(Arc::clone(&upstream.open));
    upstream.seen.lock().unwrap().push(Seen {
        uri: parts.uri,
        headers: parts.headers,
        body,
    });
    // What it does is the model's name, unless the caller says it.
    let word = asked["user"].as_str().or_else(|| asked["model"].as_str());
    let streams = asked["stream"] == true;
    match word.unwrap_or_default() {
        "silent" => std::future::pending().await,
        "prelude" => sse(PRELUDE, End::Silence, open),
        // One token, then nothing.
        "stall" => sse(TOKEN, End::Silence, open),
        // A token, and later the rest, with what it cost.
        "slow" => sse(TOKEN, End::Later(REST), open),
        "slow-503" => {
            tokio::time::sleep(LATER).await;
            drop(open);
            status(503, None)
        }
        // The same, but once the test says so.
        "held" => sse(TOKEN, End::Held(upstream.let_go().boxed(), REST), open),
        "held-503" => {
            upstream.let_go().await;
            drop(open);
            status(503, None)
        }
        "cut-prelude" => sse(PRELUDE, End::Clean, open),
        "error-event" => {
            let event = "data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\",\"code\":null}}\n\n";
            sse(event, End::Clean, open)
        }
        // Tokens as fast as they go.
        "flood" => {
            let many = Bytes::from(TOKEN.repeat(1000));
            let tokens = stream::repeat_with(move || {
                let _ = &open;
                upstream.sent.fetch_add(1, Ordering::SeqCst);
                Ok::<_, std::io::Error>(many.clone())
            });
            ([SSE], Body::from_stream(tokens.take(4096))).into_response()
        }
        "limited" => {
            let headers = [
                ("x-should-retry", "true"),
                ("retry-after", "7"),
                ("retry-after-ms", "6500"),
                ("x-request-id", "req_1"),
                ("keep-alive", "timeout=5"),
            ];
            (
                http::StatusCode::TOO_MANY_REQUESTS,
                headers,
                "{\"slow\": \"down\"}",
            )
                .into_response()
        }
        "429" => status(429, Some("1")),
        // Longer than a test waits, and not too long to be waited for.
        "429-later" => status(429, Some("50")),
        "429-hour" => status(429, Some("3600")),
        number if number.parse::<u16>().is_ok() => status(number.parse().unwrap(), None),
        _ if streams => sse(STREAM, End::Clean, open),
        _ => ([("content-type", "application/json")], WHOLE).into_response(),
    }
}

const SSE: (&str, &str) = ("content-type", "text/event-stream");

/// How a stream ends.
enum End {
    Clean,
    Silence,
    Later(&'static str),
    Held(BoxFuture<'static, ()>, &'static str),
}

fn sse(text: &'static str, end: End, open: Open) -> Response {
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(text.as_bytes()))]);
    let rest = match end {
        End::Clean => stream::empty().boxed(),
        End::Silence => stream::pending().boxed(),
        End::Later(text) => stream::once(async move {
            tokio::time::sleep(LATER).await;
            Ok(Bytes::from_static(text.as_bytes()))
        })
        .boxed(),
        End::Held(let_go, text) => stream::once(async move {
            let_go.await;
            Ok(Bytes::from_static(text.as_bytes()))
        })
        .boxed(),
    };
    let frames = first.chain(rest).map(move |frame| {
        let _ = &open;
        frame
    });
    ([SSE], Body::from_stream(frames)).into_response()
}

/// The body of a refusal: no JSON library would write it so.
pub(crate) fn refusal(status: u16) -> String {
    format!(
        "{{ \"error\" : {{\"message\":\"{status}, sorry\",\n\t\"type\":\"t\", \"n\":1.0}} }}\r\n"
    )
}

fn status(status: u16, retry_after: Option<&str>) -> Response {
    let mut answer = (
        [
            ("content-type", "application/json"),
            ("x-request-id", "req_2"),
        ],
        refusal(status),
    )
        .into_response();
    *answer.status_mut() = http::StatusCode::from_u16(status).unwrap();
    if let Some(seconds) = retry_after {
        answer
            .headers_mut()
            .insert("retry-after", seconds.parse().unwrap());
    }
    answer
}
