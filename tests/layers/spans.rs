//! The spans of runs, calls, attempts and tools.
//!
//! covers: H10

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use http::Request;
use tokio::task::yield_now;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer, Owner,
    PumpLayer, RetryBudgetLayer, Run, RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason,
    TurnCapLayer,
};
use tracing::{
    Event, Metadata, Subscriber,
    span::{Attributes, Id, Record},
    subscriber::NoSubscriber,
};
use tracing_subscriber::{
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

use crate::{
    reasons::all,
    support::{
        DONE, FINISH, LogCapture, PRELUDE, ReadExt, Script, SpanCapture, SpanRecord, Stack, USAGE,
        Upstream, attach, call_of, chat, failure, healthy, no_delay, poll_once, prompt, request,
        secs, with_header,
    },
};

fn counted() -> Script {
    let begun = Script::sse().data(PRELUDE);
    let content = begun.wait(2.0).data(chat("a"));
    content.wait(1.0).data(FINISH).data(USAGE).data(DONE)
}

fn errors(spans: &[(usize, SpanRecord)]) -> Vec<Option<&str>> {
    spans.iter().map(|(_, span)| span.error()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_has_one_span_and_each_of_its_tries_one_below_it() {
    let upstream = Upstream::scripts([failure(503), failure(500), counted()]);
    let candidates = [
        Candidate::new("gpt-1").base_url("http://one.example:8000/v1"),
        Candidate::new("gpt-2").base_url("https://two.example/v1"),
    ];
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(PumpLayer::new())
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(secs(1800)))
        .layer(ModelFallbackLayer::new(candidates.map(Result::unwrap)).budget(no_delay()))
        .layer(RetryBudgetLayer::new(
            no_delay().max_attempts_per_candidate(2),
        ))
        .layer(StepTimeoutLayer::new(secs(120)))
        .service(upstream.clone());
    let request = with_header(prompt("gpt-1"), "x-run-id", "r-1");
    let request = with_header(request, "x-session-id", "s-1");
    let heard = SpanCapture::start();

    let body = service.oneshot(request).await.unwrap().into_body();
    body.read().await.end.unwrap();

    assert_eq!(heard.closed().len(), 4);
    let (at, call) = heard.one("call");
    assert_eq!((call.parent, call.error()), (None, None));
    for (field, value) in [
        ("otel.name", "chat gpt-1"),
        ("otel.kind", "client"),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", "openai"),
        ("gen_ai.request.model", "gpt-1"),
        ("gen_ai.response.model", "gpt-2"),
        ("gen_ai.response.finish_reasons", "stop"),
        ("gen_ai.response.time_to_first_chunk", "2.0"),
        ("gen_ai.conversation.id", "s-1"),
        ("tower_agent.run.id", "r-1"),
    ] {
        assert_eq!(call.get(field), Some(value), "{field}");
    }
    assert!(call.fields.contains_key("gen_ai.usage.input_tokens"));
    assert!(call.fields.contains_key("gen_ai.usage.output_tokens"));

    let tries = heard.of("attempt");
    assert!(tries.iter().all(|(_, span)| span.parent == Some(at)));
    assert_eq!(errors(&tries), [Some("server"), Some("server"), None]);
    let fields = [
        "otel.name",
        "gen_ai.request.model",
        "server.address",
        "server.port",
        "http.request.resend_count",
        "http.response.status_code",
    ];
    let told = tries.iter().map(|(_, span)| fields.map(|it| span.get(it)));
    let one = [
        Some("attempt gpt-1"),
        Some("gpt-1"),
        Some("one.example"),
        Some("8000"),
    ];
    let two = [
        Some("attempt gpt-2"),
        Some("gpt-2"),
        Some("two.example"),
        Some("443"),
    ];
    let with = |server: [_; 4], resent, status| {
        let [name, model, host, port] = server;
        [name, model, host, port, resent, Some(status)]
    };
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            with(one, None, "503"),
            with(one, Some("1"), "500"),
            with(two, Some("2"), "200")
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn every_reason_is_the_error_type_of_its_call_and_of_its_run() {
    for (reason, name, ..) in all() {
        let heard = SpanCapture::start();
        let run = Run::open();
        let (request, call) = call_of(&run);
        let upstream = Upstream::script(Script::sse().data(chat("a")).never());
        let stack = Stack::default().step(60).build(&upstream);
        let mut body = stack.oneshot(request).await.unwrap().into_body();
        body.token().await;

        call.end(reason.clone());
        assert_eq!(heard.one("call").1.closed, 0, "something of it is left");
        drop(body);

        let error = Some(name).filter(|_| reason != TerminalReason::Completed);
        let (_, span) = heard.one("call");
        assert_eq!((span.error(), span.closed), (error, 1), "{name}");
        assert_eq!(heard.one("invoke_agent").1.closed, 0);

        run.end(reason.clone());
        run.end(TerminalReason::Aborted);
        let spans = heard.closed();
        assert_eq!(spans.len(), 2);
        let (at, span) = heard.one("invoke_agent");
        assert_eq!(span.error(), error, "{name}");
        assert_eq!(heard.one("call").1.parent, Some(at));
        let id = run.id().to_string();
        assert!(
            spans
                .iter()
                .all(|it| it.get("tower_agent.run.id") == Some(&*id))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_closes_its_span_once_its_work_is_gone() {
    let heard = SpanCapture::start();
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let stack = Stack::default().candidates(["a"]).build(&upstream);
    let answer = stack.oneshot(run.attach(prompt("a"))).await.unwrap();

    run.end(TerminalReason::LoopDetected);
    assert!(heard.all().iter().all(|span| span.closed == 0));
    drop(answer);

    let spans = heard.closed();
    let told: Vec<_> = spans.iter().map(|it| (it.kind, it.error())).collect();
    let reason = Some("loop_detected");
    let all = ["invoke_agent", "call", "attempt"].map(|kind| (kind, reason));
    assert_eq!(told, all);
    assert!(run.span().is_disabled());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_closes_the_spans_of_its_call_at_each_stage() {
    for polled in [false, true] {
        for head in [false, true] {
            let script = match head {
                true => Script::sse().data(chat("a")).never(),
                false => Script::before_head().never(),
            };
            let upstream = Upstream::script(script);
            let stack = Stack::default().disconnect().pump().candidates(["a"]);
            let stack = stack.retry(2).build(&upstream);
            let heard = SpanCapture::start();

            let mut call = Box::pin(stack.oneshot(prompt("a")));
            if polled {
                assert!(poll_once(&mut call).is_pending() || head);
            }
            drop(call);
            yield_now().await;

            for span in heard.closed() {
                // A future that was never polled has not called the service.
                assert!(polled, "{span:?}");
                assert_eq!(span.error(), Some("client_disconnect"), "{span:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_of_an_attempt_is_the_class_of_its_failure() {
    let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).attempt_step(10);
    let heard = SpanCapture::start();

    stack.build(&upstream).ask(prompt("a")).await.whole();

    heard.closed();
    assert_eq!(errors(&heard.of("attempt")), [Some("step_timeout"), None]);
    assert_eq!(heard.one("call").1.error(), None);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_gets_no_ready_is_a_failed_attempt() {
    let down = || Some("down".into());
    let upstream = Upstream::script(healthy()).readiness([None, down()]);
    upstream.play("a", failure(500));
    let heard = SpanCapture::start();

    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let outcome = stack.ask(prompt("a")).await;

    assert!(outcome.error.is_some());
    heard.closed();
    let tries = heard.of("attempt");
    assert_eq!(errors(&tries), [Some("server"), Some("transport")]);
    assert_eq!(tries[1].1.get("gen_ai.request.model"), Some("b"));
    assert_eq!(tries[1].1.get("http.request.resend_count"), None);
}

/// A caller may write ten megabytes there, and a collector then refuses the whole batch.
#[tokio::test(start_paused = true)]
async fn a_long_model_is_cut_in_the_span() {
    let heard = SpanCapture::start();
    let model = format!("a{}", "\u{e9}".repeat(1000));
    let stack = Stack::default().candidates(["a"]);
    let stack = stack.build(&Upstream::script(healthy()));

    drop(stack.ask(prompt(&model)).await);

    let (_, call) = heard.one("call");
    let shown = call.get("gen_ai.request.model").unwrap();
    assert_eq!(shown.len(), 255, "{shown}");
    assert!(model.starts_with(shown));
    assert_eq!(call.get("otel.name"), Some(&*format!("chat {shown}")));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_of_the_program_has_a_span() {
    let heard = SpanCapture::start();
    let run = Run::open();
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let tries = service_fn(move |request: Request<()>| {
        let (call, upstream) = (
            request.extensions().get::<Run>().unwrap().clone(),
            upstream.clone(),
        );
        async move {
            let again = || Request::post("http://one.example/v1/chat/completions").body(());
            for _ in 0..2 {
                let (request, upstream) = (again().unwrap(), upstream.clone());
                let answer = call.attempt(request, |request| upstream.oneshot(request))?;
                let answer = answer.await?;
                if answer.status().is_success() {
                    return Ok(answer);
                }
            }
            Err::<_, BoxError>("all failed".into())
        }
    });
    let mut service = StepTimeoutLayer::new(secs(60)).layer(tries);

    let answer = service.call(run.attach(request())).await.unwrap();
    answer.into_body().read().await.end.unwrap();
    run.end(TerminalReason::Completed);

    heard.closed();
    let tries = heard.of("attempt");
    assert_eq!(errors(&tries), [Some("server"), None]);
    let call = heard.one("call").0;
    for (at, (_, span)) in tries.iter().enumerate() {
        assert_eq!(span.parent, Some(call));
        assert_eq!(span.get("server.address"), Some("one.example"));
        let resent = [None, Some("1")][at];
        assert_eq!(span.get("http.request.resend_count"), resent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_has_a_span_below_its_run() {
    let heard = SpanCapture::start();
    let run = Run::open();
    let ok = run.tool("good").call_id("call_1");
    ok.call(async { Ok::<_, String>(()) }).await.unwrap();
    let failed = run.tool("bad").call(async { Err::<(), _>("no") }).await;
    failed.unwrap_err();
    let slow = run.tool("slow").window(secs(5));
    slow.watch(std::future::pending::<()>()).await.unwrap_err();
    let mut dropped = Box::pin(run.tool("left").watch(std::future::pending::<()>()));
    assert!(poll_once(&mut dropped).is_pending());
    drop(dropped);
    run.end(TerminalReason::Completed);

    heard.closed();
    let above = heard.one("invoke_agent").0;
    let tools = heard.of("execute_tool");
    let expected = [
        None,
        Some("tool_failed"),
        Some("step_timeout"),
        Some("aborted"),
    ];
    assert_eq!(errors(&tools), expected);
    for ((_, tool), name) in tools.iter().zip(["good", "bad", "slow", "left"]) {
        assert_eq!(tool.parent, Some(above));
        assert_eq!(
            tool.get("otel.name"),
            Some(&*format!("execute_tool {name}"))
        );
        assert_eq!(tool.get("otel.kind"), Some("internal"));
        assert_eq!(tool.get("gen_ai.tool.name"), Some(name));
    }
    assert_eq!(tools[0].1.get("gen_ai.tool.call.id"), Some("call_1"));
}

#[tokio::test(start_paused = true)]
async fn the_run_of_a_sub_agent_has_a_span_below_its_parents() {
    let heard = SpanCapture::start();
    let registry = RunRegistry::new();
    let id = |id: &str| id.parse().unwrap();
    let run = registry.open_in(Owner::anonymous(), id("r-1"), id("s-1"));
    run.name_agent("planner");
    let children = [run.child(), run.child_detached(), run.child_asked(secs(1))];
    children[0].name_agent("coder");
    assert_eq!(registry.open(Owner::anonymous(), id("r-1")).id(), run.id());
    for child in &children {
        child.end(TerminalReason::Completed);
    }
    run.end(TerminalReason::Shutdown);

    let spans = heard.closed();
    let parents: Vec<_> = spans.iter().map(|span| span.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(0), Some(0)]);
    let names = spans.iter().map(|span| span.get("otel.name").unwrap());
    let names: Vec<_> = names.take(3).collect();
    assert_eq!(
        names,
        ["invoke_agent planner", "invoke_agent coder", "invoke_agent"]
    );
    assert_eq!(spans[0].get("gen_ai.agent.name"), Some("planner"));
    assert_eq!(spans[0].get("gen_ai.conversation.id"), Some("s-1"));
    assert_eq!(spans[0].get("tower_agent.run.id"), Some("r-1"));
    assert_eq!(spans[0].error(), Some("shutdown"));
}

/// A subscriber may close a chain of spans by recursion.
#[tokio::test(start_paused = true)]
async fn a_chain_of_sub_agents_is_no_endless_chain_of_spans() {
    let heard = SpanCapture::start();
    let mut runs = vec![Run::open()];
    for _ in 0..200 {
        runs.push(runs[runs.len() - 1].child());
    }
    runs[0].end(TerminalReason::Completed);
    drop(runs);

    let spans = heard.closed();
    let roots = spans.iter().filter(|span| span.parent.is_none()).count();
    assert_eq!((spans.len(), roots), (201, 4));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_without_an_end_closes_its_span() {
    let heard = SpanCapture::start();
    let run = Run::open();
    let (request, _) = call_of(&run);
    drop(request);
    drop(run);

    let spans = heard.closed();
    assert_eq!((spans.len(), spans[0].error()), (1, None));
}

/// A node that a layer took for the call, and in which another layer opens one.
#[tokio::test(start_paused = true)]
async fn a_call_has_one_span_whichever_layer_opens_it() {
    for id in [None, Some("r-1")] {
        let registry = RunRegistry::new();
        let known = registry.open(Owner::anonymous(), "r-1".parse().unwrap());
        let service = ServiceBuilder::new()
            .layer(HardCeilingLayer::new(secs(60)))
            .layer(RunLayer::new(registry.clone()))
            .layer(TurnCapLayer::new(5))
            .service(Upstream::script(healthy()));
        let request = match id {
            Some(id) => with_header(request(), "x-run-id", id),
            None => request(),
        };
        let heard = SpanCapture::start();

        let answer = service.oneshot(request).await.unwrap();
        answer.into_body().read().await.end.unwrap();

        let [span] = &heard.closed()[..] else {
            panic!("{:?}", heard.all())
        };
        assert_eq!((span.kind, span.error()), ("call", None));
        let run = span.get("tower_agent.run.id");
        assert_eq!(run == Some("r-1"), id.is_some(), "{run:?}");
        drop(known);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_a_request_is_below_the_span_that_is_entered() {
    let heard = SpanCapture::start();
    let server = tracing::info_span!("server");
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let stack = Stack::default().run(&RunRegistry::new()).step(60);
    let mut stack = stack.build(&upstream);
    for path in [
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/completions",
        "/v1/made-up",
    ] {
        let request = Request::post(path).body(()).unwrap();
        let call = server.in_scope(|| stack.call(with_header(request, "x-run-id", "r")));
        call.await.unwrap().into_body().read().await.end.unwrap();
    }
    drop(server);

    heard.closed();
    let calls = heard.of("call");
    let told = calls.iter().map(|(_, call)| {
        assert_eq!(call.parent, Some(0));
        ["otel.name", "gen_ai.provider.name"].map(|field| call.get(field).unwrap_or("-"))
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [
            ["embeddings", "openai"],
            ["chat", "anthropic"],
            ["count_tokens", "anthropic"],
            ["text_completion", "openai"],
            ["other", "-"],
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_span_of_an_attempt_is_that_of_the_node_in_its_request() {
    let heard = SpanCapture::start();
    let upstream = Upstream::script(healthy());
    let seen = service_fn(move |request: Request<_>| {
        let span = request.extensions().get::<Run>().unwrap().span();
        span.record("error.type", "seen");
        drop(span);
        upstream.clone().oneshot(request)
    });
    let service = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new([Candidate::new("a")]))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(seen);

    let answer = service.oneshot(prompt("a")).await.unwrap();
    answer.into_body().read().await.end.unwrap();

    heard.closed();
    let (_, attempt) = heard.one("attempt");
    assert_eq!(attempt.get("error.type"), Some("seen"));
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_wants_no_span_gets_none() {
    // The subscriber of all threads wants every span; this thread's wants none.
    let _heard = LogCapture::start();
    let _none = tracing::subscriber::set_default(NoSubscriber::default());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));
    let upstream = Upstream::script(healthy());
    let stack = Stack::default().candidates(["a"]).build(&upstream);

    stack.ask(request).await.whole();

    assert!(run.span().is_disabled() && call.span().is_disabled());
}

/// Writes down, for each line and each closed span of the library, whether its run had settled.
struct LooksAtRun(Arc<Mutex<LooksAt>>);

#[derive(Default)]
struct LooksAt {
    run: Option<Run>,
    seen: Vec<(&'static str, bool)>,
}

impl LooksAtRun {
    fn look(&self, metadata: &Metadata<'static>, kind: &'static str) {
        let mut looks = self.0.lock().unwrap();
        if let ("tower_agent", Some(run)) = (metadata.target(), &looks.run) {
            let mut settled = Box::pin(run.settled());
            looks.seen.push((kind, poll_once(&mut settled).is_ready()));
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for LooksAtRun {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.look(event.metadata(), "line");
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let metadata = context.metadata(&id).unwrap();
        self.look(metadata, metadata.name());
    }
}

/// A program that waits until its runs have settled, and then exits, loses no line and no span.
#[tokio::test(start_paused = true)]
async fn a_run_settles_after_its_lines_were_written_and_its_spans_have_closed() {
    let looks = Arc::<Mutex<LooksAt>>::default();
    let subscriber = tracing_subscriber::registry().with(LooksAtRun(Arc::clone(&looks)));
    let _set = tracing::subscriber::set_default(subscriber);
    let named = with_header(request(), "x-run-id", "r");
    let of_program = Run::open().attach(request());
    let (opens, clock) = (
        Stack::default().run(&RunRegistry::new()),
        Stack::default().ceiling(60),
    );
    let retry = Stack::default().retry(1);
    for (stack, request, seen) in [
        (opens.clone().ceiling(60), request(), &["line", "call"][..]),
        (opens.clone().ceiling(60), named, &["line", "call"]),
        // The first of the layers opens a run, which is the call.
        (clock.clone(), request(), &["line", "call"]),
        (retry, request(), &["attempt", "line", "call"]),
        (opens.retry(1), request(), &["attempt", "line", "call"]),
        // A run of the program's has a span.
        (clock, of_program, &["line", "call", "invoke_agent"]),
    ] {
        let upstream = Upstream::script(Script::sse().data(chat("a")).never());
        let service = stack.build(&upstream);
        let mut body = service.oneshot(request).await.unwrap().into_body();
        body.token().await;
        let run = upstream.run();
        let path = std::iter::successors(Some(run), Run::parent);
        let run = path.last().unwrap();
        looks.lock().unwrap().run = Some(run.clone());

        run.end(TerminalReason::Shutdown);
        drop(body);

        assert!(poll_once(&mut Box::pin(run.settled())).is_ready());
        let seen: Vec<_> = seen.iter().map(|kind| (*kind, false)).collect();
        assert_eq!(std::mem::take(&mut *looks.lock().unwrap()).seen, seen);
    }
}

/// A node that was closed ends because its last work leaves.
#[tokio::test(start_paused = true)]
async fn a_closed_run_settles_after_its_lines_were_written_and_its_spans_have_closed() {
    let looks = Arc::<Mutex<LooksAt>>::default();
    let subscriber = tracing_subscriber::registry().with(LooksAtRun(Arc::clone(&looks)));
    let _set = tracing::subscriber::set_default(subscriber);
    let registry = RunRegistry::new();
    let script = Script::sse().data(chat("a")).wait(1.0).data(DONE);
    let upstream = Upstream::scripts([healthy(), script.clone(), script]);
    let named = || with_header(request(), "x-run-id", "r");
    let service = RunLayer::new(registry.clone()).layer(upstream.clone());
    let whole = service.clone().oneshot(named()).await.unwrap();
    whole.into_body().read().await.whole();
    let mut body = service.oneshot(named()).await.unwrap().into_body();
    body.token().await;
    let run = registry.find(&"r".parse().unwrap()).remove(0);
    looks.lock().unwrap().run = Some(run.clone());

    let drained = registry.drain(secs(60));
    body.read().await.whole();

    assert_eq!(drained.await, 0);
    let seen = [("line", false), ("call", false), ("line", false)];
    assert_eq!(std::mem::take(&mut *looks.lock().unwrap()).seen, seen);

    // The pump opens the run, which is the call, and reads it on for a caller who has left.
    let pump = PumpLayer::new().drain(Some(secs(60)));
    let answer = pump.layer(upstream.clone()).oneshot(request()).await;
    let mut body = answer.unwrap().into_body();
    body.token().await;
    let run = upstream.run();
    looks.lock().unwrap().run = Some(run.clone());
    drop(body);

    assert_eq!(run.settled().await, TerminalReason::ClientDisconnect);
    let seen = [("line", false), ("call", false)];
    assert_eq!(std::mem::take(&mut *looks.lock().unwrap()).seen, seen);
}

/// Panics at each call about a span.
struct Panics(AtomicU64);

impl Panics {
    fn panic(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("the subscriber panics");
    }
}

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span()
    }
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        if attributes.metadata().name() == "attempt" {
            self.panic();
        }
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {
        self.panic();
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
    fn clone_span(&self, id: &Id) -> Id {
        self.panic();
        id.clone()
    }
    fn try_close(&self, _: Id) -> bool {
        self.panic();
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_takes_no_call_down() {
    let subscriber = Arc::new(Panics(AtomicU64::new(0)));
    let counted = Arc::clone(&subscriber);
    let _local = tracing::subscriber::set_default(subscriber);
    let run = Run::open();
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().candidates(["a"]).retry(2).build(&upstream);

    stack.ask(run.attach(prompt("a"))).await.whole();
    run.tool("t").watch(async {}).await.unwrap();
    assert!(run.span().is_disabled());
    run.end(TerminalReason::Aborted);

    assert_eq!(upstream.calls(), 2);
    // The ends of the call, the tool and the run alone are six: values, and the close.
    assert!(counted.0.load(Ordering::Relaxed) >= 6);
}
