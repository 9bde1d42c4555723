mod anew;
mod asked;
mod deep;
mod drain;
mod expiry;
mod freeze;
mod idle_ceilings;
mod pages;
mod refused;
mod scale;
mod sessions;
mod sub_agents;
mod threads;
mod waits;

use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use tokio::time::sleep;
use tower::{Layer, ServiceExt};
use tower_agent::{
    Owner, Run, RunEvent, RunEvents, RunId, RunLayer, RunRegistry, RunSnapshot, StepTimeoutLayer,
    TerminalReason,
    registry::{AbortOutcome, WaitOutcome},
};

use crate::support::{DONE, ReadExt, Script, Stack, Upstream, request, secs};

const IDLE: Duration = RunRegistry::IDLE;

fn id(text: &str) -> RunId {
    text.parse().unwrap()
}

fn us() -> Owner {
    Owner::default()
}

/// The reason and the snapshot of a run that ended within the limit of a wait.
fn ended(waited: WaitOutcome) -> (TerminalReason, RunSnapshot) {
    let WaitOutcome::Ended { reason, snapshot } = waited else {
        panic!("{waited:?}")
    };
    assert_eq!(snapshot.reason.as_ref(), Some(&reason));
    (reason, *snapshot)
}

/// A run of a session, opened by a request that was answered.
async fn opened(registry: &RunRegistry, owner: Owner, name: &str, session: &str) -> Run {
    let upstream = Upstream::script(Script::sse().data(DONE));
    let layer = RunLayer::new(registry.clone()).owner_by(move |_| owner);
    let mut request = request();
    for (header, value) in [("x-run-id", name), ("x-session-id", session)] {
        let value = http::HeaderValue::from_str(value).unwrap();
        request.headers_mut().insert(header, value);
    }
    let answer = layer.layer(upstream).oneshot(request).await.unwrap();
    answer.into_body().read().await.whole();
    registry.get(owner, &id(name)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_id_is_one_run_for_its_owner_and_another_for_another() {
    let registry = RunRegistry::new();
    let ours = registry.open(us(), id("r"));
    let theirs = registry.open(Owner::of(b"key"), id("r"));

    assert!(registry.open(us(), id("r")).end(TerminalReason::Aborted));

    assert_eq!(ours.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(theirs.terminal_reason(), None);
    assert_eq!(registry.find(&id("r")).len(), 2);
}

/// covers: C4
#[tokio::test(start_paused = true)]
async fn abort_tells_an_ended_run_from_an_unknown_one() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));

    assert_eq!(registry.abort(us(), &id("other")), AbortOutcome::Unknown);
    let theirs = registry.abort(Owner::of(b"key"), &id("r"));
    assert_eq!(theirs, AbortOutcome::Unknown);
    assert_eq!(run.terminal_reason(), None, "nothing was touched");
    assert_eq!(registry.abort(us(), &id("r")), AbortOutcome::Ended);
    assert_eq!(registry.abort(us(), &id("r")), AbortOutcome::AlreadyOver);

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Aborted));
}

/// The run of a server without keys is no run of the program, which an abort says.
/// covers: C4
#[tokio::test(start_paused = true)]
async fn abort_by_the_program_says_that_a_request_without_a_key_has_another_owner() {
    let registry = RunRegistry::new();
    let service = RunLayer::new(registry.clone()).layer(Upstream::script(Script::sse().never()));
    let mut asked = request();
    asked.headers_mut().insert("x-run-id", "r".parse().unwrap());
    let _open = service.oneshot(asked).await.unwrap();

    let of_program = registry.abort(Owner::default(), &id("r"));
    assert_eq!(of_program, AbortOutcome::Unknown);
    assert_eq!(registry.open_runs(), 1, "nothing was touched");
    let of_request = registry.abort(Owner::anonymous(), &id("r"));
    assert_eq!(of_request, AbortOutcome::Ended);
    let again = registry.abort(Owner::anonymous(), &id("r"));
    assert_eq!(again, AbortOutcome::AlreadyOver);
}

#[tokio::test(start_paused = true)]
async fn get_opens_nothing() {
    let registry = RunRegistry::new();
    assert!(registry.get(us(), &id("r")).is_none());
    assert!(registry.list().is_empty());

    let run = registry.open(us(), id("r"));
    assert_eq!(registry.get(us(), &id("r")).unwrap().id(), run.id());
    assert_eq!(registry.list().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_tombstone_answers_until_ten_minutes_after_its_last_hit() {
    let registry = RunRegistry::new();
    registry.open(us(), id("r")).end(TerminalReason::TurnCap);

    for _ in 0..5 {
        sleep(secs(599)).await;
        let again = registry.open(us(), id("r"));
        assert_eq!(again.terminal_reason(), Some(TerminalReason::TurnCap));
    }
    sleep(secs(599)).await;
    assert_eq!(registry.list().len(), 1, "a list is no hit");
    sleep(secs(1)).await;

    assert!(registry.get(us(), &id("r")).is_none());
    assert_eq!(registry.open(us(), id("r")).terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_live_run_is_pinned() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    let _busy = run.attach(request());

    sleep(IDLE * 10).await;

    assert_eq!(registry.open(us(), id("r")).terminal_reason(), None);
    assert_eq!(registry.list().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_idle_counts_as_completed_and_its_id_opens_a_new_one() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    sleep(IDLE - secs(1)).await;
    assert_eq!(registry.open(us(), id("r")).terminal_reason(), None);
    assert_eq!(run.terminal_reason(), None);
    sleep(secs(1)).await;

    let next = registry.open(us(), id("r"));

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(next.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn idle_counts_from_when_the_last_work_ended_however_it_ended() {
    for aborted in [false, true] {
        let registry = RunRegistry::new();
        let run = registry.open(us(), id("r"));
        let (request, call) = crate::support::call_of(&run);
        sleep(IDLE - secs(60)).await;
        if aborted {
            call.end(TerminalReason::ClientDisconnect);
        }
        drop(request);
        assert_eq!(run.in_flight(), 0);
        sleep(secs(120)).await;

        let again = registry.open(us(), id("r"));

        assert_eq!(again.terminal_reason(), None);
        assert_eq!(
            run.terminal_reason(),
            None,
            "idle for two minutes only; aborted: {aborted}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_ended_by_its_own_window_also_counts_as_work_until_then() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    let upstream = Upstream::script(Script::sse().never());
    let service = StepTimeoutLayer::new(IDLE - secs(60)).layer(upstream);
    service
        .oneshot(run.attach(request()))
        .await
        .unwrap()
        .into_body()
        .read()
        .await
        .end
        .unwrap_err();
    sleep(secs(120)).await;

    let again = registry.open(us(), id("r"));

    assert_eq!(again.terminal_reason(), None);
    assert_eq!(run.terminal_reason(), None, "idle for two minutes only");
}

/// covers: B6
#[tokio::test(start_paused = true)]
async fn every_run_counts_its_events_from_one_beside_the_registrys_count() {
    let registry = RunRegistry::new();
    let mut events = registry.subscribe();
    let [a, b] = ["a", "b"].map(|name| registry.open(us(), id(name)));
    let mut events_of_b = b.subscribe();
    for run in [&a, &b] {
        run.end(TerminalReason::Aborted);
        run.end(TerminalReason::Shutdown);
        registry.abort(us(), &run.id());
    }
    drop(registry);

    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        seen.push(serde_json::to_value(event).unwrap());
    }
    let numbers = |event: &serde_json::Value| {
        let number = |name: &str| event[name].as_u64();
        let run = event["run"].as_str().unwrap().to_owned();
        (run, number("sequence"), number("registry_sequence"))
    };
    let expected = [("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("b", 2, 4)];
    let expected = expected.map(|(run, own, all)| (run.to_owned(), Some(own), Some(all)));
    assert_eq!(seen.iter().map(numbers).collect::<Vec<_>>(), expected);
    for opened in &seen[..2] {
        assert_eq!(opened["notice"]["kind"], "opened");
    }
    for end in &seen[2..] {
        assert_eq!(end["reason"], "aborted");
        let message = end["message"].as_str().unwrap();
        assert!(message.contains("it was aborted (aborted)"), "{message}");
        assert_eq!(end["snapshot"]["reason"], "aborted");
    }
    let end = serde_json::to_value(events_of_b.next().await.unwrap()).unwrap();
    assert_eq!(end, seen[3], "the run's observers see the same event");
}

/// covers: C8
#[tokio::test(start_paused = true)]
async fn an_observer_that_is_too_slow_is_told_how_much_it_lost() {
    let registry = RunRegistry::new();
    let mut events = registry.subscribe();
    for n in 0..RunRegistry::EVENTS / 2 + 5 {
        registry
            .open(us(), id(&n.to_string()))
            .end(TerminalReason::Aborted);
    }

    let lost = events.next().await.unwrap();
    assert!(matches!(lost, RunEvent::Lost { events: 10 }), "{lost:?}");
}

/// covers: C8
#[tokio::test(start_paused = true)]
async fn the_ends_among_lost_events_are_found_by_their_numbers() {
    let registry = RunRegistry::new();
    let open = registry.open(us(), id("open"));
    let mut events = registry.subscribe();
    for n in 0..RunRegistry::EVENTS / 2 + 5 {
        registry
            .open(us(), id(&n.to_string()))
            .end(TerminalReason::Aborted);
    }
    assert!(matches!(
        events.next().await,
        Some(RunEvent::Lost { events: 10 })
    ));
    let first = match events.next().await {
        Some(RunEvent::Notice {
            registry_sequence, ..
        }) => registry_sequence,
        other => panic!("{other:?}"),
    };
    let lost = registry.list().into_iter();
    let lost = lost.filter(|run| run.end_sequence.is_some_and(|number| Some(number) < first));
    let mut lost: Vec<_> = lost.map(|run| run.run.to_string()).collect();
    lost.sort_unstable();
    assert_eq!(lost, ["0", "1", "2", "3", "4"]);
    assert_eq!(open.snapshot().end_sequence, None);
}

/// covers: C10
#[tokio::test(start_paused = true)]
async fn shutdown_ends_live_runs_once() {
    let registry = RunRegistry::new();
    let runs = ["a", "b", "c"].map(|name| registry.open(us(), id(name)));
    runs[0].end(TerminalReason::Aborted);

    assert_eq!(registry.shutdown(), 2);
    assert_eq!(registry.shutdown(), 0);
    let late = registry.open(us(), id("d"));
    assert_eq!(late.terminal_reason(), Some(TerminalReason::Shutdown));
    assert!(registry.get(us(), &id("d")).is_none(), "it admits nothing");

    assert_eq!(runs[0].terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(runs[1].terminal_reason(), Some(TerminalReason::Shutdown));
}

#[tokio::test(start_paused = true)]
async fn ended_runs_are_bounded_and_the_oldest_is_forgotten() {
    let registry = RunRegistry::new();
    for n in 0..=RunRegistry::ENDED {
        registry
            .open(us(), id(&format!("r-{n}")))
            .end(TerminalReason::Aborted);
    }

    assert!(registry.get(us(), &id("r-0")).is_none());
    assert!(registry.get(us(), &id("r-1")).is_some());
    assert_eq!(registry.list().len(), RunRegistry::ENDED);
}

#[tokio::test(start_paused = true)]
async fn those_that_completed_are_forgotten_before_those_that_were_ended() {
    let registry = RunRegistry::new();
    registry
        .open(us(), id("ended"))
        .end(TerminalReason::TurnCap);
    for n in 0..RunRegistry::ENDED {
        registry
            .open(us(), id(&format!("r-{n}")))
            .end(TerminalReason::Completed);
    }

    assert!(registry.get(us(), &id("r-0")).is_none());
    assert!(registry.get(us(), &id("r-1")).is_some());
    let ended = registry.open(us(), id("ended"));
    assert_eq!(ended.terminal_reason(), Some(TerminalReason::TurnCap));
    assert_eq!(registry.list().len(), RunRegistry::ENDED);
}

#[tokio::test(start_paused = true)]
async fn those_that_a_limit_ended_are_forgotten_last() {
    let registry = RunRegistry::new();
    let capped = registry.open(us(), id("capped"));
    capped.end(TerminalReason::TurnCap);
    registry
        .open(us(), id("first"))
        .end(TerminalReason::Aborted);
    for n in 1..RunRegistry::ENDED {
        let run = registry.open(us(), id(&n.to_string()));
        run.end(TerminalReason::Aborted);
    }

    assert!(registry.get(us(), &id("first")).is_none());
    let known = registry.open(us(), id("capped"));
    assert_eq!(known.terminal_reason(), Some(TerminalReason::TurnCap));
}

#[tokio::test(start_paused = true)]
async fn a_run_opened_by_the_program_is_not_completed_by_an_answer() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    let upstream = Upstream::script(Script::sse().data(DONE));
    let stack = Stack::default().step(5).build(&upstream);

    stack.ask(run.attach(request())).await.whole();

    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

#[test]
fn an_owner_prints_no_credential() {
    assert_eq!(format!("{:?}", Owner::of(b"sk-secret")), "Owner(..)");
    assert_eq!(Owner::of(b"a"), Owner::of(b"a"));
    assert_ne!(Owner::of(b"a"), Owner::of(b"b"));
}

#[tokio::test(start_paused = true)]
async fn a_run_has_observers_of_its_own_and_its_end_comes_last() {
    for registered in [false, true] {
        let registry = RunRegistry::new();
        let run = match registered {
            true => registry.open(us(), id("r")),
            false => Run::open(),
        };
        let mut events = run.subscribe();
        run.child().end(TerminalReason::Aborted);
        run.end(TerminalReason::TurnCap);

        let event = events.next().await.unwrap();
        let RunEvent::Ended {
            reason, sequence, ..
        } = event
        else {
            panic!("{event:?}")
        };
        assert_eq!(reason, TerminalReason::TurnCap);
        assert_eq!(sequence, if registered { 2 } else { 1 });
        assert!(events.next().await.is_none(), "nothing comes after it");

        let mut late = run.subscribe();
        assert!(matches!(late.next().await, Some(RunEvent::Ended { .. })));
        assert!(late.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_late_is_told_the_same_numbers_each_time() {
    for registered in [false, true] {
        let registry = RunRegistry::new();
        let _first = registry.open(us(), id("another"));
        let run = match registered {
            true => registry.open(us(), id("r")),
            false => Run::open(),
        };
        run.end(TerminalReason::Aborted);

        for _ in 0..3 {
            let end = serde_json::to_value(run.subscribe().next().await.unwrap()).unwrap();
            assert_eq!(end["event"], "ended");
            assert_eq!(end["sequence"], if registered { 2 } else { 1 });
            let all = registered.then_some(3);
            assert_eq!(end["registry_sequence"].as_u64(), all, "{end}");
        }
    }
}

/// covers: C8
#[tokio::test(start_paused = true)]
async fn an_observer_is_a_stream_of_the_same_events() {
    fn sent_anywhere<T: Send + Sync + Unpin + 'static>(observer: T) -> T {
        observer
    }
    let registry = RunRegistry::new();
    let mut stream = sent_anywhere(registry.subscribe());
    let number =
        |event: RunEvent| serde_json::to_value(event).unwrap()["registry_sequence"].as_u64();
    assert!(StreamExt::next(&mut stream).now_or_never().is_none());

    // A waiting stream is woken, and can be cloned and read by `next`.
    let cloned = stream.clone();
    let waiting = tokio::spawn(async move {
        let first = stream.next().await;
        (first, stream)
    });
    tokio::task::yield_now().await;
    let runs: Vec<_> = (0..2)
        .map(|n| registry.open(us(), id(&n.to_string())))
        .collect();
    let (first, mut stream) = waiting.await.unwrap();
    assert_eq!(first.and_then(number), Some(1));
    assert_eq!(StreamExt::next(&mut stream).await.and_then(number), Some(2));
    assert!(StreamExt::next(&mut stream).now_or_never().is_none());
    let late = stream.clone();

    // Each waits by itself, until the registry is gone.
    let read = |stream: RunEvents| tokio::spawn(stream.map(number).collect::<Vec<_>>());
    let all = [cloned, stream, late].map(read);
    tokio::task::yield_now().await;
    runs[0].end(TerminalReason::Aborted);
    drop((registry, runs));
    let mut told = Vec::new();
    for read in all {
        told.push(read.await.unwrap());
    }
    let [one, two, three] = [1, 2, 3].map(Some);
    assert_eq!(told, [vec![one, two, three], vec![three], vec![three]]);
}

/// covers: C8
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_too_slow_is_told_how_much_it_lost_and_ends_after_the_runs_end() {
    let registry = RunRegistry::new();
    let mut stream = registry.subscribe();
    assert!(StreamExt::next(&mut stream).now_or_never().is_none());
    for n in 0..RunRegistry::EVENTS + 10 {
        drop(registry.open(us(), id(&n.to_string())));
    }
    let lost = StreamExt::next(&mut stream).await;
    assert!(
        matches!(lost, Some(RunEvent::Lost { events: 10 })),
        "{lost:?}"
    );

    let run = Run::open();
    let mut stream = run.subscribe();
    assert!(StreamExt::next(&mut stream).now_or_never().is_none());
    run.end(TerminalReason::Aborted);
    let (late, cloned) = (run.subscribe(), stream.clone());
    for (stream, events) in [(stream, 1), (late, 1), (cloned, 0)] {
        assert_eq!(stream.count().await, events);
    }
}
