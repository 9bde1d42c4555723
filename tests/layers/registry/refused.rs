//! Runs of which nothing but refused requests was ever heard.
//!
//! covers: T85

use std::{io, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use tokio::{task::yield_now, time::sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_agent::{BoxError, Owner, RunLayer, RunRegistry, TerminalReason, error::InvalidRequest};

use super::id;
use crate::support::{
    Outcome, Stack, StackService, Upload, Upstream, failure, healthy, no_delay, with_header,
};

const GOOD: &str = r#"{"model":"m","messages":[]}"#;
const BAD: &str = r#"{"model":"#;

/// The layers of a server, with a pump.
fn stack(registry: &RunRegistry, upstream: &Upstream) -> StackService {
    let stack = Stack::default().terminal().run(registry).pump();
    stack.candidates(["m"]).budget(no_delay()).build(upstream)
}

fn named(name: &str, body: Upload) -> Request<Upload> {
    let request = Request::post("/v1/chat/completions");
    with_header(request.body(body).unwrap(), "x-run-id", name)
}

fn text(text: &'static str) -> Upload {
    Full::from(text).map_err(Into::into).boxed_unsync()
}

/// The text after so many seconds.
fn late(seconds: u64, text: &'static str) -> Upload {
    let frame = async move {
        sleep(Duration::from_secs(seconds)).await;
        Ok(Frame::data(Bytes::from(text)))
    };
    StreamBody::new(stream::once(frame)).boxed_unsync()
}

fn broken() -> Upload {
    let error = || Err::<Frame<Bytes>, BoxError>(io::Error::other("gone").into());
    StreamBody::new(stream::once(async move { error() })).boxed_unsync()
}

fn too_large() -> Upload {
    Limited::new(Full::from(GOOD), 4).boxed_unsync()
}

/// Lets what was spawned come to its end.
async fn settled() {
    sleep(Duration::from_millis(1)).await;
}

fn reason(registry: &RunRegistry, name: &str) -> Option<TerminalReason> {
    let run = registry.get(Owner::anonymous(), &id(name)).unwrap();
    run.terminal_reason()
}

#[tokio::test(start_paused = true)]
async fn refused_requests_with_new_ids_leave_no_run_open() {
    let (registry, upstream) = (RunRegistry::new(), Upstream::script(healthy()));
    let stack = stack(&registry, &upstream);
    let refused: [(fn() -> Upload, u16); 3] =
        [(|| text(BAD), 400), (broken, 400), (too_large, 413)];
    for number in 0..300 {
        let (body, expected) = refused[number % refused.len()];
        let request = named(&format!("r-{number}"), body());
        let outcome = stack.ask(request).await;
        assert_eq!(outcome.status, expected);
    }
    settled().await;

    assert_eq!(registry.open_runs(), 0);
    assert_eq!(reason(&registry, "r-0"), Some(TerminalReason::Completed));
    assert_eq!(upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn callers_who_leave_in_the_middle_of_an_upload_leave_no_run_open() {
    let (registry, upstream) = (RunRegistry::new(), Upstream::script(healthy()));
    let stack = stack(&registry, &upstream);
    for number in 0..300 {
        let request = named(&format!("r-{number}"), late(60, GOOD));
        let call = tokio::time::timeout(Duration::from_millis(1), stack.ask(request));
        assert!(call.await.is_err(), "it is not read yet");
    }
    settled().await;

    assert_eq!((registry.open_runs(), upstream.calls()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_next_request_with_the_id_opens_it_anew_and_then_it_stays() {
    let upstream = Upstream::scripts([healthy(), failure(400)]);
    let registry = RunRegistry::new();
    let stack = stack(&registry, &upstream);
    for (body, expected) in [(BAD, 400), (GOOD, 200), (BAD, 400), (GOOD, 400)] {
        let outcome = stack.ask(named("r", text(body))).await;
        assert_eq!(outcome.status, expected);
        settled().await;
    }
    let run = registry.get(Owner::anonymous(), &id("r")).unwrap();
    assert_eq!(run.terminal_reason(), None, "it was worked on");
    assert_eq!(run.snapshot().generation, 2);
    assert_eq!(upstream.calls(), 2);
}

/// The budgets of a run count these, and have to find it.
#[tokio::test(start_paused = true)]
async fn a_call_that_an_upstream_refused_keeps_its_run() {
    let registry = RunRegistry::new();
    let stack = stack(&registry, &Upstream::script(failure(400)));
    let outcome = stack.ask(named("r", text(GOOD))).await;
    assert_eq!(outcome.status, 400);
    settled().await;
    assert_eq!(reason(&registry, "r"), None);
}

/// Of two requests that have a new id at the same time, each may end first.
#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_end_what_another_request_of_the_id_does() {
    for (good, bad) in [(1, 2), (2, 1), (1, 1)] {
        let registry = RunRegistry::new();
        let stack = stack(&registry, &Upstream::script(healthy()));
        let served = stack.ask(named("r", late(good, GOOD)));
        let refused = stack.ask(named("r", late(bad, BAD)));

        let (refused, served) = tokio::join!(refused, served);
        assert_eq!((served.status, refused.status), (200, 400));
        settled().await;

        let run = registry.get(Owner::anonymous(), &id("r")).unwrap();
        assert_eq!(run.terminal_reason(), None, "{good} {bad}");
        assert_eq!(run.snapshot().generation, 1, "{good} {bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_of_several_refusals_completes_the_run() {
    let registry = RunRegistry::new();
    let stack = stack(&registry, &Upstream::script(healthy()));
    let calls = [1, 2, 2].map(|at| stack.ask(named("r", late(at, BAD))));
    let [first, second, third] = calls;
    let others = tokio::spawn(futures_util::future::join(second, third));
    assert_eq!(first.await.status, 400);
    settled().await;
    assert_eq!(reason(&registry, "r"), None, "others are under way");
    let (second, third) = others.await.unwrap();
    assert_eq!((second.status, third.status), (400, 400));
    settled().await;
    assert_eq!(reason(&registry, "r"), Some(TerminalReason::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_the_program_has_is_the_programs_to_end() {
    for opened_before in [true, false] {
        let registry = RunRegistry::new();
        let stack = stack(&registry, &Upstream::script(healthy()));
        let us = Owner::anonymous();
        if opened_before {
            let _run = registry.open(us, id("r"));
        }
        let refused = tokio::spawn(stack.ask(named("r", late(1, BAD))));
        yield_now().await;
        let run = registry.open(us, id("r"));
        assert_ne!(refused.await.unwrap().status, Outcome::NO_ANSWER);
        settled().await;
        assert_eq!(run.terminal_reason(), None, "{opened_before}");
    }
}

/// Where no layer makes attempts the service says itself what it refuses.
#[tokio::test(start_paused = true)]
async fn a_service_that_refuses_without_attempts_leaves_no_run_open() {
    let registry = RunRegistry::new();
    let service = service_fn(|request: Request<()>| async move {
        if request.uri() == "/served" {
            return Ok(http::Response::new(Full::<Bytes>::default()));
        }
        let refused: BoxError = match request.uri().path() {
            "/refused" => InvalidRequest::new("no").into(),
            _ => "broken".into(),
        };
        Err(refused)
    });
    for (path, expected) in [
        ("/refused", Some(TerminalReason::Completed)),
        ("/broken", None),
        ("/served", None),
    ] {
        let layer = RunLayer::new(registry.clone()).id_by(|parts| {
            let path = parts.uri.path();
            Some(path.trim_start_matches('/').to_owned())
        });
        let request = Request::get(path).body(()).unwrap();
        drop(layer.layer(service).oneshot(request).await);
        assert_eq!(reason(&registry, &path[1..]), expected, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_that_race_for_a_new_id_leave_the_one_that_is_served_its_run() {
    let registry = RunRegistry::new();
    let stack = stack(&registry, &Upstream::script(healthy()));
    for number in 0..500 {
        let name = format!("r-{number}");
        let ask = |body| tokio::spawn(stack.ask(named(&name, text(body))));
        let [bad, good, worse] = [ask(BAD), ask(GOOD), ask(BAD)];
        assert_eq!(good.await.unwrap().status, 200);
        for refused in [bad, worse] {
            assert_eq!(refused.await.unwrap().status, 400);
        }
        assert_eq!(reason(&registry, &name), None, "{name}");
    }
}
