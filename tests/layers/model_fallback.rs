//! Other models, and everything after which there must be none.

mod after_attempt;
mod classifier;
mod cooldowns;
mod denied;
mod effects;
mod error_count;
mod good_status;
mod hidden;
mod idle;
mod last;
mod limits;
mod listed;
mod nested;
mod operations;
mod order;
mod others;
mod redirects;
mod sticky;
mod telemetry;
mod terminal;
mod which;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::Body;
use http_body_util::Full;
use tower::{Layer, Service, ServiceExt};
use tower_agent::{
    BoxError, Candidate, ModelFallbackLayer, Run, TerminalReason, llm::failure::FailureClass,
};

use crate::support::{
    ERROR, Outcome, Place, Script, Stack, StackService, Upstream, attach, chat, failure, healthy,
    healthy_text, prompt, with_header,
};

/// A layer with candidates of these names, at the upstream that there is.
fn models<const N: usize>(names: [&str; N]) -> ModelFallbackLayer {
    ModelFallbackLayer::new(names.map(Candidate::new))
}

/// The layer alone, and with repeats of each candidate inside. An attempt may be
/// silent for ten seconds. They must not differ.
fn both(layer: &ModelFallbackLayer) -> [(StackService, Upstream); 2] {
    let alone = Stack::default()
        .layer(Place::Fallback, layer.clone())
        .attempt_step(10);
    [alone.clone(), alone.retry(1)].map(|stack| {
        let upstream = Upstream::script(healthy());
        (stack.build(&upstream), upstream)
    })
}

/// The models that one call asks, in order. Its answer is read to the end.
async fn asks<S, B>(service: &S, upstream: &Upstream, request: Request<Full<Bytes>>) -> Vec<String>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = BoxError> + Clone,
    B: Body<Data = Bytes, Error: Into<BoxError> + Send> + Unpin + Send,
{
    let before = upstream.calls();
    drop(Outcome::of(service.clone().oneshot(request)).await);
    upstream.models().split_off(before)
}

/// A candidate at an upstream of its own.
fn at(model: &str, url: &'static str) -> Candidate {
    let url = Uri::from_static(url);
    Candidate::new(model).base_url(url).unwrap()
}

/// A request on the account of this caller.
fn from(caller: &str, model: &str) -> Request<Full<Bytes>> {
    with_header(prompt(model), "authorization", caller)
}

/// A candidate that calls on an account of its own.
fn of_account(name: &str, id: &str) -> Candidate {
    Candidate::new(name).credential(id)
}

fn failed(class: FailureClass) -> Option<TerminalReason> {
    Some(TerminalReason::Failed(class))
}

#[tokio::test(start_paused = true)]
async fn the_second_model_serves_when_the_first_fails() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(outcome.headers["x-served-model"], "b");
    assert_eq!(outcome.headers["x-attempt"], "2");
    assert!(outcome.failure.is_none());
    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.models(), ["a", "b"]);
    let completed = Some(TerminalReason::Completed);
    assert_eq!(
        upstream.reasons(),
        [failed(FailureClass::Server), completed.clone()]
    );
    assert_eq!(call.terminal_reason(), completed);
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

/// covers: G6, H6, T72
#[tokio::test(start_paused = true)]
async fn only_the_model_of_the_request_changes() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = models(["a", "longer"]).layer(upstream.clone());
    let body = "{ \"n\": 1.0000000000000000001,\"model\" : \"a\", \"x\":\"\\u00e9\" }";
    let request = prompt("a").map(|_| http_body_util::Full::from(body));

    service.oneshot(request).await.unwrap();

    assert_eq!(
        upstream.bodies(),
        [body, &body.replace("\"a\"", "\"longer\"")]
    );
    let lengths = upstream.header("content-length");
    assert_eq!(
        lengths,
        upstream
            .bodies()
            .iter()
            .map(|body| Some(body.len().to_string()))
            .collect::<Vec<_>>()
    );
}

/// covers: F9
#[tokio::test(start_paused = true)]
async fn when_all_failed_the_last_answer_is_handed_on_as_it_is() {
    let last = failure(503)
        .header("x-request-id", "r")
        .header("retry-after", "7");
    let broken = Script::before_head().fail("reset");
    let upstream = Upstream::scripts([failure(500), broken, last]);
    let stack = Stack::default().candidates(["a", "b", "c"]);

    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.status, 503);
    assert_eq!(outcome.headers["x-request-id"], "r");
    assert_eq!(outcome.headers["retry-after"], "7");
    assert_eq!(outcome.headers["x-served-model"], "c");
    let [server, transport] = [FailureClass::Server, FailureClass::Transport];
    let named = |name: &str, class| (Some(name.to_owned()), class);
    let told = [
        named("a", server),
        named("b", transport),
        named("c", server),
    ];
    assert_eq!(outcome.tries, told);
    let run = outcome.run();
    assert_eq!(outcome.whole(), ERROR);
    assert_eq!(run.terminal_reason(), failed(server));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn when_all_broke_the_last_error_is_the_source() {
    let broken = |why| Script::before_head().fail(why);
    let upstream = Upstream::scripts([broken("first"), broken("second")]);
    let service = models(["a", "b"]).layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let error = service.oneshot(request).await.unwrap_err();

    let error = error.source().unwrap();
    assert!(error.is::<std::io::Error>());
    assert_eq!(error.to_string(), "second");
    assert_eq!(call.terminal_reason(), failed(FailureClass::Transport));
    assert_eq!(run.in_flight(), 0);
}

/// covers: F10
#[tokio::test(start_paused = true)]
async fn nothing_is_tried_after_the_commit() {
    let broken = Script::sse().data(chat("a")).fail("reset");
    let upstream = Upstream::scripts([broken, healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let outcome = stack.ask(request).await;
    assert_eq!(outcome.headers["x-served-model"], "a");

    assert_eq!(outcome.text, chat("a"));
    assert_eq!(outcome.error.unwrap().to_string(), "reset");
    assert_eq!(upstream.calls(), 1);
    assert_eq!(call.terminal_reason(), failed(FailureClass::Transport));
    assert_eq!(run.in_flight(), 0);
}

/// covers: F10
#[tokio::test(start_paused = true)]
async fn an_upstreams_own_error_after_the_commit_passes_unchanged() {
    let event = "data: {\"error\":{\"message\":\"no\",\"type\":\"overloaded_error\"}}\n\n";
    let upstream = Upstream::scripts([Script::sse().data(chat("a")).data(event), healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.whole(), chat("a") + event);
    assert_eq!(upstream.calls(), 1);
    assert_eq!(call.terminal_reason(), failed(FailureClass::Overloaded));
}
