//! A ceiling around a step window, as one layer.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, timeout};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, Limits, Run, RunEvent, RunNotice, Scope, StepTimeoutLayer,
    TerminalReason, TimeLimitsLayer,
};

use crate::support::{DONE, FINISH, PING, Script, Upstream, call_of, chat, secs, with_header};

/// What became of a call: its reason and that of its run, when it ended, and what observers heard.
type Told = ([Option<TerminalReason>; 2], Duration, Vec<RunNotice>);

async fn told<S, B>(service: S, limits: Option<Limits>) -> Told
where
    S: Service<Request<()>, Response = Response<B>, Error = BoxError>,
    B: Body<Data = Bytes, Error = BoxError>,
{
    let run = Run::open();
    let mut events = run.subscribe();
    let (request, call) = call_of(&run);
    let mut request = with_header(request, "x-stainless-read-timeout", "20");
    if let Some(limits) = limits {
        request.extensions_mut().insert(limits);
    }
    let start = Instant::now();
    if let Ok(answer) = service.oneshot(request).await {
        let _read = answer.into_body().collect().await;
    }
    let took = start.elapsed();
    let reasons = [&call, &run].map(Run::terminal_reason);
    run.end(TerminalReason::Aborted);
    let mut notices = Vec::new();
    while let Some(RunEvent::Notice { notice, .. }) = events.next().await {
        notices.push(notice);
    }
    (reasons, took, notices)
}

fn ceilings() -> Vec<HardCeilingLayer> {
    let ceiling = HardCeilingLayer::new(secs(40));
    vec![
        HardCeilingLayer::optional(None),
        ceiling,
        ceiling.scope(Scope::Run),
        ceiling.observe(),
        ceiling.caller_deadline(true),
        HardCeilingLayer::optional(None).caller_deadline(true),
        HardCeilingLayer::optional(None).timeout(Some(secs(30))),
    ]
}

fn steps() -> Vec<StepTimeoutLayer> {
    let step = StepTimeoutLayer::new(secs(30));
    vec![
        StepTimeoutLayer::optional(None),
        step,
        step.first(secs(10)),
        step.scope(Scope::Run),
        step.observe(),
        step.min_tokens_per_second(8.0, secs(8)),
        StepTimeoutLayer::local(),
    ]
}

fn scripts() -> Vec<Script> {
    let said = || Script::sse().data(chat("a"));
    vec![
        Script::before_head().never(),
        said().never(),
        said().data(DONE),
        said().data(FINISH).never(),
        said().repeat(12, 1.0, chat("a")).data(DONE),
        said().repeat(30, 5.0, chat("a")).data(DONE),
        said().repeat(30, 5.0, PING).data(DONE),
        said().repeat(2, 25.0, chat("a")).data(DONE),
        said().fail("reset"),
    ]
}

/// covers: A1, A3
#[tokio::test(start_paused = true)]
async fn one_layer_ends_a_call_as_the_two_do() {
    let of_request = Limits {
        step: Some(secs(15)),
        ceiling: Some(secs(25)),
        ..Limits::default()
    };
    let off = Limits {
        step: Some(Duration::ZERO),
        first: Some(Duration::ZERO),
        ceiling: Some(Duration::ZERO),
        ..Limits::default()
    };
    let mut ends = Vec::new();
    for limits in [None, Some(of_request), Some(off)] {
        for ceiling in ceilings() {
            for step in steps() {
                for (index, script) in scripts().into_iter().enumerate() {
                    let two = ServiceBuilder::new().layer(ceiling).layer(step);
                    let two = two.service(Upstream::script(script.clone()));
                    let one = TimeLimitsLayer::new(ceiling, step);
                    let one = one.layer(Upstream::script(script));
                    let two = timeout(secs(600), told(two, limits)).await.ok();
                    let one = timeout(secs(600), told(one, limits)).await.ok();
                    assert_eq!(one, two, "{ceiling:?} {step:?} {limits:?} script {index}");
                    ends.extend(one.and_then(|it| it.0[0].clone()));
                }
            }
        }
    }
    for reason in [
        TerminalReason::HardCeiling,
        TerminalReason::CallerDeadline,
        TerminalReason::StepTimeout,
        TerminalReason::Slow,
        TerminalReason::Completed,
    ] {
        assert!(ends.contains(&reason), "no call ended as {reason:?}");
    }
}

#[tokio::test]
async fn a_layer_without_limits_passes_each_call_on() {
    let ceiling = HardCeilingLayer::optional(None);
    let layer = TimeLimitsLayer::new(ceiling, StepTimeoutLayer::optional(None));
    let service = layer.layer(service_fn(|request: Request<()>| async move {
        assert!(
            request.extensions().get::<Run>().is_none(),
            "no run was opened"
        );
        Ok::<_, BoxError>(Response::new(Full::<Bytes>::from("hi")))
    }));

    let answer = service.oneshot(Request::new(())).await.unwrap();

    assert!(answer.extensions().get::<Run>().is_none());
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hi");
}
