//! Runs of which nothing but refused requests was ever heard.

use std::{convert::Infallible, io, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, Request, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, Limited, StreamBody, combinators::UnsyncBoxBody};
use tokio::{task::yield_now, time::sleep};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};
use tower_agent::{
    BoxError, Candidate, ModelFallbackLayer, Owner, PumpLayer, RetryBudgetLayer, RunLayer,
    RunRegistry, TerminalReason, TerminalResponseLayer, terminal_response::InvalidRequest,
};

use super::id;
use crate::support::{Upstream, failure, healthy, no_delay};

type Bytestream = UnsyncBoxBody<Bytes, BoxError>;
type Stack = BoxCloneService<Request<Bytestream>, StatusCode, Infallible>;

const GOOD: &str = r#"{"model":"m","messages":[]}"#;
const BAD: &str = r#"{"model":"#;

/// What a server has, with a pump; it answers the status once the body was read.
fn stack(registry: &RunRegistry, upstream: Upstream) -> Stack {
    let stack = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(registry.clone()))
        .layer(PumpLayer::new(4))
        .layer(ModelFallbackLayer::new([Candidate::new("m")]))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream);
    BoxCloneService::new(ServiceExt::<Request<Bytestream>>::and_then(stack, status))
}

async fn status<B: Body>(answer: http::Response<B>) -> Result<StatusCode, Infallible> {
    let (head, body) = answer.into_parts();
    drop(body.collect().await);
    Ok(head.status)
}

fn named(name: &str, body: Bytestream) -> Request<Bytestream> {
    let mut request = Request::post("/v1/chat/completions").body(body).unwrap();
    let value = HeaderValue::from_str(name).unwrap();
    request.headers_mut().insert("x-run-id", value);
    request
}

fn text(text: &'static str) -> Bytestream {
    Full::from(text).map_err(Into::into).boxed_unsync()
}

/// The text after so many seconds.
fn late(seconds: u64, text: &'static str) -> Bytestream {
    let frame = async move {
        sleep(Duration::from_secs(seconds)).await;
        Ok(Frame::data(Bytes::from(text)))
    };
    StreamBody::new(stream::once(frame)).boxed_unsync()
}

fn broken() -> Bytestream {
    let error = || Err::<Frame<Bytes>, BoxError>(io::Error::other("gone").into());
    StreamBody::new(stream::once(async move { error() })).boxed_unsync()
}

fn too_large() -> Bytestream {
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
    let (registry, upstream) = (RunRegistry::new(), Upstream::scripts([healthy()]));
    let stack = stack(&registry, upstream.clone());
    let refused: [(fn() -> Bytestream, u16); 3] =
        [(|| text(BAD), 400), (broken, 400), (too_large, 413)];
    for number in 0..300 {
        let (body, expected) = refused[number % refused.len()];
        let request = named(&format!("r-{number}"), body());
        let Ok(status) = stack.clone().oneshot(request).await;
        assert_eq!(status, expected);
    }
    settled().await;

    assert_eq!(registry.open_runs(), 0);
    assert_eq!(reason(&registry, "r-0"), Some(TerminalReason::Completed));
    assert_eq!(upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn callers_who_leave_in_the_middle_of_an_upload_leave_no_run_open() {
    let (registry, upstream) = (RunRegistry::new(), Upstream::scripts([healthy()]));
    let stack = stack(&registry, upstream.clone());
    for number in 0..300 {
        let request = named(&format!("r-{number}"), late(60, GOOD));
        let call = tokio::time::timeout(Duration::from_millis(1), stack.clone().oneshot(request));
        assert!(call.await.is_err(), "it is not read yet");
    }
    settled().await;

    assert_eq!((registry.open_runs(), upstream.calls()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_next_request_with_the_id_opens_it_anew_and_then_it_stays() {
    let upstream = Upstream::scripts([healthy(), failure(400)]);
    let registry = RunRegistry::new();
    let stack = stack(&registry, upstream.clone());
    for (body, expected) in [(BAD, 400), (GOOD, 200), (BAD, 400), (GOOD, 400)] {
        let Ok(status) = stack.clone().oneshot(named("r", text(body))).await;
        assert_eq!(status, expected);
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
    let stack = stack(&registry, Upstream::scripts([failure(400)]));
    let Ok(status) = stack.oneshot(named("r", text(GOOD))).await;
    assert_eq!(status, 400);
    settled().await;
    assert_eq!(reason(&registry, "r"), None);
}

/// Of two requests that have a new id at the same time, each may end first.
#[tokio::test(start_paused = true)]
async fn a_refusal_does_not_end_what_another_request_of_the_id_does() {
    for (good, bad) in [(1, 2), (2, 1), (1, 1)] {
        let registry = RunRegistry::new();
        let stack = stack(&registry, Upstream::scripts([healthy()]));
        let served = stack.clone().oneshot(named("r", late(good, GOOD)));
        let refused = stack.oneshot(named("r", late(bad, BAD)));

        let (refused, served) = tokio::join!(refused, served);
        assert_eq!(
            (served, refused),
            (Ok(StatusCode::OK), Ok(StatusCode::BAD_REQUEST))
        );
        settled().await;

        let run = registry.get(Owner::anonymous(), &id("r")).unwrap();
        assert_eq!(run.terminal_reason(), None, "{good} {bad}");
        assert_eq!(run.snapshot().generation, 1, "{good} {bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_of_several_refusals_completes_the_run() {
    let registry = RunRegistry::new();
    let stack = stack(&registry, Upstream::scripts([healthy()]));
    let calls = [1, 2, 2].map(|at| stack.clone().oneshot(named("r", late(at, BAD))));
    let [first, second, third] = calls;
    let others = tokio::spawn(futures_util::future::join(second, third));
    assert_eq!(first.await, Ok(StatusCode::BAD_REQUEST));
    settled().await;
    assert_eq!(reason(&registry, "r"), None, "others are under way");
    let refused = Ok(StatusCode::BAD_REQUEST);
    assert_eq!(others.await.unwrap(), (refused, refused));
    settled().await;
    assert_eq!(reason(&registry, "r"), Some(TerminalReason::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_the_program_has_is_the_programs_to_end() {
    for opened_before in [true, false] {
        let registry = RunRegistry::new();
        let stack = stack(&registry, Upstream::scripts([healthy()]));
        let us = Owner::anonymous();
        if opened_before {
            let _run = registry.open(us, id("r"));
        }
        let refused = tokio::spawn(stack.oneshot(named("r", late(1, BAD))));
        yield_now().await;
        let run = registry.open(us, id("r"));
        refused.await.unwrap().unwrap();
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
    let stack = stack(&registry, Upstream::scripts([healthy()]));
    for number in 0..500 {
        let name = format!("r-{number}");
        let ask = |body| {
            let asked = stack.clone().oneshot(named(&name, text(body)));
            tokio::spawn(asked)
        };
        let [bad, good, worse] = [ask(BAD), ask(GOOD), ask(BAD)];
        assert_eq!(good.await.unwrap(), Ok(StatusCode::OK));
        for refused in [bad, worse] {
            assert_eq!(refused.await.unwrap(), Ok(StatusCode::BAD_REQUEST));
        }
        assert_eq!(reason(&registry, &name), None, "{name}");
    }
}
