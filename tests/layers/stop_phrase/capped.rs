//! Users at the caps of their owner.
//!
//! covers: T84

use std::{
    io,
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
};

use bytes::Bytes;
use http_body_util::BodyExt;
use tower::Service;
use tower_agent::{
    BoxError, OwnerCapLayer, OwnerCaps, RunLayer, RunRegistry, StopPhraseLayer, TerminalReason,
    Trajectory,
};

use super::says;
use crate::support::{
    Outcome, Place, Script, Stack, StackService, Summaries, Upstream, with_header,
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
    fn new(caps: OwnerCaps, phrases: &[&str]) -> Self {
        let (written, summaries) = (Paper::default(), Summaries::default());
        let registry = RunRegistry::new().trajectory(&Trajectory::new(written.clone()));
        let upstream = Upstream::script(Script::answer(200, "{}"));
        let runs = RunLayer::new(registry.clone()).on_end(summaries.hook());
        let phrases = StopPhraseLayer::new(registry.clone(), phrases);
        let caps = OwnerCapLayer::new(registry.clone(), caps);
        let stack = Stack::default().layer(Place::Run, runs);
        let stack = stack.layer(Place::StopPhrase, phrases);
        let stack = stack.layer(Place::OwnerCap, caps);
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
    let stage = Stage::new(OwnerCaps::new().max_open_runs(2), &["/stop"]);
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
    let stage = Stage::new(OwnerCaps::new().turns_per_hour(2), &["/stop"]);
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
async fn without_a_session_or_a_phrase_it_is_refused_as_all_is() {
    for phrases in [&["/stop"][..], &[]] {
        let stage = Stage::new(OwnerCaps::new().max_open_runs(1), phrases);
        stage.ask("go", Some("one")).await.whole();
        let mut alone = says("/stop");
        alone.headers_mut().remove("x-session-id");
        assert_capped(&stage.service.ask(alone).await);
        if phrases.is_empty() {
            assert_capped(&stage.ask("/stop", None).await);
        }
        assert_eq!((stage.reason("one"), stage.upstream.calls()), (None, 1));
    }
}

/// Two requests with one new id: the first is refused while the other is read.
#[tokio::test(start_paused = true)]
async fn a_refused_request_does_not_end_another_of_its_new_run() {
    let stage = Stage::new(OwnerCaps::new().max_open_runs(1), &["/stop"]);
    stage.ask("go", Some("one")).await.whole();
    let (mut sender, body) = http_body_util::channel::Channel::<Bytes, BoxError>::new(1);
    let stop = with_header(says("/stop"), "x-run-id", "two");
    let (head, text) = stop.into_parts();
    let text = text.collect().await.unwrap().to_bytes();
    let stop = http::Request::from_parts(head, body.boxed_unsync());
    let mut service = stage.service.clone();
    let mut stopping = pin!(service.call(stop));
    let mut nobody = Context::from_waker(Waker::noop());
    assert!(stopping.as_mut().poll(&mut nobody).is_pending());

    let refused = stage.ask("go", Some("two")).await;
    assert_capped(&refused);
    assert_eq!(refused.terminated().kind, tower_agent::NodeKind::Call);
    sender.send_data(text).await.unwrap();
    drop(sender);
    let outcome = Outcome::of(stopping).await;

    assert!(outcome.whole().contains("Stopped."));
    assert_eq!(stage.reason("one"), Some(TerminalReason::Aborted));
    assert_eq!(stage.registry.list().len(), 1, "the new run left");
}
