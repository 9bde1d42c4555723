//! Users at the caps of their owner.

use std::{
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use futures_util::future::join_all;
use http_body_util::BodyExt;
use tower::Service;
use tower_agent::{
    BoxError, OwnerCaps, RunLayer, RunRegistry, StopPhraseLayer, TerminalReason, Trajectory,
};

use super::says;
use crate::support::{
    Outcome, Place, Script, Stack, StackService, Summaries, Upstream, no_delay, prompt_json,
    with_header,
};

struct Stage {
    service: StackService,
    registry: RunRegistry,
    upstream: Upstream,
    summaries: Summaries,
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
        let (written, summaries) = (Paper::default(), Summaries::default());
        let registry = RunRegistry::new().trajectory(&Trajectory::new(written.clone()));
        let upstream = Upstream::script(Script::answer(200, "{}"));
        let runs = RunLayer::new(registry.clone())
            .owner_caps(caps)
            .on_end(summaries.hook());
        let runs = if hears_stop { runs.hears_stop() } else { runs };
        let phrases = StopPhraseLayer::new(registry.clone(), ["/stop"]);
        let stack = Stack::default().layer(Place::Run, runs);
        let stack = stack.layer(Place::StopPhrase, phrases);
        Self {
            service: stack.build(&upstream),
            registry,
            upstream,
            summaries,
            written,
        }
    }

    async fn ask(&self, text: &str, id: Option<&str>) -> Outcome {
        let request = match id {
            Some(id) => with_header(says(text), "x-run-id", id),
            None => says(text),
        };
        self.service.ask(request).await
    }

    fn reason(&self, id: &str) -> Option<TerminalReason> {
        self.registry.find(&id.parse().unwrap())[0].terminal_reason()
    }

    fn lines(&self) -> usize {
        let written = self.written.0.lock().unwrap();
        written.iter().filter(|byte| **byte == b'\n').count()
    }
}

fn assert_capped(outcome: &Outcome) {
    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    let end = outcome.terminated();
    assert_eq!(end.reason, TerminalReason::TurnCap);
    assert!(
        end.message().contains("was refused: its caller has"),
        "{}",
        end.message()
    );
}

#[tokio::test(start_paused = true)]
async fn who_has_too_much_running_can_stop_it() {
    let stage = Stage::new(OwnerCaps::new().max_open_runs(2), true);
    for id in ["one", "two"] {
        stage.ask("go", Some(id)).await.whole();
    }
    for id in [Some("three"), None] {
        let outcome = stage.ask("go", id).await;
        assert_capped(&outcome);
        assert_eq!(outcome.terminated().kind, tower_agent::NodeKind::Run);
    }
    assert_eq!(stage.lines(), 1);

    let outcome = stage.ask("STOP!", Some("three")).await;
    let said = outcome.whole();

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
    let ended = stage.summaries.all().into_iter().map(|it| it.reason);
    assert_eq!(
        ended.collect::<Vec<_>>(),
        [done.clone(), done.clone(), capped.clone(), capped, done]
    );
    stage.ask("go", Some("three")).await.whole();
}

#[tokio::test(start_paused = true)]
async fn a_word_to_stop_beyond_the_turns_of_an_hour_is_heard_and_is_none() {
    let stage = Stage::new(OwnerCaps::new().turns_per_hour(2), true);
    for id in ["one", "two"] {
        stage.ask("go", Some(id)).await.whole();
    }
    assert_capped(&stage.ask("go", Some("one")).await);
    assert_eq!(stage.reason("one"), None, "it lives on");

    let outcome = stage.ask("/stop", Some("one")).await;
    let said = outcome.whole();

    assert!(said.contains("Stopped."), "{said}");
    assert_eq!(
        (stage.reason("one"), stage.reason("two")),
        (None, Some(TerminalReason::Aborted))
    );
    let run = &stage.registry.find(&"one".parse().unwrap())[0];
    assert_eq!(run.in_flight(), 0);
    for id in [Some("one"), Some("three"), None] {
        assert_capped(&stage.ask("go", id).await);
    }
    assert_eq!((stage.upstream.calls(), stage.lines()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn without_a_session_or_leave_it_is_refused_as_all_is() {
    for hears_stop in [true, false] {
        let stage = Stage::new(OwnerCaps::new().max_open_runs(1), hears_stop);
        stage.ask("go", Some("one")).await.whole();
        let mut alone = says("/stop");
        alone.headers_mut().remove("x-session-id");
        assert_capped(&stage.service.ask(alone).await);
        if !hears_stop {
            assert_capped(&stage.ask("/stop", None).await);
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
    stage.ask("go", Some("one")).await.whole();
    let mut service = stage.service.clone();
    let uploads: Vec<_> = (0..4)
        .map(|_| service.call(says("go").map(|_| Endless.boxed_unsync())))
        .collect();
    {
        let mut uploads = pin!(join_all(uploads));
        let mut nobody = Context::from_waker(Waker::noop());
        assert!(uploads.as_mut().poll(&mut nobody).is_pending());

        assert_capped(&stage.ask("/stop", None).await);
        let other = with_header(says("/stop"), "authorization", "Bearer other");
        let outcome = stage.service.ask(other).await;
        assert!(outcome.whole().contains("Nothing was running."));
    }
    let outcome = stage.ask("/stop", None).await;
    assert!(outcome.whole().contains("Stopped."));
}

/// Somebody left the layer out that hears the word: what tries refuses all the same.
#[tokio::test(start_paused = true)]
async fn without_a_layer_that_hears_it_nothing_is_tried() {
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let runs = RunLayer::new(RunRegistry::new())
        .owner_caps(OwnerCaps::new().max_open_runs(1))
        .hears_stop();
    let stack = Stack::default().layer(Place::Run, runs).budget(no_delay());
    let stack = stack.build(&upstream);
    let ask = |id: &str| {
        let request = with_header(prompt_json("m"), "x-run-id", id);
        stack.ask(with_header(request, "x-session-id", "s"))
    };

    ask("r-1").await.whole();
    let refused = ask("r-2").await;

    assert_eq!(refused.status, Outcome::NO_ANSWER);
    assert_eq!(refused.reason, Some(TerminalReason::TurnCap));
    assert_eq!(upstream.calls(), 1);
}
