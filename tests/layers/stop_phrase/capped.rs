//! Users at the caps of their owner.

use std::{
    convert::Infallible,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tower::{Service, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, CallSummary, OwnerCaps, RetryBudgetLayer, RunLayer, RunRegistry, StopPhraseLayer,
    TerminalReason, Terminated, Trajectory,
};

use super::{says, with};
use crate::support::{ReadExt, Script, Upstream, UpstreamBody, no_delay, prompt_json, reason_of};

type Upload = UnsyncBoxBody<Bytes, BoxError>;
type Answer = http::Response<
    tower_agent::run_layer::RunBody<tower_agent::stop_phrase::StopPhraseBody<UpstreamBody>>,
>;

struct Stage {
    service: BoxCloneService<Request<Upload>, Answer, BoxError>,
    registry: RunRegistry,
    upstream: Upstream,
    ended: Arc<Mutex<Vec<TerminalReason>>>,
    written: Paper,
}

#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl io::Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stage {
    fn new(caps: OwnerCaps, hears_stop: bool) -> Self {
        let (written, ended) = (Paper::default(), Arc::<Mutex<Vec<_>>>::default());
        let registry = RunRegistry::new().trajectory(&Trajectory::new(written.clone()));
        let upstream = Upstream::scripts([Script::answer(200, "{}")]);
        let list = Arc::clone(&ended);
        let runs = RunLayer::new(registry.clone())
            .owner_caps(caps)
            .on_end(move |call: &CallSummary| list.lock().unwrap().push(call.reason.clone()));
        let service = ServiceBuilder::new()
            .layer(if hears_stop { runs.hears_stop() } else { runs })
            .layer(StopPhraseLayer::new(registry.clone(), ["/stop"]))
            .service(upstream.clone())
            .boxed_clone();
        Self {
            service,
            registry,
            upstream,
            ended,
            written,
        }
    }

    /// What was said, or why nothing was.
    async fn ask(&self, text: &str, id: Option<&str>) -> Result<String, Terminated> {
        let request = match id {
            Some(id) => with(says(text), "x-run-id", id),
            None => says(text),
        };
        self.send(request).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<String, Terminated> {
        let request = request.map(|body| body.map_err(|never: Infallible| match never {}));
        let request = request.map(BodyExt::boxed_unsync);
        match self.service.clone().oneshot(request).await {
            Ok(answer) => Ok(answer.into_body().read().await.whole()),
            Err(error) => Err(Terminated::find(&*error).unwrap().clone()),
        }
    }

    fn reason(&self, id: &str) -> Option<TerminalReason> {
        self.registry.find(&id.parse().unwrap())[0].terminal_reason()
    }

    fn lines(&self) -> usize {
        let written = self.written.0.lock().unwrap();
        written.iter().filter(|byte| **byte == b'\n').count()
    }
}

fn is_capped(result: Result<String, Terminated>) -> Terminated {
    let end = result.unwrap_err();
    assert_eq!(end.reason, TerminalReason::TurnCap);
    assert!(
        end.message().contains("was refused: its caller has"),
        "{}",
        end.message()
    );
    end
}

#[tokio::test(start_paused = true)]
async fn who_has_too_much_running_can_stop_it() {
    let stage = Stage::new(OwnerCaps::new().max_open_runs(2), true);
    for id in ["one", "two"] {
        stage.ask("go", Some(id)).await.unwrap();
    }
    for id in [Some("three"), None] {
        let end = is_capped(stage.ask("go", id).await);
        assert_eq!(end.kind, tower_agent::NodeKind::Run);
    }
    assert_eq!(stage.lines(), 1);

    let said = stage.ask("STOP!", Some("three")).await.unwrap();

    assert!(said.contains("Stopped."), "{said}");
    for id in ["one", "two"] {
        assert_eq!(stage.reason(id), Some(TerminalReason::Aborted));
    }
    assert_eq!(
        (stage.upstream.calls(), stage.registry.list().len()),
        (2, 2)
    );
    assert_eq!(stage.lines(), 1, "it was not refused");
    let (done, capped) = (TerminalReason::Completed, TerminalReason::TurnCap);
    let ended = stage.ended.lock().unwrap().clone();
    assert_eq!(
        ended,
        [done.clone(), done.clone(), capped.clone(), capped, done]
    );
    stage.ask("go", Some("three")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_word_to_stop_beyond_the_turns_of_an_hour_is_heard_and_is_none() {
    let stage = Stage::new(OwnerCaps::new().turns_per_hour(2), true);
    for id in ["one", "two"] {
        stage.ask("go", Some(id)).await.unwrap();
    }
    is_capped(stage.ask("go", Some("one")).await);
    assert_eq!(stage.reason("one"), None, "it lives on");

    let said = stage.ask("/stop", Some("one")).await.unwrap();

    assert!(said.contains("Stopped."), "{said}");
    assert_eq!(
        (stage.reason("one"), stage.reason("two")),
        (None, Some(TerminalReason::Aborted))
    );
    let run = &stage.registry.find(&"one".parse().unwrap())[0];
    assert_eq!(run.in_flight(), 0);
    for id in [Some("one"), Some("three"), None] {
        is_capped(stage.ask("go", id).await);
    }
    assert_eq!((stage.upstream.calls(), stage.lines()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn without_a_session_or_leave_it_is_refused_as_all_is() {
    for hears_stop in [true, false] {
        let stage = Stage::new(OwnerCaps::new().max_open_runs(1), hears_stop);
        stage.ask("go", Some("one")).await.unwrap();
        let mut alone = says("/stop");
        alone.headers_mut().remove("x-session-id");
        is_capped(stage.send(alone).await);
        if !hears_stop {
            is_capped(stage.ask("/stop", None).await);
        }
        assert_eq!((stage.reason("one"), stage.upstream.calls()), (None, 1));
    }
}

/// An upload that takes for ever.
struct Endless;

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, BoxError>>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn so_many_of_an_owner_are_read_at_a_time() {
    let stage = Stage::new(OwnerCaps::new().max_open_runs(1), true);
    stage.ask("go", Some("one")).await.unwrap();
    let mut service = stage.service.clone();
    let uploads: Vec<_> = (0..4)
        .map(|_| service.call(says("go").map(|_| Endless.boxed_unsync())))
        .collect();
    {
        let mut uploads = pin!(join_all(uploads));
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(uploads.as_mut().poll(&mut nobody).is_pending());

        is_capped(stage.ask("/stop", None).await);
        let other = with(says("/stop"), "authorization", "Bearer other");
        assert!(
            stage
                .send(other)
                .await
                .unwrap()
                .contains("Nothing was running.")
        );
    }
    assert!(stage.ask("/stop", None).await.unwrap().contains("Stopped."));
}

/// Somebody left the layer out that hears the word: what tries refuses all the same.
#[tokio::test(start_paused = true)]
async fn without_a_layer_that_hears_it_nothing_is_tried() {
    let upstream = Upstream::scripts([Script::answer(200, "{}")]);
    let runs = RunLayer::new(RunRegistry::new())
        .owner_caps(OwnerCaps::new().max_open_runs(1))
        .hears_stop();
    let service = ServiceBuilder::new()
        .layer(runs)
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    let ask = |id: &'static str| {
        let mut request = prompt_json("m");
        let headers = request.headers_mut();
        headers.insert("x-run-id", HeaderValue::from_static(id));
        headers.insert("x-session-id", HeaderValue::from_static("s"));
        service.clone().oneshot(request)
    };

    ask("r-1").await.unwrap().into_body().read().await.whole();
    let refused = reason_of(&ask("r-2").await.unwrap_err());

    assert_eq!(refused, Some(TerminalReason::TurnCap));
    assert_eq!(upstream.calls(), 1);
}
