//! Answers of a layer of the program's own, which cost nothing.

use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures_util::future::{Either, FutureExt};
use http::{HeaderValue, Request, Response};
use http_body_util::BodyExt;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    BoxError, Candidate, HardCeilingLayer, ModelFallbackLayer, NotCounted, ReplayBody,
    RetryBudgetLayer,
};

use super::counted;
use crate::support::{
    DONE, FINISH, Outcome, PRELUDE, ResponseBody, Script, StackService, Summaries, USAGE, Upstream,
    chat, no_delay, prompt, prompt_as, secs,
};

type Answer = Response<ResponseBody>;

/// Answers what it has, if it has something; else it asks on.
#[derive(Clone)]
struct Cache {
    inner: StackService,
    has: Option<Script>,
    marks: bool,
}

impl Service<Request<ReplayBody>> for Cache {
    type Response = Answer;
    type Error = BoxError;
    type Future = Either<
        Ready<Result<Answer, BoxError>>,
        <StackService as Service<Request<ReplayBody>>>::Future,
    >;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Request<ReplayBody>>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: Request<ReplayBody>) -> Self::Future {
        let Some(script) = self.has.clone() else {
            return self.inner.call(request).right_future();
        };
        let mut answer = Response::new(script.body().boxed_unsync());
        let events = HeaderValue::from_static("text/event-stream");
        answer.headers_mut().insert("content-type", events);
        if self.marks {
            answer.extensions_mut().insert(NotCounted);
        }
        ready(Ok(answer)).left_future()
    }
}

/// The tokens of a call, twice, that meets a cache around what is asked else.
async fn cost(cache: Cache) -> [Option<(u64, u64)>; 2] {
    let told = Summaries::default();
    let service = ServiceBuilder::new()
        .layer(told.layer())
        .layer(HardCeilingLayer::new(secs(60)))
        .service(cache);
    for _ in 0..2 {
        let request = prompt("a").map(|_| ReplayBody::from("{\"model\":\"a\"}"));
        Outcome::of(service.clone().oneshot(request)).await.whole();
    }
    let tokens = told.all().into_iter().map(|call| {
        let usage = call.usage?;
        Some((usage.input_tokens, usage.output_tokens))
    });
    tokens.collect::<Vec<_>>().try_into().unwrap()
}

fn full(inner: StackService, marks: bool) -> Cache {
    let cached = Script::before_head().data(PRELUDE).data(chat("a"));
    let has = Some(cached.data(FINISH).data(USAGE).data(DONE));
    Cache { inner, has, marks }
}

fn empty(inner: StackService) -> Cache {
    let (has, marks) = (None, false);
    Cache { inner, has, marks }
}

fn transport() -> Upstream {
    Upstream::script(counted())
}

/// Around the transport a layer that opens attempts.
fn with_attempts() -> [StackService; 2] {
    let fallback = ModelFallbackLayer::new(["a", "b"].map(Candidate::new));
    let repeats = RetryBudgetLayer::new(no_delay());
    [
        StackService::new(fallback.layer(transport())),
        StackService::new(repeats.layer(transport())),
    ]
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_a_layer_outside_counts_unless_it_is_marked() {
    let [fallback, repeats] = with_attempts();
    for asked in [StackService::new(transport()), fallback, repeats] {
        assert_eq!(cost(empty(asked.clone())).await, [Some((7, 2)); 2]);
        assert_eq!(cost(full(asked.clone(), false)).await, [Some((7, 2)); 2]);
        assert_eq!(cost(full(asked, true)).await, [None; 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_marked_costs_nothing_below_an_attempt_either() {
    for streams in [false, true] {
        let told = Summaries::default();
        let answer = match streams {
            true => counted(),
            false => Script::answer(200, r#"{"usage":{"input_tokens":3,"output_tokens":4}}"#),
        };
        let upstream = Upstream::script(answer);
        let marked = ServiceExt::<Request<ReplayBody>>::map_response(upstream, |mut answer| {
            answer.extensions_mut().insert(NotCounted);
            answer
        });
        let service = ServiceBuilder::new()
            .layer(told.layer())
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(marked);

        let outcome = Outcome::of(service.oneshot(prompt_as("a", streams))).await;
        outcome.whole();

        assert_eq!((told.one().attempts, told.tokens()), (1, None));
    }
}
