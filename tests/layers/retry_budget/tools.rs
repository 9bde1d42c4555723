//! Errors of a run's tools, counted as those of its calls are.

use std::future::pending;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_agent::{BoxError, HardCeilingLayer, RetryBudget, Run, TerminalReason};

use crate::support::{Outcome, attach, later, request, secs};

#[tokio::test(start_paused = true)]
async fn tools_of_a_run_of_one_call_are_limited() {
    let agent = service_fn(|request: Request<()>| async move {
        let run = request.extensions().get::<Run>().unwrap().run();
        RetryBudget::new().per_error_key(1).limit_errors(&run);
        for ended in [None, Some(TerminalReason::RetryBudget)] {
            let tool = run
                .tool("read")
                .call(async { Err::<(), _>("no such file") });
            tool.await.unwrap_err();
            assert_eq!(run.terminal_reason(), ended);
        }
        Ok::<_, BoxError>(Response::new(Full::<Bytes>::default()))
    });
    let service = HardCeilingLayer::new(secs(600)).layer(agent);

    let outcome = Outcome::of(service.oneshot(request())).await;

    assert_eq!(outcome.terminated().reason, TerminalReason::RetryBudget);
}

/// A tool of `run` that is watched, or called, and never does anything.
async fn stuck(run: &Run, called: bool) {
    let tool = run.tool("slow").window(secs(10));
    if called {
        let nothing = tool.call(pending::<Result<(), &str>>());
        nothing.await.unwrap_err();
    } else {
        tool.watch(pending::<()>()).await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_its_own_window_cuts_is_an_error_of_its_run() {
    for called in [true, false] {
        let run = Run::open();
        RetryBudget::new()
            .per_error_key(None)
            .per_run(1)
            .limit_errors(&run);

        stuck(&run, called).await;
        assert_eq!(run.terminal_reason(), None);
        stuck(&run, called).await;

        assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_cut_with_its_call_is_no_error_of_its_run() {
    for called in [true, false] {
        let run = Run::open();
        RetryBudget::new().per_run(0).limit_errors(&run);
        let (_request, call) = attach(&run, request());
        let ends = call.clone();
        let ended = later(1, move || ends.end(TerminalReason::StepTimeout));

        stuck(&call, called).await;

        assert!(ended.await.unwrap());
        assert_eq!(run.terminal_reason(), None);
    }
}
