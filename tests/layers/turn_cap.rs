//! Runs that may have so many turns and no more.
//!
//! covers: D1

mod final_call;
mod in_progress;
mod what_counts;

use std::sync::Arc;

use http_body_util::BodyExt;
use tokio::{sync::Barrier, time::advance};
use tower::{Layer, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, HardCeilingLayer, Run, RunRegistry, Scope, TerminalReason, Terminated, ToolError,
    TurnCapLayer,
};

use crate::support::{
    Script, Stack, Upstream, call_of, prompt_json, reason_of, request, request_of, secs,
};

const CAPPED: Option<TerminalReason> = Some(TerminalReason::TurnCap);

fn upstream() -> Upstream {
    Upstream::script(Script::json().data("{\"choices\":[]}"))
}

/// One call of the run, read to its end.
async fn turn<S, B, C>(service: &S, request: http::Request<B>) -> Result<(), BoxError>
where
    S: tower::Service<http::Request<B>, Response = http::Response<C>, Error = BoxError> + Clone,
    C: http_body::Body<Data = bytes::Bytes, Error = BoxError>,
{
    let answer = service.clone().oneshot(request).await?;
    answer.into_body().collect().await.map(drop)
}

fn end_of(error: &BoxError) -> &Terminated {
    Terminated::find(&**error).unwrap()
}

/// covers: D5
#[tokio::test(start_paused = true)]
async fn so_many_turns_are_admitted_and_the_next_ends_the_run_unseen() {
    let upstream = upstream();
    let service = TurnCapLayer::new(3).layer(upstream.clone());
    let run = Run::open();
    for number in 1..=3 {
        turn(&service, run.attach(request())).await.unwrap();
        assert_eq!((run.turns(), run.terminal_reason()), (number, None));
    }
    advance(secs(190)).await;

    let (next, call) = call_of(&run);
    let error = turn(&service, next).await.unwrap_err();

    let end = end_of(&error);
    assert_eq!(
        (&end.reason, end.at_turn()),
        (&TerminalReason::TurnCap, Some(3))
    );
    let message = end.message();
    let told =
        "The run was stopped after 3m 10s: it reached its limit of 3 turns (turn_cap_reached)";
    assert!(message.starts_with(told), "{message}");
    assert_eq!(
        (run.terminal_reason(), call.terminal_reason()),
        (CAPPED, CAPPED)
    );
    assert_eq!((upstream.calls(), run.turns(), run.in_flight()), (3, 3, 0));
    assert_eq!((run.snapshot().turns, run.snapshot().reason), (3, CAPPED));
    let tool = run.tool("search").call(async { Ok::<_, &str>(()) }).await;
    assert!(matches!(tool, Err(ToolError::Terminated(end)) if end.at_turn() == Some(3)));
    // Not once more, and nothing is counted that was not admitted.
    turn(&service, run.attach(request())).await.unwrap_err();
    assert_eq!((upstream.calls(), run.turns()), (3, 3));
}

/// covers: D6
#[tokio::test(start_paused = true)]
async fn it_holds_across_the_requests_of_an_id_and_the_id_stays_ended() {
    let upstream = upstream();
    let stack = Stack::default()
        .terminal()
        .run(&RunRegistry::new())
        .turn_cap(2)
        .build(&upstream);
    let ask = |id: &'static str| {
        let mut request = request();
        request
            .headers_mut()
            .insert("x-run-id", id.parse().unwrap());
        // What a caller says of itself changes nothing.
        request
            .headers_mut()
            .insert("x-max-turns", "1000".parse().unwrap());
        stack.clone().oneshot(request)
    };
    for _ in 0..2 {
        let answer = ask("a").await.unwrap();
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap();
    }

    for _ in 0..3 {
        let answer = ask("a").await.unwrap();
        assert_eq!(answer.status(), 422);
        assert_eq!(answer.headers()["x-terminal-reason"], "turn_cap_reached");
        assert_eq!(answer.headers()["x-should-retry"], "false");
        assert_eq!(answer.headers()["x-run-id"], "a");
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.contains("its limit of 2 turns"), "{text}");
    }
    assert_eq!(upstream.calls(), 2);
    assert_eq!(ask("b").await.unwrap().status(), 200, "another run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_come_at_the_same_time_are_counted_exactly() {
    const CAP: u32 = 20;
    for final_call in [None, Some(secs(3600))] {
        let upstream = upstream();
        let mut layer = TurnCapLayer::new(CAP);
        if let Some(limit) = final_call {
            layer = layer.final_call(limit);
        }
        let service = layer.layer(upstream.clone());
        let run = Run::open();
        let start = Arc::new(Barrier::new(64));
        let calls: Vec<_> = (0..64)
            .map(|_| {
                let (service, run, start) = (service.clone(), run.clone(), Arc::clone(&start));
                tokio::spawn(async move {
                    start.wait().await;
                    turn(&service, run.attach(request())).await
                })
            })
            .collect();
        let mut refused = 0;
        for call in calls {
            refused += usize::from(call.await.unwrap().is_err());
        }
        assert_eq!(run.turns(), CAP);
        assert_eq!((upstream.calls(), refused), (20, 44), "nothing is cut");
        if final_call.is_some() {
            assert!(run.final_call(request()).is_some());
            assert_eq!(run.terminal_reason(), CAPPED, "its request was dropped");
        }
        assert_eq!(run.in_flight(), 0);
        assert_eq!(run.settled().await, TerminalReason::TurnCap);
    }
}

#[tokio::test(start_paused = true)]
async fn layers_of_one_stack_count_one_turn_and_compare_it_each() {
    for (outer, inner) in [(5, 2), (2, 5)] {
        let upstream = upstream();
        let service = ServiceBuilder::new()
            .layer(TurnCapLayer::new(outer))
            .layer(TurnCapLayer::new(inner))
            .service(upstream.clone());
        for bare in [true, false] {
            let run = Run::open();
            let next = || match bare {
                true => request_of(&run),
                false => run.attach(request()),
            };
            let before = upstream.calls();
            for number in 1..=2 {
                turn(&service, next()).await.unwrap();
                assert_eq!(run.turns(), number);
            }

            let error = turn(&service, next()).await.unwrap_err();

            assert_eq!(end_of(&error).at_turn(), Some(2), "{outer} around {inner}");
            assert_eq!((run.turns(), upstream.calls() - before), (2, 2));
            assert_eq!(run.terminal_reason(), CAPPED);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reason_that_is_stored_wins_and_is_not_counted() {
    let upstream = upstream();
    let service = TurnCapLayer::new(1).layer(upstream.clone());
    let run = Run::open();
    turn(&service, run.attach(request())).await.unwrap();
    run.end(TerminalReason::Aborted);

    let error = turn(&service, run.attach(request())).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert_eq!((run.turns(), upstream.calls()), (1, 1));
    assert!(end_of(&error).also.is_empty(), "the cap was not reached");
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_of_the_same_instant_wins_over_the_cap() {
    let upstream = upstream();
    let service = ServiceBuilder::new()
        .layer(TurnCapLayer::new(1))
        .layer(HardCeilingLayer::new(secs(60)).scope(Scope::Run))
        .service(upstream.clone());
    let run = Run::open();
    turn(&service, run.attach(request())).await.unwrap();
    // Put into its request before, so that no admission looks at the clock.
    let waiting = run.attach(request());
    advance(secs(60)).await;

    let error = turn(&service, waiting).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(end_of(&error).at_turn(), None);
    assert_eq!((run.turns(), upstream.calls()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_nobody_knows_is_a_run_of_one_turn() {
    let upstream = upstream();
    let service = TurnCapLayer::new(1).layer(upstream.clone());
    for _ in 0..3 {
        turn(&service, request()).await.unwrap();
        let run = upstream.run();
        assert_eq!(
            (run.turns(), run.terminal_reason()),
            (1, Some(TerminalReason::Completed))
        );
    }
}

#[test]
#[should_panic(expected = "at least one turn")]
fn no_turn_at_all_is_refused() {
    let _ = TurnCapLayer::new(0);
}

/// covers: T79
#[tokio::test(start_paused = true)]
async fn an_inert_layer_passes_everything_on_unchanged() {
    let upstream = upstream();
    let service: BoxCloneService<_, _, _> = TurnCapLayer::optional(None)
        .layer(upstream.clone())
        .boxed_clone();
    let run = Run::open();
    for _ in 0..50 {
        turn(&service, run.attach(prompt_json("m"))).await.unwrap();
    }
    assert_eq!(
        (upstream.calls(), run.turns(), run.terminal_reason()),
        (50, 0, None)
    );
}
