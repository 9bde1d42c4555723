//! A stack of named settings acts as the same layers stacked one by one, although it leaves out
//! those that are off.

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use tokio::time::{sleep, timeout};
use tower::{Service, ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_agent::{
    AgentStack, BoxError, ClientDisconnectLayer, HardCeilingLayer, LoopGuardLayer,
    ModelFallbackLayer, Owner, PumpLayer, RetryBudget, RetryBudgetLayer, RunId, RunLayer,
    RunRegistry, Scope, StepTimeoutLayer, StopPhraseLayer, TerminalResponseLayer, TurnCapLayer,
};

use crate::support::{
    FINISH, Outcome, PRELUDE, Script, Upload, Upstream, chat, failure, healthy, later, no_delay,
    prompt, secs, with_header,
};

type Stacked = BoxCloneService<Request<Upload>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;
type Build = fn(&RunRegistry, &RetryBudget, Upstream) -> Stacked;

fn boxed<S, B>(service: S) -> Stacked
where
    S: Service<Request<Upload>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    let service = service.map_response(|answer: Response<B>| answer.map(BodyExt::boxed_unsync));
    BoxCloneService::new(service.map_err(Into::into))
}

/// The layers one by one, those that are off among them.
fn by_hand(registry: &RunRegistry, budget: &RetryBudget, upstream: Upstream) -> Stacked {
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(registry.clone()).idle(secs(30)))
        .layer(PumpLayer::new())
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(secs(60)).scope(Scope::Run))
        .layer(StepTimeoutLayer::new(secs(30)).scope(Scope::Run))
        .layer(StopPhraseLayer::new(registry.clone(), [""; 0]))
        .layer(TurnCapLayer::new(3))
        .layer(LoopGuardLayer::off())
        .layer(ModelFallbackLayer::new([]).budget(budget.clone()))
        .layer(RetryBudgetLayer::new(budget.clone()))
        .layer(StepTimeoutLayer::new(secs(8)))
        .service(upstream);
    boxed(service)
}

fn by_name(registry: &RunRegistry, budget: &RetryBudget, upstream: Upstream) -> Stacked {
    let service = AgentStack::server(registry)
        .ceiling(secs(60))
        .run_step(secs(30))
        .max_turns(3)
        .retry(budget.clone())
        .step(secs(8))
        .service(upstream);
    boxed(service)
}

/// What a caller does beside its request.
#[derive(Clone, Copy, Debug)]
enum Caller {
    Reads,
    Leaves,
    Aborts,
    UploadsSlowly,
    NeverUploads,
    FailsToUpload,
    LeavesItsUpload,
}

impl Caller {
    const ALL: [Self; 7] = [
        Self::Reads,
        Self::Leaves,
        Self::Aborts,
        Self::UploadsSlowly,
        Self::NeverUploads,
        Self::FailsToUpload,
        Self::LeavesItsUpload,
    ];

    fn request(self) -> Request<Upload> {
        let request = with_header(prompt("a"), "x-run-id", "mine");
        request.map(|body| {
            let upload = stream::once(async move {
                match self {
                    Self::UploadsSlowly => sleep(secs(40)).await,
                    Self::NeverUploads | Self::LeavesItsUpload => std::future::pending().await,
                    Self::FailsToUpload => return Err("reset".into()),
                    _ => {}
                }
                Ok(Frame::data(body.collect().await.unwrap().to_bytes()))
            });
            StreamBody::new(upload).boxed_unsync()
        })
    }

    fn leaves(self) -> bool {
        matches!(self, Self::Leaves | Self::LeavesItsUpload)
    }
}

fn scripts() -> Vec<Vec<Script>> {
    let said = || Script::sse().data(PRELUDE).data(chat("a"));
    let error = "data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n";
    vec![
        vec![healthy()],
        vec![failure(503), failure(503), healthy()],
        vec![failure(401)],
        vec![failure(503)],
        vec![Script::sse().data(error), healthy()],
        vec![Script::before_head().never(), healthy()],
        vec![said().never()],
        vec![said().fail("reset")],
        vec![said().data(FINISH).wait(5.0)],
        vec![said().repeat(90, 1.0, chat("b"))],
        vec![healthy().header("keep-alive", "timeout=9")],
        vec![
            Script::json()
                .header("connection", "x-hop")
                .header("x-hop", "1"),
        ],
        vec![Script::of("text/plain").data("no model's answer")],
    ]
}

fn told(outcome: &Outcome) -> String {
    let headers = outcome.headers.iter();
    let mut headers: Vec<_> = headers.map(|header| format!("{header:?}")).collect();
    headers.sort();
    let error = outcome.error.as_ref().map(ToString::to_string);
    let Outcome {
        status,
        text,
        reason,
        tries,
        at,
        ..
    } = outcome;
    format!("{status} {headers:?} {text:?} {error:?} {reason:?} {tries:?} {at:?}")
}

/// What the caller, the upstream and the registry saw of two calls of one run.
async fn seen(build: Build, scripts: Vec<Script>, caller: Caller) -> Vec<String> {
    let registry = RunRegistry::new();
    let upstream = Upstream::scripts(scripts);
    let service = build(&registry, &no_delay(), upstream.clone());
    let mut seen = Vec::new();
    for _ in 0..2 {
        if let Caller::Aborts = caller {
            let registry = registry.clone();
            later(2, move || {
                let id = "mine".parse::<RunId>().unwrap();
                registry.abort(Owner::anonymous(), &id);
            });
        }
        let call = Outcome::of(service.clone().oneshot(caller.request()));
        if caller.leaves() {
            let outcome = timeout(secs(3), call).await;
            seen.push(outcome.map_or_else(|_| "left".to_owned(), |it| told(&it)));
        } else {
            seen.push(told(&call.await));
        }
    }
    for run in registry.find(&"mine".parse().unwrap()) {
        let mut snapshot = run.snapshot();
        // The attempt of a fallback without candidates counted beside the retry's.
        snapshot.progress.state_changes = 0;
        seen.push(format!("{snapshot:?}"));
    }
    for request in upstream.requests() {
        let mut headers: Vec<_> = request.headers.iter().collect();
        headers.sort_by_key(|(name, _)| name.as_str());
        seen.push(format!("{} {headers:?} {}", request.uri, request.body()));
    }
    seen.push(format!("{:?}", upstream.reasons()));
    seen
}

#[tokio::test(start_paused = true)]
async fn a_stack_without_its_idle_layers_acts_as_one_with_them() {
    for (at, scripts) in scripts().into_iter().enumerate() {
        for caller in Caller::ALL {
            let hand = seen(by_hand, scripts.clone(), caller).await;
            let named = seen(by_name, scripts.clone(), caller).await;
            assert_eq!(hand, named, "script {at}, {caller:?}");
        }
    }
}
