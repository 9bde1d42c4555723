//! A stream behind `once_woken` is asked once it was woken, or once its call has ended.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::Full;
use tower::ServiceExt;
use tower_agent::{AgentStack, BoxError, Run, RunRegistry, TerminalReason};

use crate::support::{DONE, FINISH, Script, Upstream, chat, secs};

type Stream = Pin<Box<dyn Body<Data = Bytes, Error = BoxError>>>;

async fn ask(once_woken: Option<bool>, upstream: &Upstream) -> (Run, Stream) {
    let stack = AgentStack::server(&RunRegistry::new())
        .step(secs(60))
        .ceiling(secs(600))
        .responses(|layer| match once_woken {
            Some(once_woken) => layer.once_woken(once_woken),
            None => layer,
        })
        .service(upstream.clone());
    let ask = Request::post("/v1/chat/completions")
        .body(Full::<Bytes>::from(r#"{"stream":true}"#))
        .unwrap();
    let answer: Response<_> = stack.oneshot(ask).await.unwrap();
    let run = answer.extensions().get::<Run>().unwrap().clone();
    (run, Box::pin(answer.into_body()))
}

/// Asks as hyper does, with no task behind the waker.
fn poll(stream: &mut Stream) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
    let mut nobody = Context::from_waker(Waker::noop());
    stream.as_mut().poll_frame(&mut nobody)
}

fn text(frame: Poll<Option<Result<Frame<Bytes>, BoxError>>>) -> String {
    let Poll::Ready(Some(Ok(frame))) = frame else {
        panic!("no frame: {frame:?}");
    };
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

fn slow() -> Upstream {
    let script = Script::sse().data(chat("a")).wait(5.0).data(chat("b"));
    Upstream::script(script.data(FINISH).data(DONE))
}

#[tokio::test(start_paused = true)]
async fn the_stream_of_an_agents_stack_is_asked_once_it_was_woken() {
    for (once_woken, asked_again) in [(None, 0), (Some(true), 0), (Some(false), 2)] {
        let upstream = slow();
        let (_, mut stream) = ask(once_woken, &upstream).await;
        assert_eq!(text(poll(&mut stream)), chat("a"));
        assert!(poll(&mut stream).is_pending());
        let asked = upstream.polls();
        for _ in 0..2 {
            assert!(poll(&mut stream).is_pending());
        }
        assert_eq!(upstream.polls() - asked, asked_again, "{once_woken:?}");

        tokio::time::sleep(secs(5)).await;
        assert_eq!(text(poll(&mut stream)), chat("b"), "{once_woken:?}");
    }
}

/// The end is there before the task of the stream was woken.
#[tokio::test(start_paused = true)]
async fn the_end_of_the_run_opens_the_gate() {
    let upstream = slow();
    let (run, mut stream) = ask(None, &upstream).await;
    assert_eq!(text(poll(&mut stream)), chat("a"));
    assert!(poll(&mut stream).is_pending());
    run.end(TerminalReason::Aborted);
    assert!(text(poll(&mut stream)).contains("aborted"));
    assert!(upstream.is_dropped());
}

/// The timer of a limit wakes the stream through the gate.
#[tokio::test(start_paused = true)]
async fn a_limit_wakes_the_stream() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let (_, mut stream) = ask(None, &upstream).await;
    let started = tokio::time::Instant::now();
    let mut seen = String::new();
    while let Some(frame) = std::future::poll_fn(|cx| stream.as_mut().poll_frame(cx)).await {
        let Ok(frame) = frame else { break };
        seen += &String::from_utf8_lossy(frame.data_ref().unwrap());
    }
    assert!(seen.contains("step_timeout"), "{seen}");
    assert_eq!(started.elapsed(), secs(60));
}
