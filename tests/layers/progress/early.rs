//! covers: B5

use http::{Method, Request, StatusCode};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    ClientDisconnectLayer, HardCeilingLayer, PumpLayer, ReplayBody, RetryBudgetLayer, Run,
    RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason, TerminalResponseLayer,
    layers::terminal_response::WithoutEarlyHead, llm::failure::FailureClass,
};

use super::{KEEP_ALIVE, Noticed, cut, each, exactly, frames, timed};
use crate::support::{
    DONE, ERROR, Outcome, PRELUDE, ReadExt, Script, Summaries, USAGE, Upstream, attach, chat,
    healthy, healthy_text, later, no_delay, poll_body, poll_once, prompt, request, run_on, secs,
    with_header,
};

const LAYER: TerminalResponseLayer = super::LAYER.early_head(secs(25));

/// A chat request for a stream.
fn streaming() -> Request<()> {
    let mut request = request();
    let events = "text/event-stream".parse().unwrap();
    request.headers_mut().insert("accept", events);
    request
}

/// An answer behind an early head, under the layer that tells the caller of
/// failures: its run, what the caller read, and when.
async fn told_of(late: Script) -> (Run, Vec<(u64, String)>) {
    let service = ServiceBuilder::new()
        .layer(LAYER)
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(HardCeilingLayer::new(secs(100)))
        .service(Upstream::script(late));
    let answer = service.oneshot(streaming()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let run = run_on(&answer);
    assert_eq!(answer.headers()["x-run-id"], run.id().to_string().as_str());
    let (read, end) = timed(answer.into_body()).await;
    end.unwrap();
    (run, read)
}

/// The data of an error event.
fn error_in(event: &str) -> serde_json::Value {
    let data = event.strip_prefix("event: error\ndata: ").unwrap();
    serde_json::from_str(data).unwrap()
}

/// A server whose own caller waits must not lose the status of a failure.
#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_its_head_gets_the_upstreams() {
    let late = Script::answer(429, "{}").delayed(60);
    let mut request = streaming();
    request.extensions_mut().insert(WithoutEarlyHead);
    let answer = LAYER.layer(Upstream::script(late)).oneshot(request).await;
    assert_eq!(answer.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_is_sent_and_the_body_drives_the_call() {
    let late = Script::sse().data(PRELUDE).data(chat("a")).data(DONE);
    let upstream = Upstream::script(late.delayed(60));
    let run = Run::open();
    let noticed = Noticed::of(&run);
    let mut request = streaming();
    request.extensions_mut().insert(run.clone());
    let start = tokio::time::Instant::now();

    let answer = LAYER
        .layer(upstream.clone())
        .oneshot(request)
        .await
        .unwrap();

    assert_eq!(exactly(start.elapsed()), 25);
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers()["cache-control"], "no-cache");
    assert_eq!(run_on(&answer).id(), run.id());
    let (read, end) = timed(answer.into_body()).await;
    end.unwrap();
    let a = chat("a");
    let all = [
        (15, KEEP_ALIVE),
        (30, KEEP_ALIVE),
        (35, PRELUDE),
        (35, &a),
        (35, DONE),
    ];
    assert_eq!(read, frames(all));
    assert_eq!(upstream.calls(), 1);
    run.end(TerminalReason::Aborted);
    assert_eq!(noticed.all().await, each("llm_call", &[30]));
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_in_time_is_the_upstreams() {
    let late = Script::sse().header("x-kept", "yes").data(DONE).delayed(25);
    let upstream = Upstream::script(late);

    let answer = LAYER.layer(upstream).oneshot(streaming()).await.unwrap();

    assert_eq!(answer.headers()["x-kept"], "yes");
    assert_eq!(answer.into_body().read().await.whole(), DONE);
}

#[tokio::test(start_paused = true)]
async fn who_did_not_ask_for_a_stream_gets_no_early_head() {
    let plain = Script::json().status(500).data("{}").delayed(60);
    let upstream = Upstream::script(plain);
    let answer = LAYER.layer(upstream).oneshot(request()).await.unwrap();
    assert_eq!(answer.status(), 500);

    let upstream = Upstream::script(Script::sse().data(DONE).delayed(60));
    let body = ReplayBody::from(r#"{"model":"m","stream":true}"#);
    let request = Request::post("/v1/chat/completions").body(body).unwrap();
    let start = tokio::time::Instant::now();
    drop(LAYER.layer(upstream).oneshot(request).await.unwrap());
    assert_eq!(exactly(start.elapsed()), 25, "its body says so");
}

/// No body follows an answer to HEAD, so its head is no early one, and the caller's limit on it stays.
#[tokio::test(start_paused = true)]
async fn a_head_request_gets_no_early_head_and_keeps_its_deadline() {
    let upstream = Upstream::script(Script::before_head().never());
    let ceiling = HardCeilingLayer::new(secs(600)).caller_deadline(true);
    let service = LAYER.layer(ceiling.layer(upstream));
    let mut request = with_header(streaming(), "x-stainless-timeout", "30");
    *request.method_mut() = Method::HEAD;
    let start = tokio::time::Instant::now();

    let answer = service.oneshot(request).await.unwrap();

    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(exactly(start.elapsed()), 30);
}

/// Whoever tries again has to see the true head: how long to wait stands there.
#[tokio::test(start_paused = true)]
async fn a_try_gets_no_early_head() {
    let refused = Script::answer(503, ERROR)
        .header("retry-after", "20")
        .delayed(60);
    let upstream = Upstream::scripts([refused, healthy()]);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay().max_retry_after(secs(60))))
        .layer(LAYER)
        .service(upstream.clone());
    let start = tokio::time::Instant::now();

    let answer = service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    assert_eq!(upstream.times(start), [secs(0), secs(80)]);
}

#[tokio::test(start_paused = true)]
async fn who_accepts_either_and_asks_for_no_stream_gets_the_answer_as_it_is() {
    let upstream = Upstream::script(Script::json().data("{}").delayed(60));
    let body = ReplayBody::from(r#"{"model":"m","stream":false}"#);
    let request = Request::post("/v1/chat/completions")
        .header("accept", "application/json, text/event-stream")
        .body(body)
        .unwrap();
    let start = tokio::time::Instant::now();

    let answer = LAYER.layer(upstream).oneshot(request).await.unwrap();

    assert_eq!(exactly(start.elapsed()), 60);
    assert_eq!(answer.headers()["content-type"], "application/json");
    assert_eq!(answer.into_body().read().await.whole(), "{}");
}

#[tokio::test(start_paused = true)]
async fn an_error_behind_an_early_head_is_one_error_event_with_its_words() {
    let busy = r#"{"error":{"message":"too fast","type":"rate_limit_error"}}"#;

    let (run, read) = told_of(Script::answer(429, busy).delayed(60)).await;

    let [ka @ .., (35, event)] = &read[..] else {
        panic!("{read:?}");
    };
    assert_eq!(ka, frames([(15, KEEP_ALIVE), (30, KEEP_ALIVE)]));
    let error = error_in(event);
    assert_eq!(error["code"], "rate_limit_error");
    let message = "The upstream answered 429 Too Many Requests: too fast (upstream_failed).";
    assert_eq!(error["error"]["message"], message);
    assert_eq!(error["error"]["run_id"], run.id().to_string());
    let reason = TerminalReason::Failed(FailureClass::RateLimit);
    assert_eq!(run.terminal_reason(), Some(reason));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_stream_is_no_success_behind_an_early_head() {
    let whole = Script::json().data(r#"{"choices":[]}"#).delayed(60);
    let compressed = Script::sse().header("content-encoding", "gzip").delayed(60);
    let silent = Script::json().status(503).data("x").never().delayed(60);
    for (late, at, says) in [
        (whole, 35, "200 OK: the answer is no stream"),
        (compressed, 35, "200 OK: the answer is no stream"),
        (silent, 75, "it reached its time limit of 1m 40s"),
    ] {
        let (run, read) = told_of(late).await;

        let (told, event) = read.last().unwrap();
        assert_eq!(*told, at);
        assert!(event.starts_with("event: error\n"), "{event}");
        assert!(event.contains(says), "{event}");
        let reason = match at {
            75 => TerminalReason::HardCeiling,
            _ => TerminalReason::Failed(FailureClass::Server),
        };
        assert_eq!(run.terminal_reason(), Some(reason));
    }
}

#[tokio::test(start_paused = true)]
async fn what_fails_behind_an_early_head_is_the_error_of_the_body() {
    let (run, read) = told_of(Script::before_head().never()).await;
    let (at, event) = read.last().unwrap();
    assert_eq!(*at, 75);
    assert_eq!(error_in(event)["code"], "max_turn_time");
    assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));

    let (run, read) = told_of(Script::before_head().wait(60.0).fail("reset")).await;
    let (at, event) = read.last().unwrap();
    assert_eq!(*at, 35);
    assert_eq!(error_in(event)["code"], "upstream_failed");
    let reason = TerminalReason::Failed(FailureClass::Transport);
    assert_eq!(run.terminal_reason(), Some(reason));
}

#[tokio::test(start_paused = true)]
async fn without_a_run_a_late_error_says_what_the_upstream_said() {
    let upstream = Upstream::script(Script::answer(400, ERROR).delayed(60));

    let answer = LAYER.layer(upstream).oneshot(streaming()).await.unwrap();
    let (read, end) = timed(answer.into_body()).await;

    end.unwrap();
    let error = error_in(&read.last().unwrap().1);
    let message = "The upstream answered 400 Bad Request: no (upstream_failed).";
    assert_eq!(error["error"]["message"], message);
    assert_eq!(error["error"]["run_id"], serde_json::Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_drives_a_call_and_is_dropped_drops_the_call() {
    let upstream = Upstream::script(Script::before_head().never());
    let service = ServiceBuilder::new()
        .layer(LAYER)
        .layer(ClientDisconnectLayer::new())
        .service(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, streaming());
    let mut body = service.oneshot(request).await.unwrap().into_body();
    assert!(poll_body(&mut body).is_pending());
    assert!(!upstream.is_dropped());

    drop(body);

    let reason = Some(TerminalReason::ClientDisconnect);
    assert_eq!(upstream.dropped().reason, reason);
    assert_eq!(call.terminal_reason(), reason);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_ends_as_its_head_is_due_gets_none() {
    let upstream = Upstream::script(Script::before_head().never());
    let service = LAYER.layer(HardCeilingLayer::new(secs(25)).layer(upstream));

    let answer = service.oneshot(streaming()).await.unwrap();

    assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
    let reason = answer.extensions().get();
    assert_eq!(reason, Some(&TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn behind_a_pump_a_ceiling_holds_though_nobody_reads_after_an_early_head() {
    let run = Run::open();
    let upstream = Upstream::script(Script::before_head().never());
    let ceiling = HardCeilingLayer::new(secs(40)).layer(upstream.clone());
    let service = LAYER.layer(PumpLayer::new().layer(ceiling));
    let (request, call) = attach(&run, streaming());
    let answer = service.oneshot(request).await.unwrap();

    tokio::time::sleep(secs(60)).await;

    assert_eq!(call.terminal_reason(), Some(TerminalReason::HardCeiling));
    assert_eq!(exactly(call.elapsed()), 40);
    assert_eq!(upstream.dropped().reason, call.terminal_reason());
    let read = answer.into_body().read().await.whole();
    assert_eq!(error_in(&read)["error"]["code"], "max_turn_time");
}

#[tokio::test(start_paused = true)]
async fn behind_a_pump_a_deadline_holds_though_nobody_reads_after_an_early_head() {
    let hangs = Script::before_head().never();
    let fails = Script::before_head().wait(30.0).fail("reset");
    for script in [hangs, fails] {
        let run = Run::open();
        let upstream = Upstream::script(script);
        let ceiling = HardCeilingLayer::new(secs(40)).layer(upstream);
        let service = LAYER.layer(PumpLayer::new().layer(ceiling));
        let (request, call) = attach(&run, streaming());
        let answer = service.oneshot(request).await.unwrap();

        tokio::time::sleep(secs(60)).await;

        assert_eq!(call.terminal_reason(), Some(TerminalReason::HardCeiling));
        assert_eq!(exactly(call.elapsed()), 40);
        let read = answer.into_body().read().await.whole();
        assert_eq!(error_in(&read)["error"]["code"], "max_turn_time");
    }
}

#[tokio::test(start_paused = true)]
async fn an_end_from_outside_is_noticed_at_once_behind_an_early_head() {
    let upstream = Upstream::script(Script::before_head().never());
    let ceiling = HardCeilingLayer::new(secs(3600));
    let service = LAYER
        .keep_alive(None)
        .layer(ceiling.layer(upstream.clone()));
    let run = Run::open();
    let (request, _) = attach(&run, streaming());
    let body = service.oneshot(request).await.unwrap().into_body();

    later(7, {
        let run = run.clone();
        move || run.end(TerminalReason::Aborted)
    });
    let start = tokio::time::Instant::now();
    let (read, end) = timed(body).await;

    end.unwrap();
    cut(read, [], (7, "aborted"));
    assert_eq!(exactly(start.elapsed()), 7);
    assert_eq!(upstream.dropped().reason, Some(TerminalReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn a_stream_behind_an_early_head_is_counted_once() {
    let late = || {
        let late = Script::sse().data(chat("a")).data(USAGE).data(DONE);
        Upstream::script(late.delayed(60))
    };
    let [by_us, further_in] = [Summaries::default(), Summaries::default()];

    let service = LAYER.layer(by_us.layer().layer(late()));
    Outcome::of(service.oneshot(streaming())).await.whole();
    let judging = StepTimeoutLayer::new(secs(300)).layer(late());
    let service = LAYER.layer(further_in.layer().layer(judging));
    Outcome::of(service.oneshot(streaming())).await.whole();

    for told in [by_us, further_in] {
        assert_eq!(told.tokens(), Some((7, 2)));
        assert_eq!(told.one().reason, TerminalReason::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_early_head_is_what_an_impatient_caller_waits_for() {
    let late = Script::sse().data(chat("a")).data(DONE).delayed(60);
    for (layer, cut) in [(LAYER, false), (super::LAYER, true)] {
        let upstream = Upstream::script(late.clone());
        let ceiling = HardCeilingLayer::new(secs(600)).caller_deadline(true);
        // The pump looks at the deadline, too.
        let service = layer.layer(PumpLayer::new().layer(ceiling.layer(upstream)));
        let mut request = streaming();
        let thirty = "30".parse().unwrap();
        request.headers_mut().insert("x-stainless-timeout", thirty);

        let answer = service.oneshot(request).await.unwrap();

        if cut {
            let reason = answer.extensions().get();
            assert_eq!(reason, Some(&TerminalReason::CallerDeadline));
        } else {
            let events = answer.into_body().read().await.whole();
            assert!(events.ends_with(DONE), "{events}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_silence_before_a_late_head_is_not_to_blame_for_what_fails_behind_it() {
    let late = Script::sse().repeat(6, 5.0, chat("a")).fail("reset");
    let upstream = Upstream::script(late.delayed(40));
    let ceiling = HardCeilingLayer::optional(None).caller_deadline(true);
    let request = with_header(streaming(), "x-stainless-read-timeout", "30");
    let (request, call) = attach(&Run::open(), request);

    let answer = LAYER.layer(ceiling.layer(upstream));
    let answer = answer.oneshot(request).await.unwrap();
    let events = answer.into_body().read().await.whole();

    assert!(events.contains("upstream_failed"), "{events}");
    let reason = TerminalReason::Failed(FailureClass::Transport);
    assert_eq!(call.terminal_reason(), Some(reason));
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_before_its_head_drops_the_call() {
    let upstream = Upstream::script(Script::before_head().never());
    let mut call = Box::pin(LAYER.layer(upstream.clone()).call(streaming()));
    assert!(poll_once(&mut call).is_pending());

    drop(call);

    assert!(upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_over_and_goes_on_is_not_looked_at_for_ever() {
    // Nobody takes the call over, so it is over with its request.
    let upstream = Upstream::script(Script::before_head().wait(600.0).fail("late"));
    let (request, call) = attach(&Run::open(), streaming());

    let answer = LAYER.layer(upstream.clone()).oneshot(request).await;

    assert_eq!(answer.unwrap().status(), StatusCode::BAD_GATEWAY);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert!(upstream.polls() < 10, "{}", upstream.polls());
}
