//! What the runs of one caller may come to together.
//!
//! covers: D6

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Request;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::time::advance;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    AgentStack, BoxError, NodeKind, OwnerCapLayer, OwnerCaps, Run, RunEvent, RunLayer, RunNotice,
    RunRegistry, StopPhraseLayer, TerminalReason, TerminalResponseLayer,
};

use crate::support::{
    Outcome, Place, Script, Stack, StackService, Upstream, poll_once, prompt, request, secs,
    with_header,
};

fn capped(caps: OwnerCaps) -> (StackService, Upstream, RunRegistry) {
    let upstream = Upstream::script(Script::json().data("{}"));
    let registry = RunRegistry::new();
    let service = capped_in(&registry, caps, &upstream);
    (service, upstream, registry)
}

fn capped_in(registry: &RunRegistry, caps: OwnerCaps, upstream: &Upstream) -> StackService {
    let caps = OwnerCapLayer::new(registry.clone(), caps);
    let layer = RunLayer::new(registry.clone());
    StackService::new(layer.layer(caps.layer(upstream.clone())))
}

/// A request with this key, of the run with this id.
fn of(key: &str, id: Option<&str>) -> Request<()> {
    let request = with_header(request(), "authorization", key);
    match id {
        Some(id) => with_header(request, "x-run-id", id),
        None => request,
    }
}

fn assert_refused(outcome: &Outcome, why: &str) {
    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    let end = outcome.terminated();
    assert_eq!(
        (&end.reason, end.at_turn()),
        (&TerminalReason::TurnCap, None)
    );
    assert!(end.message().contains(why), "{}", end.message());
}

#[tokio::test(start_paused = true)]
async fn more_open_runs_than_allowed_are_refused_and_leave_no_trace() {
    let (service, probe, registry) = capped(OwnerCaps::new().max_open_runs(2));
    for id in ["a", "b"] {
        service.ask(of("x", Some(id))).await.whole();
    }
    for number in 0..50 {
        let id = format!("new-{number}");
        let outcome = service.ask(of("x", Some(&id))).await;
        assert_refused(&outcome, "2 open runs");
        let end = outcome.terminated();
        assert_eq!((end.run.to_string(), end.kind), (id, NodeKind::Run));
    }
    assert_refused(&service.ask(of("x", None)).await, "2 open runs");
    assert_eq!((probe.calls(), registry.list().len()), (2, 2));

    service.ask(of("x", Some("a"))).await.whole();
    service.ask(of("y", Some("c"))).await.whole();
    // One of them ends, and there is room for another.
    registry.find(&"a".parse().unwrap())[0].end(TerminalReason::Aborted);
    service.ask(of("x", Some("d"))).await.whole();
    assert_refused(&service.ask(of("x", Some("e"))).await, "2 open runs");
    let outcome = service.ask(of("x", Some("a"))).await;
    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(
        outcome.reason,
        Some(TerminalReason::Aborted),
        "a tombstone says what it was"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_id_is_open_as_long_as_it_is_answered() {
    let (service, _, _) = capped(OwnerCaps::new().max_open_runs(1));
    for _ in 0..20 {
        service.ask(of("x", None)).await.whole();
    }
    let answer = service.clone().oneshot(of("x", None)).await.unwrap();
    assert_refused(&service.ask(of("x", None)).await, "1 open runs");
    drop(answer);
    service.ask(of("x", None)).await.whole();
}

#[tokio::test(start_paused = true)]
async fn more_turns_in_an_hour_than_allowed_are_refused_whatever_their_id() {
    let (service, probe, registry) = capped(OwnerCaps::new().turns_per_hour(3));
    // Late in a minute, and so given back late as well.
    advance(secs(59)).await;
    for id in [Some("a"), Some("b"), None] {
        service.ask(of("x", id)).await.whole();
    }
    let remembered = registry.list().len();
    for id in [Some("a"), Some("c"), None] {
        let outcome = service.ask(of("x", id)).await;
        assert_refused(&outcome, "3 turns within an hour");
        let kind = if id == Some("a") {
            NodeKind::Call
        } else {
            NodeKind::Run
        };
        assert_eq!(outcome.terminated().kind, kind);
    }
    assert_eq!((probe.calls(), registry.list().len()), (3, remembered));
    let run = registry.find(&"a".parse().unwrap())[0].clone();
    assert_eq!(
        (run.terminal_reason(), run.in_flight()),
        (None, 0),
        "it lives on"
    );
    service.ask(of("y", Some("a"))).await.whole();

    advance(secs(3599)).await;
    assert_refused(&service.ask(of("x", None)).await, "3 turns");
    advance(secs(61)).await;
    for id in [Some("c"), None, Some("d")] {
        service.ask(of("x", id)).await.whole();
    }
    assert_refused(&service.ask(of("x", None)).await, "3 turns");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_turn_and_what_is_over_counts_for_nothing() {
    let (service, _, registry) = capped(OwnerCaps::new().turns_per_hour(2));
    let embeddings = || {
        let mut request = of("x", Some("a"));
        *request.uri_mut() = "/v1/embeddings".parse().unwrap();
        request
    };
    for _ in 0..10 {
        service.ask(embeddings()).await.whole();
    }
    registry.find(&"a".parse().unwrap())[0].end(TerminalReason::Aborted);
    for _ in 0..10 {
        let outcome = service.ask(of("x", Some("a"))).await;
        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::Aborted));
    }
    service.ask(of("x", None)).await.whole();
    service.ask(of("x", Some("b"))).await.whole();
    assert_refused(&service.ask(of("x", Some("b"))).await, "2 turns");
}

#[tokio::test(start_paused = true)]
async fn an_id_whose_run_has_completed_is_one_of_a_new_run() {
    let (service, _, _) = capped(OwnerCaps::new().max_open_runs(1));
    service.ask(of("x", Some("a"))).await.whole();
    advance(RunRegistry::IDLE).await;
    service.ask(of("x", Some("b"))).await.whole();

    assert_refused(&service.ask(of("x", Some("a"))).await, "1 open runs");
    assert_refused(&service.ask(of("x", Some("c"))).await, "1 open runs");
    service.ask(of("x", Some("b"))).await.whole();
}

#[tokio::test(start_paused = true)]
async fn a_key_is_one_caller_however_it_is_written() {
    let (service, probe, _) = capped(OwnerCaps::new().turns_per_hour(4));
    for key in ["Bearer key", "bearer key", "BEARER \t key ", "key"] {
        service.ask(of(key, None)).await.whole();
    }
    for key in ["beaReR  key", "Token key"] {
        assert_refused(&service.ask(of(key, None)).await, "4 turns");
    }
    for header in ["x-api-key", "api-key", "x-goog-api-key"] {
        let outcome = service.ask(with_header(request(), header, "key")).await;
        assert_refused(&outcome, "4 turns");
    }
    assert_eq!(probe.calls(), 4);
    service.ask(of("Bearer another key", None)).await.whole();
    service.ask(of("Bearer other", None)).await.whole();
}

#[tokio::test(start_paused = true)]
async fn calls_that_the_program_attached_pass() {
    let (service, probe, _) = capped(OwnerCaps::new().max_open_runs(1).turns_per_hour(1));
    service.ask(of("x", Some("a"))).await.whole();
    let run = Run::open();
    for _ in 0..5 {
        service.ask(run.attach(of("x", Some("b")))).await.whole();
    }
    assert_eq!(probe.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_a_layer_further_out_opened_is_one_of_the_callers() {
    let (service, probe, registry) = capped(OwnerCaps::new().max_open_runs(1));
    service.ask(of("x", Some("a"))).await.whole();
    let service = Stack::default().step(10).around(service);
    for id in [Some("b"), None] {
        assert_refused(&service.ask(of("x", id)).await, "1 open runs");
    }
    assert_eq!((probe.calls(), registry.list().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_told_422_and_not_to_try_again() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let (registry, caps) = (RunRegistry::new(), OwnerCaps::new().max_open_runs(1));
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(registry.clone()))
        .layer(OwnerCapLayer::new(registry, caps))
        .service(upstream);
    let _open = service.clone().oneshot(of("x", Some("a"))).await.unwrap();

    let outcome = Outcome::of(service.clone().oneshot(of("x", Some("b")))).await;

    assert_eq!(outcome.status, 422);
    assert_eq!(outcome.headers["x-terminal-reason"], "turn_cap_reached");
    assert_eq!(outcome.headers["x-should-retry"], "false");
    assert_eq!(outcome.headers["x-run-id"], "b");
}

#[tokio::test(start_paused = true)]
async fn a_capped_run_stays_over_whatever_other_ids_come_after_it() {
    let registry = RunRegistry::new();
    let open = |id: String| registry.open(tower_agent::Owner::default(), id.parse().unwrap());
    let ends = |id: String, reason| assert!(open(id).end(reason));
    ends("capped".into(), TerminalReason::TurnCap);
    for number in 0..50 {
        ends(format!("done-{number}"), TerminalReason::Completed);
    }
    // Those that completed go first, for each that comes, and then the oldest.
    for number in 0..RunRegistry::ENDED {
        ends(format!("aborted-{number}"), TerminalReason::Aborted);
    }

    assert_eq!(registry.list().len(), RunRegistry::ENDED);
    assert!(registry.find(&"done-49".parse().unwrap()).is_empty());
    assert!(registry.find(&"aborted-0".parse().unwrap()).is_empty());
    for (id, reason) in [
        ("aborted-1", TerminalReason::Aborted),
        ("capped", TerminalReason::TurnCap),
    ] {
        assert_eq!(open(id.into()).terminal_reason(), Some(reason));
    }
}

#[test]
fn requests_of_one_new_run_count_once_though_they_come_at_the_same_time() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    };
    for _ in 0..1000 {
        let (service, _, _) = capped(OwnerCaps::new().max_open_runs(1));
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let threads = [service.clone(), service].map(|service| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let outcome = runtime().block_on(service.ask(of("x", Some("a"))));
                    outcome.error.is_none()
                })
            });
            for thread in threads {
                assert!(thread.join().unwrap());
            }
        });
    }
}

/// Each id is new, and so is each request's claim to the one run that there may be.
#[test]
fn of_eight_threads_one_opens_the_run_that_there_may_be() {
    const THREADS: usize = 8;
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    };
    for _ in 0..500 {
        let (service, upstream, registry) = capped(OwnerCaps::new().max_open_runs(1));
        let barrier = std::sync::Barrier::new(THREADS);
        let admitted = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (service, barrier) = (service.clone(), &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        let id = format!("run-{thread}");
                        let outcome = runtime().block_on(service.ask(of("x", Some(&id))));
                        outcome.error.is_none()
                    })
                })
                .collect();
            let admitted = threads.into_iter().map(|thread| thread.join().unwrap());
            admitted.filter(|admitted| *admitted).count()
        });
        assert_eq!((admitted, upstream.calls()), (1, 1));
        assert_eq!(registry.list().len(), 1);
    }
}

/// An upload that no layer may read.
struct Unread;

impl Body for Unread {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        panic!("the body of a refused request was read");
    }
}

#[tokio::test(start_paused = true)]
async fn the_body_of_a_refused_request_is_not_read() {
    let (service, upstream, _) = capped(OwnerCaps::new().max_open_runs(1));
    service.ask(of("x", Some("a"))).await.whole();
    let refused = of("x", Some("b")).map(|()| Unread.boxed_unsync());
    assert_refused(
        &Outcome::of(service.clone().call(refused)).await,
        "1 open runs",
    );
    assert_eq!(upstream.calls(), 1);
}

/// A caller at a cap must not fill the memory with requests that are read for it.
///
/// covers: T84
#[tokio::test(start_paused = true)]
async fn a_stack_reads_a_request_over_a_cap_only_if_it_may_be_a_stop_phrase() {
    let turns = OwnerCaps::new().turns_per_hour(1);
    let runs = OwnerCaps::new().max_open_runs(1);
    for (caps, phrases, header) in [
        (turns, [""; 1], ("x-session-id", "s")),
        (runs, [""], ("x-session-id", "s")),
        (turns, ["/stop"], ("x-none", "s")),
    ] {
        let registry = RunRegistry::new();
        let upstream = Upstream::script(Script::json().data("{}"));
        let stack = AgentStack::server(&registry)
            .owner_caps(caps)
            .stop_phrases(phrases)
            .service(upstream.clone());
        let ask = async |run, body: UnsyncBoxBody<Bytes, BoxError>| {
            let request = with_header(prompt("a"), "x-run-id", run).map(|_| body);
            let request = with_header(request, header.0, header.1);
            stack.clone().oneshot(request).await.unwrap()
        };
        let whole = |text: &'static str| Full::from(text).map_err(Into::into).boxed_unsync();
        let first = ask("a", whole(r#"{"model":"m","messages":[]}"#)).await;
        assert_eq!(first.status(), 200);
        drop(first.into_body().collect().await.unwrap());

        let refused = ask("b", Unread.boxed_unsync()).await;
        assert_eq!(refused.status(), 422, "{caps:?}");
        assert_eq!(upstream.calls(), 1);
        assert_eq!(registry.list().len(), 1, "no trace of it is left");

        // A stop phrase is read and answered, also at the cap.
        if phrases != [""] {
            let stop = r#"{"model":"m","messages":[{"role":"user","content":"/stop"}]}"#;
            let request = with_header(prompt("a"), "x-session-id", "s");
            let answer = stack.clone().oneshot(request.map(|_| whole(stop))).await;
            assert_eq!(answer.unwrap().status(), 200);
        }
    }
}

/// The caps of an earlier configuration: a reload has dropped them.
#[tokio::test(start_paused = true)]
async fn observers_hear_at_once_of_a_run_that_no_cap_concerns_any_more() {
    let registry = RunRegistry::new();
    drop(OwnerCapLayer::new(
        registry.clone(),
        OwnerCaps::new().turns_per_hour(3),
    ));
    let mut events = registry.subscribe();
    let upstream = Upstream::script(Script::before_head().never());
    let service = AgentStack::server(&registry).service(upstream);

    let mut call = Box::pin(service.oneshot(prompt("a")));
    assert!(poll_once(&mut call).is_pending());

    let first = events.next().await.unwrap();
    assert!(
        matches!(
            first,
            RunEvent::Notice {
                notice: RunNotice::Opened,
                ..
            }
        ),
        "{first:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn of_forty_thousand_refused_ids_no_entry_is_left() {
    let (service, _, registry) = capped(OwnerCaps::new().max_open_runs(1));
    service.ask(of("x", Some("a"))).await.whole();
    let capped = registry.open(tower_agent::Owner::default(), "capped".parse().unwrap());
    capped.end(TerminalReason::TurnCap);
    drop(capped);
    let mut events = registry.subscribe();
    for number in 0..40_000 {
        let request = of("x", Some(&format!("new-{number}")));
        let request = with_header(request, "x-session-id", "s");
        assert_refused(&service.ask(request).await, "1 open runs");
    }

    assert_eq!(registry.list().len(), 2, "no tombstone had to go");
    assert!(registry.find_session("s").is_empty());
    service.ask(of("y", Some("b"))).await.whole();
    let first = events.next().await.unwrap();
    assert!(
        matches!(&first, RunEvent::Notice { run, notice: RunNotice::Opened, .. } if run.to_string() == "b"),
        "no event tells of a refused run: {first:?}"
    );
}

/// Observers hear of a run before they hear more of it, also where no cap is asked.
#[tokio::test(start_paused = true)]
async fn observers_are_told_of_a_run_that_no_cap_has_admitted() {
    let (capped, upstream, registry) = capped(OwnerCaps::new().max_open_runs(1));
    let uncapped = StackService::new(RunLayer::new(registry.clone()).layer(upstream));
    let mut events = registry.subscribe();
    uncapped.ask(of("x", Some("a"))).await.whole();
    registry.find(&"a".parse().unwrap())[0].end(TerminalReason::Aborted);

    let opened = events.next().await.unwrap();
    assert!(matches!(
        opened,
        RunEvent::Notice {
            notice: RunNotice::Opened,
            sequence: 1,
            ..
        }
    ));
    let ended = events.next().await.unwrap();
    assert!(matches!(ended, RunEvent::Ended { sequence: 2, .. }));
    capped.ask(of("x", Some("b"))).await.whole();
}

#[tokio::test(start_paused = true)]
async fn a_capped_run_is_not_washed_out_by_deadlines_that_callers_announce() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::before_head().never());
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()))
        .layer(tower_agent::HardCeilingLayer::optional(None).caller_deadline(true))
        .service(upstream);
    let capped = registry.open(tower_agent::Owner::default(), "capped".parse().unwrap());
    capped.end(TerminalReason::TurnCap);
    drop(capped);
    for _ in 0..=RunRegistry::ENDED {
        let request = with_header(of("x", None), "grpc-timeout", "1u");
        let _ended = Outcome::of(service.clone().oneshot(request)).await;
    }
    let found = registry.find(&"capped".parse().unwrap());
    assert_eq!(found.len(), 1, "a tombstone stays");
}

#[tokio::test(start_paused = true)]
async fn a_run_in_the_place_of_another_counts_as_that_did() {
    let (service, _, registry) = capped(OwnerCaps::new().max_open_runs(1));
    service.ask(of("x", Some("a"))).await.whole();
    let owner = tower_agent::Owner::of(b"x");
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    let second = registry.supersede(owner, &a, b).unwrap();
    assert_refused(&service.ask(of("x", Some("c"))).await, "1 open runs");

    second.end(TerminalReason::Aborted);
    let again = registry.reopen(owner, &a).unwrap();
    assert_refused(&service.ask(of("x", Some("c"))).await, "1 open runs");
    again.end(TerminalReason::Aborted);
    service.ask(of("x", Some("c"))).await.whole();
}

/// Who is told that it is shut down tries elsewhere, where there may be room.
/// covers: C10
#[tokio::test(start_paused = true)]
async fn of_a_registry_that_is_shut_down_a_caller_at_his_cap_is_told_that() {
    let caps = OwnerCaps::new().max_open_runs(1).turns_per_hour(1);
    for phrases in [&[][..], &["/stop"]] {
        let upstream = Upstream::script(Script::json().data("{}"));
        let registry = RunRegistry::new();
        let stack = Stack::default()
            .layer(Place::Run, RunLayer::new(registry.clone()))
            .layer(
                Place::StopPhrase,
                StopPhraseLayer::new(registry.clone(), phrases),
            )
            .layer(Place::OwnerCap, OwnerCapLayer::new(registry.clone(), caps));
        let service = stack.build(&upstream);
        service.ask(of("x", Some("a"))).await.whole();
        let a = &registry.find(&"a".parse().unwrap())[0];
        // One that is under way, so that the cap is still reached.
        let working = a.attach(request());
        let _drain = registry.drain(secs(60));
        assert_eq!(a.terminal_reason(), None);

        for id in [Some("a"), Some("b"), None] {
            let late = with_header(of("x", id), "x-session-id", "s");
            let outcome = service.ask(late).await;
            assert_eq!(outcome.status, Outcome::NO_ANSWER);
            assert_eq!(
                outcome.terminated().reason,
                TerminalReason::Shutdown,
                "{id:?}"
            );
        }

        assert_eq!(upstream.calls(), 1);
        drop(working);
    }
}
