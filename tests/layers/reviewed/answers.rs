//! What is held of an answer, and handed on.

use http::{HeaderValue, Response, header};
use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ModelFallbackLayer, RetryBudgetLayer, StepTimeoutLayer, TerminalReason,
    TerminalResponseLayer,
};

use crate::commit::{hold_stacks, hold_stacks_for};
use crate::support::{
    DONE, PRELUDE, ReadExt, Script, Upstream, chat, failure, healthy_text, no_delay, poll_once,
    prompt, run_on, secs,
};

/// A failure of 100 bytes of which 50 come.
fn halved() -> Script {
    let failed = Script::json().status(500).size(100);
    failed.data([b'x'; 50]).fail("reset")
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_broke_while_it_was_held_has_no_length() {
    let layer = ModelFallbackLayer::new([Candidate::new("a")]);
    let service = layer.layer(Upstream::scripts([halved()]));

    let body = service.oneshot(prompt("a")).await.unwrap();
    let body = body.into_body();

    assert_eq!(body.size_hint().exact(), None);
    assert_eq!(body.size_hint().lower(), 50);
    let read = body.read().await;
    assert_eq!(read.text, "x".repeat(50));
    assert_eq!(read.end.unwrap_err().to_string(), "reset");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_broke_while_it_was_held_is_broken_on_the_wire() {
    let service = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new([Candidate::new("a")]))
        .service(Upstream::scripts([halved()]));
    let server = hyper::service::service_fn(move |_| {
        let service = service.clone();
        async move { service.oneshot(prompt("a")).await }
    });
    let (near, far) = tokio::io::duplex(1024);
    let server =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(far), server);
    let server = tokio::spawn(server);
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);

    let request = http::Request::post("/v1/chat/completions").body(Empty::<bytes::Bytes>::new());
    let answer = client.send_request(request.unwrap()).await.unwrap();
    // The head was sent before the error took the connection.
    assert_eq!(answer.status(), 500);
    answer.into_body().collect().await.unwrap_err();
    server.await.unwrap().unwrap_err();
    connection.abort();
}

#[tokio::test(start_paused = true)]
async fn frames_of_nothing_without_end_leave_others_a_turn() {
    let upstream = Upstream::scripts([Script::sse().flood("")]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream);
    let mut call = std::pin::pin!(service.oneshot(prompt("m")));

    for _ in 0..3 {
        // It would not come back.
        assert!(poll_once(&mut call).is_pending());
    }
}

/// As a layer does that compresses what it is given.
fn compressed<B>(mut answer: Response<B>) -> Response<B> {
    let gzip = HeaderValue::from_static("gzip");
    answer.headers_mut().insert(header::CONTENT_ENCODING, gzip);
    answer
}

/// As a layer does that makes something else of a stream.
fn flattened<B>(mut answer: Response<B>) -> Response<B> {
    let text = HeaderValue::from_static("text/plain");
    answer.headers_mut().insert(header::CONTENT_TYPE, text);
    answer
}

fn slow() -> Script {
    let prelude = Script::sse().data(PRELUDE).wait(10.0);
    prelude.data(chat("a")).wait(10.0).data(DONE)
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_compressed_on_the_way_commits_at_its_first_byte() {
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .map_response(compressed)
        .layer(StepTimeoutLayer::new(secs(60)))
        .service(Upstream::scripts([slow()]));
    let start = Instant::now();

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(0));
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_made_a_text_on_the_way_is_held_to_its_end() {
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .map_response(flattened)
        .layer(StepTimeoutLayer::new(secs(60)))
        .service(Upstream::scripts([slow()]));
    let start = Instant::now();

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(20));
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
}

#[tokio::test(start_paused = true)]
async fn empty_frames_are_not_held() {
    let silent = (0..100_000).fold(Script::sse(), |script, _| script.data(""));
    let script = silent.data(PRELUDE).data(chat("a")).data(DONE);
    for (upstream, service) in hold_stacks([script]) {
        let answer = service.oneshot(prompt("m")).await.unwrap();

        let read = answer.into_body().read().await;
        assert_eq!(read.frames, 3);
        assert_eq!(read.whole(), healthy_text());
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_behind_all_that_was_announced_is_missed_by_nobody() {
    let announced = Script::json().header("content-length", "2").size(2);
    let announced = announced.data("{}");
    for script in [announced.clone().data("").never(), announced.trailers()] {
        for (_, service) in hold_stacks_for([script], Some(secs(1))) {
            let answer = service.oneshot(prompt("m")).await.unwrap();
            let run = run_on(&answer);
            let mut body = answer.into_body();

            assert_eq!(body.token().await, "{}");
            drop(body);

            assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_was_not_ready_for_the_repeat_is_told_as_502() {
    let gone = "the pool is gone".into();
    let upstream = Upstream::scripts([failure(500)]).readiness([None, Some(gone)]);
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(answer.status(), 502);
    assert_eq!((upstream.calls(), upstream.readiness_polls()), (1, 2));
}
