//! The profile of slow local models, on sockets and at a tenth of its times.
//!
//! covers: A10

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{StepTimeoutLayer, TerminalReason, Terminated};
use tower_agent_reqwest::ReqwestService;

use crate::net::{DONE, Play, SSE_HEAD, TOKEN, Upstream, chunk, run, within};

const INTERVAL: Duration = Duration::from_millis(1000);
/// Of a token, or an answer: longer than a heartbeat may be missing.
const SLOW: Duration = Duration::from_millis(3000);
const PING: &str = ": ping\n\n";

type Piece = (Duration, String);

fn after(pause: Duration, text: impl Into<String>) -> Piece {
    (pause, text.into())
}

/// Pings for as long as a token takes, six in an interval.
fn pings() -> Vec<Piece> {
    let between = INTERVAL / 6;
    let count = SLOW.as_millis() / between.as_millis();
    (0..count).map(|_| after(between, chunk(PING))).collect()
}

fn head() -> Piece {
    after(Duration::ZERO, SSE_HEAD)
}

fn end() -> Piece {
    after(Duration::ZERO, chunk(DONE) + "0\r\n\r\n")
}

fn token(pause: Duration) -> Piece {
    after(pause, chunk(TOKEN))
}

/// Asks a model that answers so: how the answer ended, and when.
async fn ask(pieces: Vec<Piece>) -> (Result<usize, String>, Duration) {
    let upstream = Upstream::http1(Play::paced(pieces)).await;
    let client = ReqwestService::new(reqwest::Client::builder().no_proxy()).unwrap();
    let model = ServiceBuilder::new()
        .layer(StepTimeoutLayer::local().heartbeat(INTERVAL))
        .service(client);
    let uri = format!("http://{}/v1/chat/completions", upstream.addr);
    let request = Request::post(uri).body(Full::<Bytes>::default()).unwrap();
    let start = Instant::now();
    let answer = within(model.oneshot(request)).await.unwrap();
    let read = within(answer.into_body().collect()).await;
    let read = read.map(|whole| whole.to_bytes().len()).map_err(|error| {
        let ended = Terminated::find(&*error).unwrap();
        assert_eq!(ended.reason, TerminalReason::StepTimeout);
        ended.message()
    });
    (read, start.elapsed())
}

#[test]
fn a_slow_model_completes_with_pings_or_without_and_a_dead_one_is_found() {
    let unary = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let silent = vec![head(), token(SLOW), token(SLOW), end()];
    let pinged = [
        vec![head()],
        pings(),
        vec![token(Duration::ZERO)],
        pings(),
        vec![token(Duration::ZERO), end()],
    ];
    let dead = [vec![head(), token(Duration::ZERO)], pings()];
    let models = [
        vec![after(SLOW, unary)],
        silent,
        pinged.concat(),
        dead.concat(),
    ];

    let ends = run(async { join_all(models.map(ask)).await });

    let [unary, silent, pinged, dead] = ends.try_into().unwrap();
    assert_eq!(unary.0, Ok(2));
    let tokens = 2 * TOKEN.len() + DONE.len();
    assert_eq!(silent.0, Ok(tokens));
    assert_eq!(pinged.0, Ok(tokens + 2 * pings().len() * PING.len()));
    let message = dead.0.unwrap_err();
    assert!(message.contains("its heartbeats stopped"), "{message}");
    let pinged_for = INTERVAL / 6 * u32::try_from(pings().len()).unwrap();
    assert!(dead.1 >= pinged_for + 2 * INTERVAL, "{:?}", dead.1);
}
