//! An upstream that counts calls, and knows until when it was kept busy.

use std::{
    convert::Infallible,
    future,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};

/// The model that goes wrong, and the one that never does.
pub(crate) const FIRST: &str = "first";
pub(crate) const SECOND: &str = "second";

const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n";
const ERROR: &str =
    "data: {\"error\":{\"message\":\"The server had an error\",\"type\":\"server_error\"}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// What the first model does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Does {
    /// Answers, after this time.
    Answers(Duration),
    /// Sends nothing.
    Hangs,
    /// Sends a head and a token, then nothing.
    HangsAfterTheHead,
    /// Says in a stream of status 200 that it failed.
    FailsInTheStream,
    /// Refuses with this status, and these seconds in `retry-after`.
    Refuses(u16, Option<u32>),
}

#[derive(Clone, Debug)]
pub(crate) struct CountingUpstream {
    does: Does,
    seen: Arc<Mutex<CallCounts>>,
}

#[derive(Debug)]
struct CallCounts {
    calls: usize,
    last: Instant,
}

/// A call under way.
struct CallUnderWay(CountingUpstream);

impl CountingUpstream {
    pub(crate) async fn start(does: Does) -> std::io::Result<(Self, SocketAddr)> {
        let seen = CallCounts {
            calls: 0,
            last: Instant::now(),
        };
        let upstream = Self {
            does,
            seen: Arc::new(Mutex::new(seen)),
        };
        let app = Router::new().fallback(answer).with_state(upstream.clone());
        Ok((upstream, serve(app).await?))
    }

    pub(crate) fn calls(&self) -> usize {
        self.seen(|seen| seen.calls)
    }

    /// When it was last let go.
    pub(crate) fn last(&self) -> Instant {
        self.seen(|seen| seen.last)
    }

    fn seen<T>(&self, look: impl FnOnce(&mut CallCounts) -> T) -> T {
        look(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for CallUnderWay {
    fn drop(&mut self) {
        self.0.seen(|seen| seen.last = Instant::now());
    }
}

/// Serves on a free port of this machine until the program ends.
#[expect(
    clippy::disallowed_methods,
    reason = "a server of its own, off the request path"
)]
pub(crate) async fn serve(app: Router) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

async fn answer(State(upstream): State<CountingUpstream>, body: Bytes) -> Response {
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let does = match upstream.does {
        // A request that is at fault is so for every model.
        Does::Refuses(400, _) => upstream.does,
        _ if asked["model"] == SECOND => Does::Answers(Duration::ZERO),
        does => does,
    };
    upstream.seen(|seen| seen.calls += 1);
    // Dropped with the answer, or with the call.
    let open = CallUnderWay(upstream);
    match does {
        Does::Answers(after) => {
            sleep(after).await;
            events(&[TOKEN, DONE], false, open)
        }
        Does::Hangs => future::pending().await,
        Does::HangsAfterTheHead => events(&[TOKEN], true, open),
        Does::FailsInTheStream => events(&[ERROR], false, open),
        Does::Refuses(status, retry_after) => {
            let body = json!({"error": {"message": "no", "type": "error"}});
            let mut answer = axum::Json(body).into_response();
            *answer.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
            if let Some(seconds) = retry_after {
                let headers = answer.headers_mut();
                headers.insert(header::RETRY_AFTER, seconds.into());
            }
            answer
        }
    }
}

fn events(events: &[&'static str], hangs: bool, open: CallUnderWay) -> Response {
    let said: Vec<_> = events.iter().map(|event| Bytes::from(*event)).collect();
    let rest = match hangs {
        true => stream::pending().boxed(),
        false => stream::empty().boxed(),
    };
    let frames = stream::iter(said).chain(rest).map(move |frame| {
        let _ = &open;
        Ok::<_, Infallible>(frame)
    });
    let head = [(header::CONTENT_TYPE, "text/event-stream")];
    (head, Body::from_stream(frames)).into_response()
}
