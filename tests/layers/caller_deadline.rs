//! What a caller's headers announce, and what ends by it.

mod head;
mod nodes;
mod silence;
mod stacked;

use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_agent::{HardCeilingLayer, TerminalReason};

use crate::support::{Outcome, ReadExt, Script, Upstream, reason_of, request, secs};

const NODE: &str = "x-stainless-timeout";
const PYTHON: &str = "x-stainless-read-timeout";
const GRPC: &str = "grpc-timeout";

/// Nothing but what the caller announces.
const fn layer() -> HardCeilingLayer {
    HardCeilingLayer::optional(None).caller_deadline(true)
}

fn with<B>(mut request: Request<B>, headers: &[(&'static str, &'static str)]) -> Request<B> {
    for (name, value) in headers {
        let name = HeaderName::from_static(name);
        let value = HeaderValue::from_static(value);
        request.headers_mut().append(name, value);
    }
    request
}

fn announcing(name: &'static str, value: &'static str) -> Request<()> {
    with(request(), &[(name, value)])
}

/// Plays `script` for `request` under `layer`.
async fn play(layer: HardCeilingLayer, script: Script, request: Request<()>) -> Outcome {
    let upstream = Upstream::script(script);
    let start = Instant::now();
    let outcome = Outcome::of(layer.layer(upstream.clone()).oneshot(request)).await;
    if let Some(cut) = upstream.drops().first() {
        // In the same poll, and only after the reason was stored.
        assert_eq!(cut.at, start + outcome.at);
        assert!(cut.reason.is_some());
    }
    outcome
}

#[track_caller]
fn assert_ended_by_the_caller(outcome: &Outcome, at: Duration) {
    assert_eq!(outcome.terminated().reason, TerminalReason::CallerDeadline);
    assert_eq!(outcome.at, at);
}

#[track_caller]
fn assert_whole(outcome: &Outcome, at: Duration) {
    outcome.whole();
    assert_eq!(outcome.at, at);
}

#[tokio::test(start_paused = true)]
async fn it_is_off_unless_it_is_asked_for() {
    let off = [
        HardCeilingLayer::optional(None),
        HardCeilingLayer::new(secs(60)),
        HardCeilingLayer::new(secs(60))
            .caller_deadline(true)
            .caller_deadline(false),
    ];
    for layer in off {
        for (name, value) in [(NODE, "5"), (PYTHON, "5"), (GRPC, "5S")] {
            let script = Script::before_head().wait(20.0).head("text/event-stream");
            let script = script.wait(20.0).data(crate::support::DONE);

            let outcome = play(layer, script, announcing(name, value)).await;

            assert_whole(&outcome, secs(40));
        }
    }
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn nonsense_ends_nothing_and_raises_nothing() {
    for (name, value) in [
        (NODE, "0"),
        (NODE, "NOT_GIVEN"),
        (NODE, "-5"),
        (PYTHON, "None"),
        (PYTHON, "nan"),
        (PYTHON, "inf"),
        (GRPC, "0S"),
        (GRPC, "5"),
        (GRPC, "123456789S"),
    ] {
        let script = Script::sse().wait(20.0).data(crate::support::DONE);
        let outcome = play(layer(), script, announcing(name, value)).await;
        assert_whole(&outcome, secs(20));

        let bounded = layer().timeout(Some(secs(10)));
        let outcome = play(bounded, Script::sse().never(), announcing(name, value)).await;
        assert_ended_by_the_caller(&outcome, secs(10));
    }
}
