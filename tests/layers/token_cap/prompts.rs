//! Prompts whose upstream says nothing of their tokens.
//!
//! covers: H8

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::sleep;
use tower::{ServiceExt, service_fn};
use tower_agent::{
    BoxError, Candidate, NotCounted, OwnerCapLayer, OwnerCaps, PumpLayer, Run, RunRegistry,
    StepTimeoutLayer, TerminalReason, TokenCaps, run::Price,
};

use super::{CAPPED, capped, spent, ten, total, usage};
use crate::support::{
    DONE, FINISH, Outcome, Place, STOP, Script, Stack, StackService, TOKEN, Upstream, chat,
    content_block, failure, later, no_delay, poll_once, reason_of, secs, with_header,
};

type Prompt = Request<Full<Bytes>>;

/// About 100,000 tokens of text.
fn text() -> String {
    "word ".repeat(80_000)
}

fn post(path: &str, body: String) -> (Prompt, u64) {
    let tokens = (body.len() as u64).div_ceil(4);
    let request = Request::post(path).body(Full::from(body)).unwrap();
    (request, tokens)
}

fn chat_prompt(text: &str, stream: bool) -> (Prompt, u64) {
    let body = format!(
        r#"{{"model":"a","stream":{stream},"messages":[{{"role":"user","content":"{text}"}}]}}"#
    );
    post("/v1/chat/completions", body)
}

/// A prompt for each of the APIs, and a stream that says nothing of tokens.
fn dialects() -> [(Prompt, u64, Script); 3] {
    let (text, stream) = (text(), Script::sse());
    let (chat_prompt, chat_tokens) = chat_prompt(&text, true);
    let (responses, responses_tokens) = post(
        "/v1/responses",
        format!(r#"{{"model":"a","stream":true,"input":"{text}"}}"#),
    );
    let (messages, messages_tokens) = post(
        "/v1/messages",
        format!(
            r#"{{"model":"a","stream":true,"messages":[{{"role":"user","content":"{text}"}}]}}"#
        ),
    );
    let delta = r#"{"type":"response.output_text.delta","delta":"hi"}"#;
    let done = r#"{"type":"response.completed","response":{"status":"completed"}}"#;
    let event = |json: &str| format!("data: {json}\n\n");
    [
        (
            chat_prompt,
            chat_tokens,
            stream.clone().data(chat("hi")).data(FINISH).data(DONE),
        ),
        (
            responses,
            responses_tokens,
            stream.clone().data(event(delta)).data(event(done)),
        ),
        (
            messages,
            messages_tokens,
            stream.data(content_block("hi")).data(STOP),
        ),
    ]
}

fn unary() -> Script {
    Script::json().data(r#"{"choices":[{"message":{"content":"hi"}}]}"#)
}

async fn ask(service: &StackService, run: &Run, prompt: Prompt) -> Outcome {
    service.ask(run.attach(prompt)).await
}

/// The estimate of the prompts of this run, and all its input tokens.
fn input(run: &Run) -> (u64, u64) {
    let spent = spent(run);
    (spent.estimated_input_tokens, spent.input_tokens)
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_usage_counts_its_prompt_and_the_next_is_refused() {
    for (prompt, tokens, script) in dialects() {
        let path = prompt.uri().path().to_owned();
        let upstream = Upstream::script(script);
        let service = capped(total(100_000)).terminal().retry(2).build(&upstream);
        let run = Run::open();

        ask(&service, &run, prompt.clone()).await.whole();

        assert_eq!(input(&run), (tokens, tokens), "{path}");
        assert_eq!(run.usage(), None);
        let next = ask(&service, &run, prompt).await;
        assert_eq!((next.status, upstream.calls()), (422, 1), "{path}");
        let end = run.terminated().unwrap();
        assert_eq!(
            (end.reason.clone(), end.is_estimated()),
            (TerminalReason::TokenCap, true)
        );
        assert!(
            end.message().contains("its 100000 tokens, estimated"),
            "{}",
            end.message()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_counts_its_prompt_once_it_was_sent() {
    let (prompt, tokens) = chat_prompt(&text(), false);
    let answers = [
        ("before the head", Script::before_head().never()),
        ("in the body", Script::json().data("{\"choices\":[").never()),
        ("in a stream", Script::sse().data(TOKEN).never()),
    ];
    for (left, script) in answers {
        for layers in ["retry", "fallback", "both", "pump"] {
            let upstream = Upstream::script(script.clone());
            let stack = capped(total(100_000));
            let stack = match layers {
                "retry" => stack.retry(2),
                "fallback" => stack.candidates(["a", "b"]),
                "both" => stack.candidates(["a", "b"]).retry(2),
                _ => stack.candidates(["a", "b"]).retry(2).pump(),
            };
            let service = stack.build(&upstream);
            let run = Run::open();
            let call = service.ask(run.attach(prompt.clone()));

            assert!(tokio::time::timeout(secs(1), call).await.is_err());
            sleep(secs(1)).await;

            assert_eq!(upstream.calls(), 1);
            assert_eq!(input(&run), (tokens, tokens), "{left}, {layers}");
            assert_eq!(run.in_flight(), 0);
            let next = ask(&service, &run, prompt.clone()).await;
            assert_eq!(
                (next.reason, upstream.calls()),
                (CAPPED, 1),
                "{left}, {layers}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_left_before_its_request_was_sent_counts_nothing() {
    let (prompt, _) = chat_prompt(&text(), false);
    let stack = || capped(total(100_000)).candidates(["a", "b"]).retry(2);
    let run = Run::open();

    // While the service below is not ready.
    let upstream = Upstream::script(unary()).busy(secs(10));
    let service = stack().build(&upstream);
    ask(&service, &run, prompt.clone()).await.whole();
    let before = input(&run);
    let mut waiting = Box::pin(service.clone().ask(run.attach(prompt.clone())));
    assert!(poll_once(&mut waiting).is_pending());
    drop(waiting);
    assert_eq!((upstream.calls(), input(&run)), (1, before));

    // Between two attempts.
    let run = Run::open();
    let failed = failure(503).header("retry-after", "10");
    let upstream = Upstream::scripts([failed, unary()]);
    let budget = tower_agent::RetryBudget::new();
    let service = capped(total(100_000)).budget(budget).build(&upstream);
    let call = service.ask(run.attach(prompt.clone()));
    assert!(tokio::time::timeout(secs(1), call).await.is_err());
    assert_eq!((upstream.calls(), input(&run)), (1, (0, 0)));
}

/// It costs nothing, and a caller's own mistake must not use up its cap.
#[tokio::test(start_paused = true)]
async fn what_is_refused_or_fails_counts_nothing() {
    let (prompt, _) = chat_prompt(&text(), true);
    let error = r#"{"error":{"message":"no","type":"server_error"}}"#;
    let answers = [
        ("400", failure(400)),
        ("429", failure(429)),
        ("503", failure(503)),
        (
            "a failure that is left",
            Script::json().status(503).data("{").never(),
        ),
        ("no connection", Script::before_head().fail("refused")),
        ("an error under 200", Script::json().data(error)),
        (
            "an error event",
            Script::sse().data(format!("data: {error}\n\n")),
        ),
    ];
    for (what, script) in answers {
        for attempts in [1, 3] {
            let upstream = Upstream::script(script.clone());
            let stack = capped(total(100_000))
                .candidates(["a", "b"])
                .retry(attempts);
            let run = Run::open();

            let call = stack.build(&upstream).ask(run.attach(prompt.clone()));
            let _left = tokio::time::timeout(secs(60), call).await;

            assert!(upstream.calls() > 0);
            assert_eq!(input(&run), (0, 0), "{what}, {attempts}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_whose_upstream_read_the_prompt_counts_it_once_at_its_own_price() {
    let (prompt, tokens) = chat_prompt(&text(), false);
    let dear =
        |name: &'static str, price| Candidate::new(name).price(Price::per_million(price, 0.0));
    for (first, times, cost) in [
        (failure(503), 1, 2.0),
        (Script::before_head().never(), 2, 3.0),
    ] {
        let upstream = Upstream::scripts([first, unary()]);
        let stack = capped(total(1_000_000))
            .fallback([dear("a", 1.0), dear("b", 2.0)])
            .retry(1);
        let stack = stack.layer(Place::AttemptStep, StepTimeoutLayer::new(secs(5)));
        let run = Run::open();

        ask(&stack.build(&upstream), &run, prompt.clone())
            .await
            .whole();

        assert_eq!(upstream.calls(), 2);
        assert_eq!(input(&run), (times * tokens, times * tokens));
        let of_prompts = tokens as f64 * cost / 1e6;
        assert!(
            (spent(&run).cost - of_prompts).abs() < 1e-9,
            "{:?}",
            spent(&run)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_upstream_states_is_never_beside_an_estimate() {
    let (prompt, _) = chat_prompt(&text(), true);
    for stated in [7, 250_000] {
        let stream = Script::sse()
            .data(ten())
            .data(FINISH)
            .data(usage(stated, 3))
            .data(DONE);
        let whole = format!(
            r#"{{"choices":[],"usage":{{"prompt_tokens":{stated},"completion_tokens":3}}}}"#
        );
        for script in [stream, Script::json().data(whole)] {
            let upstream = Upstream::script(script);
            let service = capped(total(1_000_000)).retry(1).build(&upstream);
            let run = Run::open();
            ask(&service, &run, prompt.clone()).await.whole();
            assert_eq!(input(&run), (0, stated.into()));
        }
    }
}

/// The caller leaves, and the call goes on: its prompt counts, until the upstream says what it was.
#[tokio::test(start_paused = true)]
async fn a_usage_that_comes_after_the_caller_has_left_replaces_the_estimate() {
    let (prompt, tokens) = chat_prompt(&text(), false);
    for stated in [None, Some(7), Some(250_000)] {
        let registry = RunRegistry::new();
        let usage = stated.map_or_else(String::new, |stated| {
            format!(r#","usage":{{"prompt_tokens":{stated},"completion_tokens":3}}"#)
        });
        let answer = Script::before_head().wait(20.0).head("application/json");
        let upstream = Upstream::script(answer.data(format!(r#"{{"choices":[]{usage}}}"#)));
        let caps = OwnerCaps::new().tokens_per_hour(total(200_000));
        let service = capped(total(1_000_000))
            .run(&registry)
            .layer(Place::Pump, PumpLayer::new().drain(Some(secs(60))))
            .layer(Place::OwnerCap, OwnerCapLayer::new(registry.clone(), caps))
            .candidates(["a", "b"])
            .retry(2)
            .build(&upstream);
        let named = with_header(prompt.clone(), "x-run-id", "r");
        let call = service.ask(named.clone());
        assert!(tokio::time::timeout(secs(1), call).await.is_err());
        sleep(secs(1)).await;
        let run = registry.find(&"r".parse().unwrap()).remove(0);
        assert_eq!((run.in_flight() > 0, input(&run)), (true, (tokens, tokens)));

        sleep(secs(60)).await;

        let expected = stated.map_or((tokens, tokens), |stated| (0, stated));
        assert_eq!((run.in_flight(), input(&run)), (0, expected));
        // The owner's count is the same.
        let next = service.ask(named).await;
        let is_over = expected.1 > 200_000;
        assert_eq!(next.error.is_some(), is_over, "{stated:?}: {next:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_pays_for_prompts_in_streams_and_in_calls_that_are_left() {
    for is_left in [false, true] {
        let (prompt, _) = chat_prompt(&text(), !is_left);
        let script = match is_left {
            true => Script::before_head().never(),
            false => Script::sse().data(chat("hi")).data(FINISH).data(DONE),
        };
        for caps in [total(100_000), TokenCaps::new().max_cost(0.2)] {
            let registry = RunRegistry::new();
            let upstream = Upstream::script(script.clone());
            let caps = OwnerCaps::new().tokens_per_hour(caps);
            let service = Stack::default()
                .run(&registry)
                .layer(Place::OwnerCap, OwnerCapLayer::new(registry.clone(), caps))
                .fallback([Candidate::new("a").price(Price::per_million(2.0, 8.0))])
                .retry(2)
                .build(&upstream);
            let mut refused = 0;
            for _ in 0..25 {
                let call = service.ask(prompt.clone());
                let outcome = tokio::time::timeout(secs(1), call).await;
                refused += usize::from(outcome.is_ok_and(|outcome| outcome.reason == CAPPED));
            }
            assert_eq!((upstream.calls(), refused), (1, 24), "{caps:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_counts_the_same_at_any_length() {
    let pixels: String = (0..90_000_u32)
        .map(|at| char::from(b"iVBORw0KGgoAAA5f"[(at.wrapping_mul(2_654_435_761) >> 28) as usize]))
        .collect();
    let around = chat_prompt("", false).1;
    for image in [pixels.clone(), format!("data:image/png;base64,{pixels}")] {
        let upstream = Upstream::script(unary());
        let service = capped(total(100_000)).retry(1).build(&upstream);
        let run = Run::open();
        ask(&service, &run, chat_prompt(&image, false).0)
            .await
            .whole();
        assert_eq!(input(&run), (around + 1500, around + 1500));
    }
}

#[tokio::test(start_paused = true)]
async fn what_no_model_generates_for_and_what_is_free_counts_nothing() {
    let free = |mut request: Prompt| {
        *request.uri_mut() = "/v1/embeddings".parse().unwrap();
        request
    };
    let (prompt, _) = chat_prompt(&text(), false);
    let run = Run::open();
    let upstream = Upstream::script(Script::json().data(r#"{"data":[]}"#));
    let service = capped(total(100_000)).retry(1).build(&upstream);
    ask(&service, &run, free(prompt.clone())).await.whole();
    assert_eq!(input(&run), (0, 0));

    let from_cache = |mut answer: http::Response<_>| {
        answer.extensions_mut().insert(NotCounted);
        answer
    };
    let layer = tower::util::MapResponseLayer::new(from_cache);
    let service = capped(total(100_000))
        .retry(1)
        .layer(Place::Innermost, layer);
    ask(&service.build(&Upstream::script(unary())), &run, prompt)
        .await
        .whole();
    assert_eq!(input(&run), (0, 0));
}

/// Once it was refused a connection, it waits for a probe: no upstream has its prompt.
#[tokio::test(start_paused = true)]
async fn a_call_that_a_health_gate_holds_counts_nothing() {
    let refused = || -> BoxError {
        let error = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        tower_agent::llm::failure::TransportError::new(error).into()
    };
    let (prompt, tokens) = chat_prompt(&text(), false);
    for heals in [false, true] {
        let upstream = Upstream::scripts([
            Script::before_head().fail_with(refused),
            Script::before_head().never(),
        ]);
        let probe = service_fn(move |()| async move { Ok::<_, BoxError>(heals) });
        let gate = tower_agent::HealthGateLayer::new(probe);
        let service = capped(total(1_000_000))
            .budget(no_delay())
            .layer(Place::Gate, gate);
        let run = Run::open();
        let call = service.build(&upstream).ask(run.attach(prompt.clone()));
        assert!(tokio::time::timeout(secs(20), call).await.is_err());
        let expected = if heals { tokens } else { 0 };
        assert_eq!(input(&run), (expected, expected), "{heals}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_aborted_or_stopped_pays_for_what_it_sent() {
    let (prompt, tokens) = chat_prompt(&text(), false);
    let upstream = Upstream::script(Script::before_head().never());
    let service = capped(total(1_000_000))
        .candidates(["a", "b"])
        .retry(2)
        .build(&upstream);
    let run = Run::open();
    later(1, {
        let run = run.clone();
        move || run.end(TerminalReason::Aborted)
    });

    let error = service
        .oneshot(run.attach(prompt))
        .await
        .map(drop)
        .unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert_eq!(input(&run), (tokens, tokens));
}
