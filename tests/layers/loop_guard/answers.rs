//! What passes, passes as it is.

use std::task::Poll;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower::{Layer, ServiceExt};
use tower_agent::{LoopGuardLayer, ReplayBody};

use super::agent::{Agent, Dialect};
use crate::support::{DONE, Outcome, PRELUDE, ReadExt, Script, Upstream, chat, poll_body};

const CALL: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}}]}\n\n";

async fn answered(
    script: Script,
) -> Response<impl Body<Data = Bytes, Error = tower_agent::BoxError> + Unpin + Send> {
    let service = LoopGuardLayer::new().layer(Upstream::script(script));
    service
        .oneshot(Agent::new(Dialect::Chat).request())
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_stream_passes_byte_for_byte_each_frame_at_once() {
    let (one, other) = CALL.split_at(50);
    let frames = [PRELUDE, one, other, &chat("a"), DONE].map(str::to_owned);
    let mut script = Script::sse();
    for frame in &frames {
        script = script.data(frame).wait(1.0);
    }
    let mut answer = answered(script).await;

    for frame in &frames {
        assert_eq!(&answer.body_mut().token().await, frame);
        let next = poll_body(answer.body_mut());
        assert!(matches!(next, Poll::Pending), "{next:?}");
    }
    let rest = answer.into_body().read().await;
    assert_eq!(rest.whole(), "");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_json_or_compressed_passes() {
    let scripts = [
        Script::of("text/plain").data("plain"),
        Script::answer(200, "not json at all"),
        Script::json()
            .header("content-encoding", "gzip")
            .data([31_u8, 9, 8]),
        Script::of("application/json; charset=utf-8").data(r#"{"choices":[{"message":{}}]}"#),
        Script::answer(503, r#"{"error":{"message":"no"}}"#),
    ];
    for script in scripts {
        let upstream = Upstream::script(script.clone());
        let plain = upstream.oneshot(crate::support::request()).await.unwrap();
        let expected = plain.into_body().read().await.whole();

        let answer = answered(script).await;

        assert_eq!(answer.into_body().read().await.whole(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_holds_no_conversation_passes_as_it_is() {
    for body in [
        "",
        "plain",
        r#"{"messages":[}"#,
        r#"{"input":["embed","me"]}"#,
    ] {
        let upstream = Upstream::script(Script::answer(200, "{}"));
        let service = LoopGuardLayer::new().layer(upstream.clone());

        let request = Request::post("/v1/embeddings")
            .body(Full::<Bytes>::from(body))
            .unwrap();
        Outcome::of(service.oneshot(request)).await.whole();

        assert_eq!(upstream.requests()[0].body(), body);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_kept_already_is_not_kept_again() {
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let service = LoopGuardLayer::new().max_body(1).layer(upstream.clone());
    let body = Agent::new(Dialect::Chat).body();

    let kept = Request::post("/v1/chat/completions")
        .body(ReplayBody::from(body.clone()))
        .unwrap();
    Outcome::of(service.clone().oneshot(kept)).await.whole();
    assert_eq!(upstream.requests()[0].body(), body);

    let request = Request::post("/v1/chat/completions")
        .body(Full::<Bytes>::from(body))
        .unwrap();
    let error = service.oneshot(request).await.unwrap_err();
    assert!(error.is::<http_body_util::LengthLimitError>(), "{error:?}");
    assert_eq!(upstream.calls(), 1);
}
