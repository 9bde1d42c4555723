//! What the runs of one caller may come to together.

use http::{Request, Response};
use tokio::time::advance;
use tower::{Layer, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, NodeKind, OwnerCaps, Run, RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason,
    TerminalResponseLayer, Terminated,
};

use crate::support::{Outcome, ReadExt, Script, Upstream, request, secs};

type Body = tower_agent::run_layer::RunBody<crate::support::UpstreamBody>;
type Service = BoxCloneService<Request<()>, Response<Body>, BoxError>;

fn capped(caps: OwnerCaps) -> (Service, Upstream, RunRegistry) {
    let upstream = Upstream::script(Script::json().data("{}"));
    let registry = RunRegistry::new();
    let layer = RunLayer::new(registry.clone()).owner_caps(caps);
    (
        layer.layer(upstream.clone()).boxed_clone(),
        upstream,
        registry,
    )
}

fn of(key: &str, id: Option<&str>) -> Request<()> {
    let mut request = request();
    let headers = request.headers_mut();
    headers.insert("authorization", key.parse().unwrap());
    if let Some(id) = id {
        headers.insert("x-run-id", id.parse().unwrap());
    }
    request
}

/// Asks, and reads all of it.
async fn ask(service: &Service, request: Request<()>) -> Result<(), Terminated> {
    match service.clone().oneshot(request).await {
        Ok(answer) => answer.into_body().read().await.end.unwrap(),
        Err(error) => return Err(Terminated::find(&*error).unwrap().clone()),
    }
    Ok(())
}

fn assert_refused(result: Result<(), Terminated>, why: &str) -> Terminated {
    let end = result.unwrap_err();
    assert_eq!(
        (&end.reason, end.at_turn()),
        (&TerminalReason::TurnCap, None)
    );
    assert!(end.message().contains(why), "{}", end.message());
    end
}

#[tokio::test(start_paused = true)]
async fn more_open_runs_than_allowed_are_refused_and_leave_no_trace() {
    let (service, probe, registry) = capped(OwnerCaps::new().max_open_runs(2));
    for id in ["a", "b"] {
        ask(&service, of("x", Some(id))).await.unwrap();
    }
    for number in 0..50 {
        let id = format!("new-{number}");
        let end = ask(&service, of("x", Some(&id))).await;
        let end = assert_refused(end, "2 open runs");
        assert_eq!((end.run.to_string(), end.kind), (id, NodeKind::Run));
    }
    assert_refused(ask(&service, of("x", None)).await, "2 open runs");
    assert_eq!((probe.calls(), registry.list().len()), (2, 2));

    ask(&service, of("x", Some("a"))).await.unwrap();
    ask(&service, of("y", Some("c"))).await.unwrap();
    // One of them ends, and there is room for another.
    registry.find(&"a".parse().unwrap())[0].end(TerminalReason::Aborted);
    ask(&service, of("x", Some("d"))).await.unwrap();
    assert_refused(ask(&service, of("x", Some("e"))).await, "2 open runs");
    let end = ask(&service, of("x", Some("a"))).await.unwrap_err();
    assert_eq!(
        end.reason,
        TerminalReason::Aborted,
        "a tombstone says what it was"
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_id_is_open_as_long_as_it_is_answered() {
    let (service, _, _) = capped(OwnerCaps::new().max_open_runs(1));
    for _ in 0..20 {
        ask(&service, of("x", None)).await.unwrap();
    }
    let answer = service.clone().oneshot(of("x", None)).await.unwrap();
    assert_refused(ask(&service, of("x", None)).await, "1 open runs");
    drop(answer);
    ask(&service, of("x", None)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn more_turns_in_an_hour_than_allowed_are_refused_whatever_their_id() {
    let (service, probe, registry) = capped(OwnerCaps::new().turns_per_hour(3));
    // Late in a minute, and so given back late as well.
    advance(secs(59)).await;
    for id in [Some("a"), Some("b"), None] {
        ask(&service, of("x", id)).await.unwrap();
    }
    let remembered = registry.list().len();
    for id in [Some("a"), Some("c"), None] {
        let end = assert_refused(ask(&service, of("x", id)).await, "3 turns within an hour");
        let kind = if id == Some("a") {
            NodeKind::Call
        } else {
            NodeKind::Run
        };
        assert_eq!(end.kind, kind);
    }
    assert_eq!((probe.calls(), registry.list().len()), (3, remembered));
    let run = registry.find(&"a".parse().unwrap())[0].clone();
    assert_eq!(
        (run.terminal_reason(), run.in_flight()),
        (None, 0),
        "it lives on"
    );
    ask(&service, of("y", Some("a"))).await.unwrap();

    advance(secs(3599)).await;
    assert_refused(ask(&service, of("x", None)).await, "3 turns");
    advance(secs(61)).await;
    for id in [Some("c"), None, Some("d")] {
        ask(&service, of("x", id)).await.unwrap();
    }
    assert_refused(ask(&service, of("x", None)).await, "3 turns");
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
        ask(&service, embeddings()).await.unwrap();
    }
    registry.find(&"a".parse().unwrap())[0].end(TerminalReason::Aborted);
    for _ in 0..10 {
        let end = ask(&service, of("x", Some("a"))).await.unwrap_err();
        assert_eq!(end.reason, TerminalReason::Aborted);
    }
    ask(&service, of("x", None)).await.unwrap();
    ask(&service, of("x", Some("b"))).await.unwrap();
    assert_refused(ask(&service, of("x", Some("b"))).await, "2 turns");
}

#[tokio::test(start_paused = true)]
async fn an_id_whose_run_has_completed_is_one_of_a_new_run() {
    let (service, _, _) = capped(OwnerCaps::new().max_open_runs(1));
    ask(&service, of("x", Some("a"))).await.unwrap();
    advance(RunRegistry::IDLE).await;
    ask(&service, of("x", Some("b"))).await.unwrap();

    assert_refused(ask(&service, of("x", Some("a"))).await, "1 open runs");
    assert_refused(ask(&service, of("x", Some("c"))).await, "1 open runs");
    ask(&service, of("x", Some("b"))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_is_one_caller_however_it_is_written() {
    let (service, probe, _) = capped(OwnerCaps::new().turns_per_hour(4));
    for key in ["Bearer key", "bearer key", "BEARER \t key ", "key"] {
        ask(&service, of(key, None)).await.unwrap();
    }
    for key in ["beaReR  key", "Token key"] {
        assert_refused(ask(&service, of(key, None)).await, "4 turns");
    }
    for header in ["x-api-key", "api-key", "x-goog-api-key"] {
        let mut request = request();
        request.headers_mut().insert(header, "key".parse().unwrap());
        assert_refused(ask(&service, request).await, "4 turns");
    }
    assert_eq!(probe.calls(), 4);
    ask(&service, of("Bearer another key", None)).await.unwrap();
    ask(&service, of("Bearer other", None)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_that_the_program_attached_pass() {
    let (service, probe, _) = capped(OwnerCaps::new().max_open_runs(1).turns_per_hour(1));
    ask(&service, of("x", Some("a"))).await.unwrap();
    let run = Run::open();
    for _ in 0..5 {
        ask(&service, run.attach(of("x", Some("b")))).await.unwrap();
    }
    assert_eq!(probe.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_a_layer_further_out_opened_is_one_of_the_callers() {
    let (service, probe, registry) = capped(OwnerCaps::new().max_open_runs(1));
    ask(&service, of("x", Some("a"))).await.unwrap();
    let service = StepTimeoutLayer::new(secs(10)).layer(service);
    for id in [Some("b"), None] {
        let error = service.clone().oneshot(of("x", id)).await.unwrap_err();
        let end = Terminated::find(&*error).unwrap().clone();
        assert_refused(Err(end), "1 open runs");
    }
    assert_eq!((probe.calls(), registry.list().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_told_422_and_not_to_try_again() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let caps = OwnerCaps::new().max_open_runs(1);
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(RunRegistry::new()).owner_caps(caps))
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
                    runtime()
                        .block_on(ask(&service, of("x", Some("a"))))
                        .is_ok()
                })
            });
            for thread in threads {
                assert!(thread.join().unwrap());
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_capped_run_is_not_washed_out_by_deadlines_that_callers_announce() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::before_head().never());
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()))
        .layer(tower_agent::HardCeilingLayer::optional(None).caller_deadline(true))
        .service(upstream)
        .boxed_clone();
    let capped = registry.open(tower_agent::Owner::default(), "capped".parse().unwrap());
    capped.end(TerminalReason::TurnCap);
    drop(capped);
    for _ in 0..=RunRegistry::ENDED {
        let mut request = of("x", None);
        let headers = request.headers_mut();
        headers.insert("grpc-timeout", "1u".parse().unwrap());
        let answer = service.clone().oneshot(request).await;
        if let Ok(answer) = answer {
            let _ended = answer.into_body().read().await;
        }
    }
    let found = registry.find(&"capped".parse().unwrap());
    assert_eq!(found.len(), 1, "a tombstone stays");
}

#[tokio::test(start_paused = true)]
async fn a_run_in_the_place_of_another_counts_as_that_did() {
    let (service, _, registry) = capped(OwnerCaps::new().max_open_runs(1));
    ask(&service, of("x", Some("a"))).await.unwrap();
    let owner = tower_agent::Owner::of(b"x");
    let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
    let second = registry.supersede(owner, &a, b).unwrap();
    assert_refused(ask(&service, of("x", Some("c"))).await, "1 open runs");

    second.end(TerminalReason::Aborted);
    let again = registry.reopen(owner, &a).unwrap();
    assert_refused(ask(&service, of("x", Some("c"))).await, "1 open runs");
    again.end(TerminalReason::Aborted);
    ask(&service, of("x", Some("c"))).await.unwrap();
}

/// Who is told that it is shut down tries elsewhere, where there may be room.
#[tokio::test(start_paused = true)]
async fn of_a_registry_that_is_shut_down_a_caller_at_his_cap_is_told_that() {
    let caps = OwnerCaps::new().max_open_runs(1).turns_per_hour(1);
    for hears in [false, true] {
        let upstream = Upstream::script(Script::json().data("{}"));
        let registry = RunRegistry::new();
        let layer = RunLayer::new(registry.clone()).owner_caps(caps);
        let layer = if hears { layer.hears_stop() } else { layer };
        let service = layer.layer(upstream.clone()).boxed_clone();
        ask(&service, of("x", Some("a"))).await.unwrap();
        let a = &registry.find(&"a".parse().unwrap())[0];
        // One that is under way, so that the cap is still reached.
        let working = a.attach(request());
        let _drain = registry.drain(secs(60));
        assert_eq!(a.terminal_reason(), None);

        for id in [Some("a"), Some("b"), None] {
            let mut late = of("x", id);
            let session = "s".parse().unwrap();
            late.headers_mut().insert("x-session-id", session);
            let end = ask(&service, late).await.unwrap_err();
            assert_eq!(end.reason, TerminalReason::Shutdown, "{id:?}");
        }

        assert_eq!(upstream.calls(), 1);
        drop(working);
    }
}
