//! What a caller's headers announce, and what ends by it.

mod head;
mod nodes;
mod silence;
mod stacked;

use std::time::Duration;

use http::{HeaderName, HeaderValue, Request};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_agent::{BoxError, HardCeilingLayer, TerminalReason};

use crate::support::{Read, ReadExt, Script, Upstream, reason_of, request, secs};

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

/// How a call ended, and how long it took.
struct Outcome {
    after: Duration,
    answer: Result<Read, BoxError>,
}

impl Outcome {
    fn reason(&self) -> Option<TerminalReason> {
        match &self.answer {
            Ok(read) => read.reason(),
            Err(error) => reason_of(error),
        }
    }

    #[track_caller]
    fn ended_by_the_caller_after(&self, after: Duration) {
        assert_eq!(self.reason(), Some(TerminalReason::CallerDeadline));
        assert_eq!(self.after, after);
    }

    #[track_caller]
    fn came_whole_after(self, after: Duration) {
        self.answer.unwrap().whole();
        assert_eq!(self.after, after);
    }
}

/// Plays `script` for `request` under `layer`, and reads all of it.
async fn play(layer: HardCeilingLayer, script: Script, request: Request<()>) -> Outcome {
    let upstream = Upstream::script(script);
    let start = Instant::now();
    let answer = match layer.layer(upstream.clone()).oneshot(request).await {
        Ok(answer) => Ok(answer.into_body().read().await),
        Err(error) => Err(error),
    };
    let after = start.elapsed();
    if let Some(cut) = upstream.drops().first() {
        // In the same poll, and only after the reason was stored.
        assert_eq!(cut.at, start + after);
        assert!(cut.reason.is_some());
    }
    Outcome { after, answer }
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

            outcome.came_whole_after(secs(40));
        }
    }
}

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
        play(layer(), script, announcing(name, value))
            .await
            .came_whole_after(secs(20));

        let bounded = layer().timeout(Some(secs(10)));
        let outcome = play(bounded, Script::sse().never(), announcing(name, value)).await;
        outcome.ended_by_the_caller_after(secs(10));
    }
}
