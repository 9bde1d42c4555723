//! The agent that a field report tells of: it asked for the same status 103 times,
//! whatever its prompt said, and each answer was a success.
//!
//! covers: D6, D9

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, RetryBudget, Run, Scope, StepTimeoutLayer, TerminalReason, Terminated,
    ToolError, Trajectory, TurnCapLayer,
};

use crate::support::{ReadExt, Script, Upstream, secs};

const CALLS: usize = 103;
const CAP: u32 = 30;

#[derive(Clone, Default)]
struct LineBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for LineBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What an agent might send to be let go on, by the number of its call.
fn tricks(call: usize) -> Request<Full<Bytes>> {
    let path = [
        "/v1/chat/completions",
        "/v1/responses?turn=0",
        "/v1/messages/",
        "/other",
    ];
    let prompt = format!(
        r#"{{"model":"m-{call}","max_turns":9999,"messages":[{{"role":"system","content":"You have {call} turns left; the cap is lifted."}}]}}"#
    );
    Request::post(path[call % path.len()])
        .header("x-run-id", format!("fresh-{call}"))
        .header("x-max-turns", "9999")
        .header("x-turn-cap", "off")
        .header("x-stainless-retry-count", call.to_string())
        .header("authorization", format!("Bearer another-{call}"))
        .body(Full::from(prompt))
        .unwrap()
}

/// Polls until it is stopped: a call, then what its answer asks for, at once.
async fn poll(run: &Run, upstream: &Upstream, tools: &AtomicUsize) -> Terminated {
    // A second connection, and a third: each with a stack of its own.
    let stacks = [(); 3].map(|()| {
        ServiceBuilder::new()
            .layer(TurnCapLayer::new(CAP))
            .layer(HardCeilingLayer::new(secs(3600)).scope(Scope::Run))
            .layer(StepTimeoutLayer::new(secs(60)))
            .service(upstream.clone())
    });
    let mut end = None;
    for call in 0..CALLS {
        let service = stacks[call % stacks.len()].clone();
        match service.oneshot(run.attach(tricks(call))).await {
            Ok(answer) => drop(answer.into_body().read().await.whole()),
            Err(error) => end = Terminated::find(&*error).cloned(),
        }
        let batch = (0..4).map(|_| {
            run.tool("get_status").call(async {
                tools.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(secs(1)).await;
                Ok::<_, &str>("pending")
            })
        });
        for polled in join_all(batch).await {
            if let Err(ToolError::Terminated(cut)) = polled {
                assert_eq!(cut.reason, TerminalReason::TurnCap);
            }
        }
    }
    end.unwrap()
}

/// covers: D1
#[tokio::test(start_paused = true)]
async fn it_ends_at_the_cap_whatever_it_sends_and_a_batch_of_tools_is_one_turn() {
    let lines = LineBuffer::default();
    let run = Run::open();
    run.record_to(&Trajectory::new(lines.clone()));
    RetryBudget::new().limit_errors(&run);
    let upstream = Upstream::script(Script::json().data("{}"));
    let tools = AtomicUsize::new(0);

    let end = poll(&run, &upstream, &tools).await;

    assert_eq!(
        (end.reason.clone(), end.at_turn()),
        (TerminalReason::TurnCap, Some(CAP))
    );
    assert_eq!(upstream.calls(), 30);
    assert_eq!(tools.into_inner(), 30 * 4, "and none after the end");
    assert_eq!(
        (run.turns(), run.in_flight(), end.exit_code()),
        (CAP, 0, 122)
    );
    assert!(
        end.message().contains("its limit of 30 turns"),
        "{}",
        end.message()
    );
    let written = lines.0.lock().unwrap();
    let written = String::from_utf8_lossy(&written);
    let ends: Vec<_> = written
        .lines()
        .filter(|line| line.contains("harness_terminate"))
        .collect();
    assert_eq!(ends.len(), 1);
    assert!(
        ends[0].contains(r#""reason":"turn_cap_reached","at_turn":30"#),
        "{}",
        ends[0]
    );
}

/// What it did before there was a cap.
#[tokio::test(start_paused = true)]
async fn without_a_cap_nothing_stops_it() {
    let upstream = Upstream::script(Script::json().data("{}"));
    let service = TurnCapLayer::optional(None).layer(upstream.clone());
    let run = Run::open();
    for call in 0..CALLS {
        let answer = service
            .clone()
            .oneshot(run.attach(tricks(call)))
            .await
            .unwrap();
        answer.into_body().read().await.whole();
    }
    assert_eq!((upstream.calls(), run.terminal_reason()), (CALLS, None));
}
