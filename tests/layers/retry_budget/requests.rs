//! The request: read once, kept until the commit, sent as it came.
//!
//! covers: G6

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, LengthLimitError, StreamBody};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    BoxError, RetryBudgetLayer, Run, StepTimeoutLayer, TerminalReason, error::RequestCut,
    llm::failure::FailureClass,
};

use crate::support::{
    DONE, Outcome, PRELUDE, ReadExt, Script, Stack, Upload, Upstream, attach, chat, failure,
    healthy, healthy_text, no_delay, prompt, reason_of, secs,
};

/// A chat request in these frames, `gap` seconds before each.
fn frames<const N: usize>(
    gap: u64,
    frames: [Result<&'static str, io::Error>; N],
) -> Request<Upload> {
    let frames = stream::unfold(frames.into_iter(), move |mut frames| async move {
        let frame = frames.next()?;
        if gap > 0 {
            sleep(secs(gap)).await;
        }
        Some((frame.map(|text| Frame::data(Bytes::from(text))), frames))
    });
    let request = Request::post("/v1/chat/completions");
    let body = StreamBody::new(frames).map_err(Into::into);
    request.body(body.boxed_unsync()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_request_in_several_frames_is_sent_whole_each_time() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().budget(no_delay()).build(&upstream);

    let request = frames(
        1,
        [Ok("{\"model\""), Ok(":\"m\","), Ok(""), Ok("\"n\":1.0}")],
    );
    let outcome = stack.ask(request).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.bodies(), [r#"{"model":"m","n":1.0}"#; 2]);
}

#[tokio::test(start_paused = true)]
async fn headers_and_target_are_those_of_the_caller_each_time() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let mut request = prompt("m");
    *request.uri_mut() = "/v1/chat/completions?beta=true".parse().unwrap();
    let secret = http::HeaderValue::from_static("Bearer secret");
    request.headers_mut().insert("authorization", secret);

    service.oneshot(request).await.unwrap();

    for seen in upstream.requests() {
        assert_eq!(seen.uri, "/v1/chat/completions?beta=true");
        assert_eq!(seen.headers["authorization"], "Bearer secret");
    }
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_breaks_off_reaches_nobody() {
    let upstream = Upstream::script(healthy());
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();
    let reset = io::ErrorKind::ConnectionReset;
    let (request, call) = attach(&run, frames(1, [Ok("{"), Err(reset.into())]));

    let error = service.oneshot(request).await.unwrap_err();

    assert!(error.is::<RequestCut>(), "{error:?}");
    assert_eq!(upstream.calls(), 0);
    assert_eq!(
        call.terminal_reason(),
        Some(TerminalReason::ClientDisconnect)
    );
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

/// covers: T38
#[tokio::test(start_paused = true)]
async fn a_request_that_is_too_large_reaches_nobody() {
    let whole = prompt("m");
    let length = whole.body().size_hint().exact().unwrap() as usize;
    for (most, calls) in [(length, 1), (length - 1, 0)] {
        let upstream = Upstream::script(healthy());
        let layer = RetryBudgetLayer::new(no_delay()).max_body(most);
        let service = layer.layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, whole.clone());

        let reason = match service.oneshot(request).await {
            Ok(answer) => {
                answer.into_body().read().await.whole();
                TerminalReason::Completed
            }
            Err(error) => {
                assert!(is_too_large(&error), "{error:?}");
                TerminalReason::Failed(FailureClass::Caller)
            }
        };

        assert_eq!(upstream.calls(), calls);
        assert_eq!(call.terminal_reason(), Some(reason));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_becomes_too_large_reaches_nobody() {
    let upstream = Upstream::script(healthy());
    let layer = RetryBudgetLayer::new(no_delay()).max_body(10);
    let request = frames(1, [Ok("{\"a\":"), Ok("\"bcdefgh\"}")]);

    let error = layer
        .layer(upstream.clone())
        .oneshot(request)
        .await
        .unwrap_err();

    assert!(is_too_large(&error), "{error:?}");
    assert_eq!(upstream.calls(), 0);
}

fn is_too_large(error: &BoxError) -> bool {
    let mut error: Option<&dyn std::error::Error> = Some(&**error);
    std::iter::from_fn(|| {
        let this = error?;
        error = this.source();
        Some(this)
    })
    .any(|error| error.is::<LengthLimitError>())
}

#[tokio::test(start_paused = true)]
async fn a_slow_upload_is_no_silence_of_the_upstream() {
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(10)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    let start = Instant::now();

    let answer = service.oneshot(frames(30, [Ok("{"), Ok("}")])).await;

    let answer = answer.unwrap();
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    assert_eq!(upstream.times(start), [secs(60)]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_upload_counts_towards_the_ceiling() {
    let upstream = Upstream::script(healthy());
    let stack = Stack::default().ceiling(45).budget(no_delay());
    let run = Run::open();

    let request = run.attach(frames(30, [Ok("{"), Ok("}")]));
    let outcome = stack.build(&upstream).ask(request).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(outcome.at, secs(45));
    assert_eq!(upstream.calls(), 0);
    assert_eq!(run.in_flight(), 0);
}

/// covers: G5
#[tokio::test(start_paused = true)]
async fn the_callers_own_retries_lower_the_attempts_and_raise_nothing() {
    for (count, most, calls) in [
        ("0", 3, 3),
        ("1", 3, 2),
        ("2", 3, 1),
        ("9", 3, 1),
        ("-5", 3, 3),
        ("many", 2, 2),
        ("1", 1, 1),
    ] {
        let upstream = Upstream::script(failure(500));
        let budget = no_delay().max_attempts_per_candidate(most);
        let service = RetryBudgetLayer::new(budget).layer(upstream.clone());
        let mut request = prompt("m");
        let count = http::HeaderValue::from_static(count);
        request
            .headers_mut()
            .insert("x-stainless-retry-count", count);

        service.oneshot(request).await.unwrap();

        assert_eq!(upstream.calls(), calls);
    }
}

/// A request body of which one can tell when the last copy of it is gone.
fn watched() -> (Request<Full<Bytes>>, Arc<AtomicBool>) {
    struct Kept(Arc<AtomicBool>);
    impl AsRef<[u8]> for Kept {
        fn as_ref(&self) -> &[u8] {
            br#"{"model":"m","stream":true}"#
        }
    }
    impl Drop for Kept {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let freed = Arc::new(AtomicBool::new(false));
    let body = Bytes::from_owner(Kept(Arc::clone(&freed)));
    let request = Request::post("/v1/chat/completions");
    (request.body(Full::from(body)).unwrap(), freed)
}

/// covers: T39
#[tokio::test(start_paused = true)]
async fn the_request_is_kept_until_the_commit_and_no_longer() {
    let slow = Script::sse()
        .wait(1.0)
        .data(PRELUDE)
        .wait(1.0)
        .data(chat("a"))
        .wait(60.0)
        .data(DONE);
    let upstream = Upstream::scripts([failure(500), slow]);
    let budget = no_delay().max_attempts_per_candidate(9);
    let (request, freed) = watched();
    let mut service = RetryBudgetLayer::new(budget).layer(upstream.clone());
    let mut call = pin!(service.call(request));

    let early = tokio::time::timeout(secs(2) * 9 / 10, call.as_mut()).await;
    assert!(early.is_err());
    assert!(!freed.load(Ordering::SeqCst));
    let answer = call.as_mut().await.unwrap();

    // The future is still there, and nothing of the body was read.
    assert!(freed.load(Ordering::SeqCst));
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
}

#[tokio::test(start_paused = true)]
async fn the_request_is_freed_with_the_last_answer() {
    let upstream = Upstream::script(failure(500));
    let budget = no_delay().max_attempts_per_candidate(9).shared(0.0, 1);
    let (request, freed) = watched();
    let mut service = RetryBudgetLayer::new(budget).layer(upstream.clone());
    let mut call = pin!(service.call(request));

    let answer = call.as_mut().await.unwrap();

    assert_eq!(answer.status(), 500);
    assert_eq!(upstream.calls(), 2);
    assert!(freed.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn the_window_after_a_slow_upload_is_a_whole_one() {
    let upstream = Upstream::script(Script::before_head().never());
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::new(secs(10)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    let start = Instant::now();

    let error = service.oneshot(frames(30, [Ok("{"), Ok("}")])).await;

    let reason = reason_of(&error.unwrap_err());
    assert_eq!(reason, Some(TerminalReason::StepTimeout));
    assert_eq!(upstream.times(start), [secs(60)]);
    assert_eq!(start.elapsed(), secs(70));
}
