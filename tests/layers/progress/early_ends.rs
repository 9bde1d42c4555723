//! How a call may end after an early head, in each dialect, in the stack of a server.
//!
//! covers: B5

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use serde_json::Value;
use tower::ServiceExt;
use tower_agent::{
    AgentStack, BoxError, Candidate, IdleBreaker, RunRegistry, TerminalReason,
    llm::failure::FailureClass, stack::Server,
};

use super::{KEEP_ALIVE, frames, timed};
use crate::support::{
    DONE, ReadExt, STOP, Script, Upstream, chat, content_block, failure, later, no_delay,
    poll_body, run_on, secs,
};

/// A dialect: the path of its requests, what keeps a stream alive, and the events of an answer.
struct Api {
    path: &'static str,
    keep_alive: &'static str,
    events: [String; 2],
}

fn apis() -> [Api; 3] {
    let delta = "event: response.output_text.delta\n\
                 data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
    let completed = "event: response.completed\n\
                     data: {\"type\":\"response.completed\",\"response\":{\"id\":\"r\"}}\n\n";
    [
        Api {
            path: "/v1/chat/completions",
            keep_alive: KEEP_ALIVE,
            events: [chat("a"), DONE.to_owned()],
        },
        Api {
            path: "/v1/responses",
            keep_alive: KEEP_ALIVE,
            events: [delta, completed].map(str::to_owned),
        },
        Api {
            path: "/v1/messages",
            keep_alive: "event: ping\ndata: {\"type\": \"ping\"}\n\n",
            events: [content_block("a"), STOP.to_owned()],
        },
    ]
}

impl Api {
    fn ask(&self, stream: bool) -> Request<Full<Bytes>> {
        let body = format!("{{\"model\":\"a\",\"stream\":{stream},\"messages\":[]}}");
        // As the SDKs send it: they accept JSON also where they ask for a stream.
        let request = Request::post(self.path).header("accept", "application/json");
        request.body(Full::from(body)).unwrap()
    }

    /// An answer whose head comes after so many seconds.
    fn answer(&self, seconds: u64) -> Script {
        let [content, end] = &self.events;
        Script::sse().data(content).data(end).delayed(seconds)
    }
}

fn stack() -> AgentStack<Server> {
    AgentStack::server(&RunRegistry::new())
        .early_head(secs(20))
        .fallback(["a", "b"].map(Candidate::new))
        .retry(no_delay())
}

/// The head of a stream, at 20 s; what came behind it, each with its second; and how its run ended.
async fn early<B>(answer: Response<B>) -> (Vec<(u64, String)>, Option<TerminalReason>, String)
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError> + Send> + Unpin + Send,
{
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers()["x-accel-buffering"], "no");
    assert!(!answer.headers().contains_key("x-served-model"));
    let run = run_on(&answer);
    let id = answer.headers()["x-run-id"].to_str().unwrap().to_owned();
    let (read, end) = timed(answer.into_body()).await;
    end.unwrap();
    (read, run.terminal_reason(), id)
}

/// The one error event behind comments, and the second at which it came.
fn error_behind(read: &[(u64, String)], api: &Api, id: &str) -> (u64, Value) {
    let [before @ .., (at, event)] = read else {
        panic!("{read:?}");
    };
    assert!(before.iter().all(|(_, text)| text == api.keep_alive));
    let data = event.strip_prefix("event: error\ndata: ").unwrap();
    let error: Value = serde_json::from_str(data).unwrap();
    assert_eq!(error["type"], "error");
    assert_eq!(error["error"]["code"], error["code"]);
    assert_eq!(error["error"]["type"], error["code"]);
    assert_eq!(error["error"]["message"], error["message"]);
    assert_eq!(error["error"]["run_id"], id);
    (*at, error)
}

#[tokio::test(start_paused = true)]
async fn repeats_and_fallbacks_go_on_until_the_answer_streams() {
    for api in apis() {
        let upstream = Upstream::scripts([
            failure(503).delayed(10),
            Script::before_head().never(),
            api.answer(15),
        ]);
        let stack = stack().first(secs(30)).service(upstream.clone());

        let (read, reason, _) = early(stack.oneshot(api.ask(true)).await.unwrap()).await;

        // a: 503 at 10 s, and silent until 40 s; b answers at 55 s.
        assert_eq!(upstream.models(), ["a", "a", "b"]);
        let ka = api.keep_alive;
        let [content, end] = &api.events;
        let all = [(15, ka), (30, ka), (35, content), (35, end)];
        assert_eq!(read, frames(all), "{}", api.path);
        assert_eq!(reason, Some(TerminalReason::Completed));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_in_time_and_one_that_is_no_stream_are_as_without() {
    for api in apis() {
        for (stream, script, status) in [
            (true, api.answer(19), 200),
            (true, failure(400).delayed(19), 400),
            (false, failure(400).delayed(60), 400),
            (
                false,
                Script::json().data("{\"choices\":[{}]}").delayed(60),
                200,
            ),
        ] {
            let service = stack().service(Upstream::script(script));
            let answer = service.oneshot(api.ask(stream)).await.unwrap();
            assert_eq!(answer.status(), status);
            assert_eq!(answer.headers()["x-served-model"], "a");
        }
    }
}

/// What the upstream says is told, with its status; no SDK repeats a request after that.
#[tokio::test(start_paused = true)]
async fn a_late_error_of_the_upstream_is_an_error_event_with_its_code_and_message() {
    let too_long = r#"{"error":{"message":"too long","type":"invalid_request_error",
        "code":"context_length_exceeded"}}"#;
    let busy = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    for api in apis() {
        for (status, body, code, message) in [
            (
                400,
                too_long,
                "context_length_exceeded",
                "400 Bad Request: too long",
            ),
            (
                529,
                busy,
                "overloaded_error",
                "529 <unknown status code>: Overloaded",
            ),
            (
                500,
                "oops",
                "upstream_failed",
                "500 Internal Server Error: ",
            ),
        ] {
            let upstream = Upstream::script(Script::answer(status, body).delayed(25));
            let stack = stack().service(upstream);

            let (read, reason, id) = early(stack.oneshot(api.ask(true)).await.unwrap()).await;

            let (_, error) = error_behind(&read, &api, &id);
            assert_eq!(error["code"], code);
            let told = error["message"].as_str().unwrap();
            let said = format!("The upstream answered {message}");
            assert!(told.starts_with(&said), "{told}");
            assert!(told.ends_with(" (upstream_failed)."), "{told}");
            assert!(
                matches!(reason, Some(TerminalReason::Failed(_))),
                "{reason:?}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_that_is_no_stream_is_an_error() {
    for api in apis() {
        let whole = Script::json().data(r#"{"choices":[{}],"output":[{}],"content":[{}]}"#);
        let stack = stack().service(Upstream::script(whole.delayed(40)));

        let (read, reason, id) = early(stack.oneshot(api.ask(true)).await.unwrap()).await;

        let (at, error) = error_behind(&read, &api, &id);
        assert_eq!((at, &error["code"]), (20, &"upstream_failed".into()));
        let message = "The upstream answered 200 OK: the answer is no stream of events \
                       (upstream_failed).";
        assert_eq!(error["message"], message);
        assert_eq!(reason, Some(TerminalReason::Failed(FailureClass::Server)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_is_an_error_event_with_its_reason() {
    type Set = fn(AgentStack<Server>) -> AgentStack<Server>;
    let breaker: Set = |stack| {
        let retry = no_delay().idle_breaker(2, IdleBreaker::End);
        stack.first(secs(25)).retry(retry)
    };
    let limits: [(Set, u64, &str); 4] = [
        (|it| it.ceiling(secs(50)), 30, "max_turn_time"),
        (|it| it.run_step(secs(50)), 30, "step_timeout"),
        (breaker, 30, "idle_circuit_open"),
        (|it| it, 40, "aborted"),
    ];
    for api in apis() {
        for (set, expected, code) in limits {
            let upstream = Upstream::script(Script::before_head().never());
            let service = set(stack()).service(upstream.clone());

            let answer = service.oneshot(api.ask(true)).await.unwrap();
            let run = run_on(&answer);
            later(40, move || run.end(TerminalReason::Aborted));
            let (read, reason, id) = early(answer).await;

            let (at, error) = error_behind(&read, &api, &id);
            assert_eq!((at, &error["code"]), (expected, &code.into()));
            assert_eq!(reason.unwrap().as_str(), code);
            assert!(upstream.is_dropped());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_after_an_early_head_ends_the_call_at_once() {
    for api in apis() {
        let upstream = Upstream::script(Script::before_head().never());
        let stack = stack().service(upstream.clone());
        let answer = stack.oneshot(api.ask(true)).await.unwrap();
        let run = run_on(&answer);
        let mut body = answer.into_body();
        assert_eq!(body.token().await, api.keep_alive);
        assert!(poll_body(&mut body).is_pending());
        assert!(!upstream.is_dropped());

        drop(body);

        let reason = Some(TerminalReason::ClientDisconnect);
        assert_eq!(upstream.dropped().reason, reason);
        assert_eq!(run.terminal_reason(), reason);
        assert_eq!(run.in_flight(), 0);
    }
}

/// The proxy's limit runs from its last read: a head alone would not help for long.
#[tokio::test(start_paused = true)]
async fn the_interval_after_an_early_head_is_that_of_keep_alive() {
    let [api, ..] = apis();
    let stack = stack().responses(|layer| layer.keep_alive(Some(secs(7))));
    let stack = stack.service(Upstream::script(api.answer(40)));

    let (read, ..) = early(stack.oneshot(api.ask(true)).await.unwrap()).await;

    let [content, end] = &api.events;
    let all = [(7, KEEP_ALIVE), (14, KEEP_ALIVE), (20, content), (20, end)];
    assert_eq!(read, frames(all));
}

/// Until a request is read, its body cannot say that it asks for a stream.
#[tokio::test(start_paused = true)]
async fn an_early_head_waits_for_a_slow_upload() {
    let [api, ..] = apis();
    let upload = Script::of("x")
        .wait(30.5)
        .data(r#"{"model":"a","stream":true}"#);
    let request = Request::post(api.path).body(upload.body()).unwrap();
    let upstream = Upstream::script(Script::before_head().never());
    let stack = stack().ceiling(secs(60)).service(upstream);
    let start = tokio::time::Instant::now();

    let answer = stack.oneshot(request).await.unwrap();

    assert_eq!(answer.status(), 200);
    // At 20 s the layer began to look each second.
    assert_eq!(start.elapsed(), secs(31));
    let (read, reason, id) = early(answer).await;
    assert_eq!(error_behind(&read, &api, &id).0, 29);
    assert_eq!(reason, Some(TerminalReason::HardCeiling));
}

/// A slow upload without an end has no head, and is not polled in a loop.
#[tokio::test(start_paused = true)]
async fn an_upload_that_never_ends_gets_the_error_of_its_limit() {
    let upload = Script::of("x").never();
    let request = Request::post("/v1/messages").body(upload.body()).unwrap();
    let stack = stack().ceiling(secs(60));
    let stack = stack.service(Upstream::script(Script::before_head().never()));

    let answer = stack.oneshot(request).await.unwrap();

    assert_eq!(answer.status(), 504);
    assert_eq!(answer.headers()["x-terminal-reason"], "max_turn_time");
}

/// A gateway in front of another one: what the inner one writes passes in its instant.
#[tokio::test(start_paused = true)]
async fn what_keeps_a_stream_alive_passes_through_another_stack() {
    for api in apis() {
        let [content, last] = &api.events;
        let slow = Script::sse().data(content).wait(25.0).data(last);
        let inner = stack().responses(|layer| layer.keep_alive(Some(secs(10))));
        let outer = AgentStack::server(&RunRegistry::new())
            .step(secs(200))
            .fallback([Candidate::new("a")])
            .service(inner.service(Upstream::script(slow)));

        let answer = outer.oneshot(api.ask(true)).await.unwrap();
        let (read, end) = timed(answer.into_body()).await;

        end.unwrap();
        let ka = api.keep_alive;
        assert_eq!(read, frames([(0, content), (10, ka), (20, ka), (25, last)]));
    }
}
