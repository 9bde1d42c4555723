//! The answers of failures: read a little, judged, and handed on whole.

use http_body::Body;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{Candidate, ModelFallbackLayer, Run, TerminalReason, llm::failure::FailureClass};

use crate::commit::hold_stacks;
use crate::support::{
    ERROR, ReadExt, Script, Stack, StackService, Upstream, attach, healthy, healthy_text, prompt,
    secs,
};

const KIB: usize = 1024;

/// One attempt alone, so that a failure is handed on.
fn once(script: Script) -> (Upstream, StackService) {
    let upstream = Upstream::script(script);
    let stack = Stack::default().retry(1).build(&upstream);
    (upstream, stack)
}

#[tokio::test(start_paused = true)]
async fn a_large_error_is_judged_by_its_beginning_and_handed_on_whole() {
    let kib = " ".repeat(KIB);
    let large = Script::json().status(500).repeat(100, 0.5, &kib);
    let (upstream, service) = once(large);
    let start = Instant::now();

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(1), "it is slow, too");
    assert_eq!(answer.into_body().read().await.whole(), kib.repeat(100));
    assert_eq!(start.elapsed(), secs(50));
    assert_eq!(upstream.calls(), 1);

    let large = Script::json().status(500).repeat(64, 0.0, &kib).wait(30.0);
    let (_, service) = once(large.repeat(36, 0.0, &kib));
    let start = Instant::now();
    let answer = service.oneshot(prompt("m")).await.unwrap();
    assert_eq!(start.elapsed(), secs(0), "64 KiB are enough");
    assert_eq!(answer.into_body().read().await.whole(), kib.repeat(100));
    assert_eq!(start.elapsed(), secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_slow_error_is_given_a_second() {
    let slow = Script::json().status(503).wait(20.0).data(ERROR);
    for (upstream, service) in hold_stacks([slow.clone(), healthy()]) {
        let start = Instant::now();

        let outcome = service.ask(prompt("m")).await;

        assert_eq!(outcome.whole(), healthy_text());
        assert_eq!(upstream.times(start), [secs(0), secs(1)]);
    }
    let (_, service) = once(slow);
    let start = Instant::now();
    let answer = service.oneshot(prompt("m")).await.unwrap();
    assert_eq!(start.elapsed(), secs(1));
    assert_eq!(answer.into_body().read().await.whole(), ERROR);
    assert_eq!(start.elapsed(), secs(20));
}

#[tokio::test(start_paused = true)]
async fn the_second_begins_with_the_head() {
    let late = Script::before_head().wait(30.0).status(503);
    let late = late.head("application/json").wait(20.0).data(ERROR);
    let (_, service) = once(late);
    let start = Instant::now();

    service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(start.elapsed(), secs(31));
}

#[tokio::test(start_paused = true)]
async fn what_came_of_a_slow_error_tells_what_it_is() {
    let overflow = r#"{"error":{"message":"no","type":"x","code":"insufficient_quota"}}"#;
    for (at, class) in [
        (overflow.len(), FailureClass::Quota),
        (20, FailureClass::RateLimit),
    ] {
        let (head, tail) = overflow.split_at(at);
        let slow = Script::json().status(429).data(head).wait(20.0).data(tail);
        let (upstream, service) = once(slow);

        let outcome = service.ask(prompt("m")).await;

        assert_eq!(outcome.failure.as_ref().unwrap().class, class);
        assert_eq!(outcome.whole(), overflow);
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_breaks_is_judged_and_breaks_for_the_caller_too() {
    let broken = Script::json().status(400).data("{").fail("reset");
    let (upstream, service) = once(broken);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let outcome = service.ask(request).await;

    assert_eq!(outcome.status, 400);
    let failure = outcome.failure.as_ref().unwrap();
    assert_eq!(failure.class, FailureClass::Caller);
    assert_eq!(outcome.text, "{");
    assert_eq!(outcome.error.unwrap().to_string(), "reset");
    assert_eq!(upstream.calls(), 1);
    let reason = call.terminal_reason();
    assert!(
        matches!(reason, Some(TerminalReason::Failed(_))),
        "{reason:?}"
    );
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_without_a_body_is_judged_by_its_status() {
    for script in [
        Script::json().status(500),
        Script::json().status(500).size(0),
        Script::json().status(500).knows_its_end(),
    ] {
        for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(outcome.whole(), healthy_text());
            assert_eq!(upstream.calls(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_whose_length_is_known_keeps_it() {
    let length = ERROR.len() as u64;
    let (_, service) = once(Script::json().status(500).data(ERROR).size(length));

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(answer.body().size_hint().exact(), Some(length));
    assert_eq!(answer.into_body().read().await.whole(), ERROR);
}

#[tokio::test(start_paused = true)]
async fn trailers_of_an_error_are_handed_on() {
    let (_, service) = once(Script::json().status(500).data(ERROR).trailers());

    let outcome = service.ask(prompt("m")).await;

    assert_eq!(outcome.text, ERROR);
    assert_eq!(outcome.trailers.unwrap()["x-sum"], "42");
}

#[tokio::test(start_paused = true)]
async fn an_error_in_many_frames_is_handed_on_whole() {
    let bytes = ERROR.as_bytes().iter();
    let script = bytes.fold(Script::json().status(400), |script, byte| {
        script.data([*byte])
    });
    let (_, service) = once(script.knows_its_end());

    let outcome = service.ask(prompt("m")).await;

    let failure = outcome.failure.as_ref().unwrap();
    assert_eq!(failure.message, "no");
    assert_eq!(outcome.whole(), ERROR);
}

#[tokio::test(start_paused = true)]
async fn a_compressed_error_is_judged_by_its_head() {
    let script = Script::json()
        .status(429)
        .header("content-encoding", "gzip");
    let (_, service) = once(script.data("....insufficient_quota...."));

    let outcome = service.ask(prompt("m")).await;

    let failure = outcome.failure.as_ref().unwrap();
    assert_eq!(failure.class, FailureClass::RateLimit);
    assert_eq!(failure.message, "");
}

/// A failure of 100 bytes of which 50 come.
fn halved() -> Script {
    let failed = Script::json().status(500).size(100);
    failed.data([b'x'; 50]).fail("reset")
}

/// covers: T51
#[tokio::test(start_paused = true)]
async fn an_answer_that_broke_while_it_was_held_has_no_length() {
    let layer = ModelFallbackLayer::new([Candidate::new("a")]);
    let service = layer.layer(Upstream::script(halved()));

    let body = service.oneshot(prompt("a")).await.unwrap();
    let body = body.into_body();

    assert_eq!(body.size_hint().exact(), None);
    assert_eq!(body.size_hint().lower(), 50);
    let read = body.read().await;
    assert_eq!(read.text, "x".repeat(50));
    assert_eq!(read.end.unwrap_err().to_string(), "reset");
}

/// covers: T51
#[tokio::test(start_paused = true)]
async fn an_answer_that_broke_while_it_was_held_is_broken_on_the_wire() {
    let service = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new([Candidate::new("a")]))
        .service(Upstream::script(halved()));
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
