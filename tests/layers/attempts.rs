//! Attempts that a layer of the program opens: `Run::attempt`.

use std::future::Future;

use http::{Request, Response};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, NodeKind, Run, StepTimeoutLayer, TerminalReason, Terminated,
    llm::failure::FailureClass, supervise::SupervisedBody,
};

use crate::support::{
    DONE, FINISH, PRELUDE, Read, ReadExt, ResponseBody, Script, StackService, Summaries, USAGE,
    Upstream, chat, failure, poll_once, reason_of, secs,
};

/// A retry of a program: it repeats after a second, until an attempt serves the call.
async fn retry(
    inner: StackService,
    request: Request<()>,
) -> Result<Response<SupervisedBody<ResponseBody>>, BoxError> {
    let call = request.extensions().get::<Run>().unwrap().clone();
    loop {
        let attempt = call.attempt(request.clone(), |request| inner.clone().oneshot(request))?;
        match attempt.await {
            Ok(answer) if answer.status().is_success() => return Ok(answer),
            _ => sleep(secs(1)).await,
        }
    }
}

/// Sends a call of `run` through the retry, with a ceiling outside and a step window inside.
fn ask(
    run: &Run,
    upstream: &Upstream,
    ceiling: u64,
) -> impl Future<Output = Result<Read, BoxError>> + use<> {
    let inner = StackService::new(StepTimeoutLayer::new(secs(10)).layer(upstream.clone()));
    let retry = service_fn(move |request| retry(inner.clone(), request));
    let service = HardCeilingLayer::new(secs(ceiling)).layer(retry);
    let request = run.attach(Request::new(()));
    async move { Ok(service.oneshot(request).await?.into_body().read().await) }
}

/// covers: H5
#[tokio::test(start_paused = true)]
async fn attempts_of_a_program_settle_by_their_answers() {
    let run = Run::open();
    let healthy = Script::sse().data(chat("a")).data(DONE);
    let upstream = Upstream::scripts([failure(503), Script::before_head().never(), healthy]);
    let start = Instant::now();

    let read = ask(&run, &upstream, 60).await.unwrap();

    assert_eq!(read.whole(), chat("a") + DONE);
    assert_eq!(upstream.times(start), [secs(0), secs(1), secs(12)]);
    let server = TerminalReason::Failed(FailureClass::Server);
    let expected = [
        server,
        TerminalReason::StepTimeout,
        TerminalReason::Completed,
    ];
    assert_eq!(upstream.reasons(), expected.map(Some));
    assert_eq!(run.last_end(), Some(TerminalReason::Completed));
    assert_eq!((run.terminal_reason(), run.in_flight()), (None, 0));
}

/// covers: H5
#[tokio::test(start_paused = true)]
async fn no_attempt_of_a_program_starts_once_its_call_is_over() {
    let run = Run::open();
    let upstream = Upstream::script(Script::before_head().never());
    let start = Instant::now();

    // The second attempt would start at 11 s, and so does the end.
    let error = ask(&run, &upstream, 11).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(Terminated::find(&*error).unwrap().kind, NodeKind::Call);
    assert_eq!((upstream.calls(), start.elapsed()), (1, secs(11)));

    run.end(TerminalReason::TurnCap);
    let refused = run.attempt(Request::new(()), |_| unreachable!("the run is over"));
    let refused: Result<tower_agent::supervise::SupervisedFuture<std::future::Ready<()>>, _> =
        refused;
    assert_eq!(refused.unwrap_err().reason, TerminalReason::TurnCap);
}

/// covers: H5
#[tokio::test(start_paused = true)]
async fn a_deadline_that_passed_unseen_refuses_the_next_attempt() {
    let run = Run::open();
    let upstream = Upstream::script(Script::before_head().never());
    let mut asked = Box::pin(ask(&run, &upstream, 30));
    assert!(poll_once(&mut asked).is_pending());
    let call = upstream.run().parent().unwrap();

    tokio::time::advance(secs(31)).await;
    let refused = call.attempt(Request::new(()), |_| std::future::pending::<()>());

    assert_eq!(refused.unwrap_err().reason, TerminalReason::HardCeiling);
}

/// covers: H5
#[tokio::test(start_paused = true)]
async fn the_end_of_the_call_drops_an_attempt_of_a_program() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(chat("a")).repeat(60, 1.0, chat("a")));

    let read = ask(&run, &upstream, 30).await.unwrap();

    assert_eq!(read.reason(), Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::HardCeiling));
    assert_eq!(run.in_flight(), 0);
}

/// covers: H5
#[tokio::test(start_paused = true)]
async fn the_summary_counts_the_attempts_of_a_program_and_their_usage() {
    let told = Summaries::default();
    let counted = Script::sse()
        .data(PRELUDE)
        .data(FINISH)
        .data(USAGE)
        .data(DONE);
    let upstream = Upstream::scripts([failure(500), counted]);
    let inner = StackService::new(StepTimeoutLayer::new(secs(10)).layer(upstream));
    let retry = service_fn(move |request| retry(inner.clone(), request));

    let answer = told.layer().layer(retry).oneshot(Request::new(())).await;
    answer.unwrap().into_body().read().await.whole();

    assert_eq!(told.one().attempts, 2);
    assert_eq!(told.tokens(), Some((7, 2)));
}
