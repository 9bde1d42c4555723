//! What the log says of calls and runs that are over.
//!
//! covers: H10

use std::sync::{Arc, Mutex};

use http::HeaderValue;
use tokio::task::yield_now;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer, Owner, PumpLayer,
    RetryBudgetLayer, Run, RunLayer, RunRegistry, Scope, StepTimeoutLayer, TerminalReason,
    TerminalResponseLayer, run::ReasonClass,
};
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::{
    reasons::all,
    support::{
        DONE, FINISH, LogCapture, LogEvent, Outcome, PRELUDE, ReadExt, Script, Stack, USAGE,
        Upstream, WakeCount, call_of, chat, failure, no_delay, poll_once, prompt, request,
        request_of, secs, with_header,
    },
};

fn calls(heard: &LogCapture) -> Vec<LogEvent> {
    heard.events("call ended")
}

fn runs(heard: &LogCapture) -> Vec<LogEvent> {
    heard.events("run ended")
}

/// The one line there is of a call, and none of a run.
fn one_call(heard: &LogCapture) -> LogEvent {
    let (calls, runs) = (calls(heard), runs(heard));
    assert_eq!((calls.len(), runs.len()), (1, 0), "{calls:?} {runs:?}");
    calls[0].clone()
}

fn counted() -> Script {
    let begun = Script::sse().data(PRELUDE).data(chat("a"));
    begun.wait(1.0).data(FINISH).data(USAGE).data(DONE)
}

const fn level(class: ReasonClass) -> &'static str {
    match class {
        ReasonClass::Success => "DEBUG",
        ReasonClass::Limit => "WARN",
        _ => "INFO",
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_of_many_calls_has_its_line_after_a_call_of_it_got_another_id() {
    let heard = LogCapture::start();
    let registry = RunRegistry::new();
    let _known = registry.open(Owner::anonymous(), "r".parse().unwrap());
    let run = Run::open();
    let upstream = Upstream::script(counted());
    let stack = Stack::default().run(&registry).build(&upstream);
    let request = with_header(request_of(&run), "x-run-id", "r");
    stack.ask(request).await.whole();
    assert!(runs(&heard).is_empty());

    run.end(TerminalReason::Aborted);

    assert_eq!(runs(&heard).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_line_of_a_cut_names_the_last_step() {
    let heard = LogCapture::start();
    let upstream = Upstream::script(Script::before_head().never());
    let stack = Stack::default().ceiling(30).candidates(["large"]);

    stack.build(&upstream).ask(prompt("any")).await;

    let line = one_call(&heard);
    assert_eq!(line["step"], "llm_call");
    assert_eq!(line["description"], "large");
}

/// No other line says what an upstream's error in the middle of a stream was.
#[tokio::test(start_paused = true)]
async fn the_line_of_a_failure_names_its_class() {
    let error =
        |kind| format!("data: {{\"error\":{{\"message\":\"no\",\"type\":\"{kind}\"}}}}\n\n");
    for (kind, class) in [
        ("server_error", "server"),
        ("overloaded_error", "overloaded"),
    ] {
        let heard = LogCapture::start();
        let begun = Script::sse().data(PRELUDE).data(chat("a"));
        let upstream = Upstream::script(begun.data(error(kind)));

        let stack = Stack::default().step(60).build(&upstream);
        stack.ask(prompt("m")).await;

        let line = one_call(&heard);
        assert_eq!(
            (&*line["reason"], &*line["class"]),
            ("upstream_failed", class)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn each_reason_is_one_line_of_its_level() {
    for (reason, name, _, class) in all() {
        let run = Run::open();
        let (request, call) = call_of(&run);
        let upstream = Upstream::script(Script::sse().data(chat("a")).never());
        let stack = Stack::default().step(60).build(&upstream);
        let mut body = stack.oneshot(request).await.unwrap().into_body();
        body.token().await;
        let heard = LogCapture::start();

        call.end(reason.clone());
        assert!(calls(&heard).is_empty(), "something of it is left");
        drop(body);

        let line = one_call(&heard);
        assert_eq!(line["level"], level(class), "{name}");
        assert_eq!(line["target"], "tower_agent");
        assert_eq!(line["reason"], name);
        assert_eq!(line["ended"], "call");
        assert_eq!(line["run"], run.id().to_string());
        assert_eq!(line["attempts"], "0");
        assert_eq!(line["elapsed"], "0ns");
        for unknown in ["candidate", "session", "input_tokens", "turns"] {
            assert!(!line.contains_key(unknown), "{unknown}");
        }
        let is_failure = matches!(reason, TerminalReason::Failed(_));
        assert_eq!(line.contains_key("class"), is_failure, "{name}");

        run.end(reason);
        let [line] = &runs(&heard)[..] else {
            panic!("{:?}", runs(&heard));
        };
        assert_eq!((&*line["level"], &*line["reason"]), (level(class), name));
        assert_eq!(line["ended"], "run");
        assert_eq!(calls(&heard).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_is_one_line_with_all_that_is_known_whatever_is_around_it() {
    for id in [None, Some("r-1")] {
        let upstream = Upstream::scripts([failure(500), failure(500), counted()]);
        let service = ServiceBuilder::new()
            .layer(TerminalResponseLayer::new())
            .layer(RunLayer::new(RunRegistry::new()))
            .layer(PumpLayer::new())
            .layer(ClientDisconnectLayer::new())
            .layer(HardCeilingLayer::new(secs(1800)))
            .layer(StepTimeoutLayer::new(secs(300)))
            .layer(ModelFallbackLayer::new(["a", "b"].map(Candidate::new)).budget(no_delay()))
            .layer(RetryBudgetLayer::new(no_delay()))
            .layer(HardCeilingLayer::new(secs(600)))
            .layer(StepTimeoutLayer::new(secs(120)))
            .service(upstream.clone());
        let mut request = prompt("a");
        let session = HeaderValue::from_static("s-1");
        request.headers_mut().insert("x-session-id", session);
        let request = match id {
            Some(id) => with_header(request, "x-run-id", id),
            None => request,
        };
        let heard = LogCapture::start();

        let outcome = Outcome::of(service.oneshot(request)).await;
        let run = outcome.headers["x-run-id"].clone();
        outcome.whole();
        yield_now().await;

        // A run that was given an id lives on.
        let line = one_call(&heard);
        let text = |field: &str| line[field].as_str();
        assert_eq!((text("level"), text("reason")), ("DEBUG", "completed"));
        assert_eq!(text("run"), run.to_str().unwrap());
        assert_eq!((text("session"), text("candidate")), ("s-1", "b"));
        assert_eq!((text("attempts"), text("elapsed")), ("3", "1s"));
        assert_eq!((text("input_tokens"), text("output_tokens")), ("7", "2"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_is_one_line() {
    for drains in [false, true] {
        let pump = PumpLayer::new();
        let service = ServiceBuilder::new()
            .layer(RunLayer::new(RunRegistry::new()))
            .layer(if drains {
                pump.drain(Some(secs(60)))
            } else {
                pump
            })
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(Upstream::script(counted()));
        let heard = LogCapture::start();
        let mut body = service.oneshot(prompt("a")).await.unwrap().into_body();
        body.token().await;

        drop(body);
        tokio::time::sleep(secs(5)).await;

        let line = one_call(&heard);
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["reason"], "client_disconnect");
        // Reading on is for this.
        assert_eq!(line.contains_key("input_tokens"), drains);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_its_call_is_one_line_and_one_that_is_more_is_another() {
    // The run is made for the call.
    let upstream = Upstream::script(Script::sse().never());
    let service = HardCeilingLayer::new(secs(9)).layer(upstream);
    let heard = LogCapture::start();
    let cut = service.oneshot(request()).await.unwrap().into_body();
    cut.read().await.end.unwrap_err();
    let line = one_call(&heard);
    assert_eq!(
        (&*line["reason"], &*line["ended"]),
        ("max_turn_time", "run")
    );
    assert_eq!(line["elapsed"], "9s");

    // A limit of the run, in its only call; then in its second.
    for done in [0, 1] {
        let upstream =
            Upstream::scripts(std::iter::repeat_n(counted(), done).chain([Script::sse().never()]));
        let service = ServiceBuilder::new()
            .layer(RunLayer::new(RunRegistry::new()))
            .layer(StepTimeoutLayer::new(secs(9)).scope(Scope::Run))
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(upstream);
        let heard = LogCapture::start();
        for _ in 0..=done {
            let request = with_header(prompt("a"), "x-run-id", "r-1");
            if let Ok(answer) = service.clone().oneshot(request).await {
                let _cut = answer.into_body().read().await;
            }
        }
        let (calls, runs) = (calls(&heard), runs(&heard));
        assert_eq!(
            (calls.len(), runs.len()),
            (done + 1, done),
            "{calls:?} {runs:?}"
        );
        let last = calls.last().unwrap();
        assert_eq!((&*last["reason"], &*last["ended"]), ("step_timeout", "run"));
        if let Some(run) = runs.first() {
            assert_eq!((&*run["level"], &*run["reason"]), ("INFO", "step_timeout"));
            assert_eq!((&*run["run"], &*run["turns"]), ("r-1", "0"));
            assert_eq!((&*run["elapsed"], &*run["input_tokens"]), ("10s", "7"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_run_that_is_over_refuses_is_a_line_each() {
    let upstream = Upstream::script(counted());
    let stack = Stack::default()
        .run(&RunRegistry::new())
        .turn_cap(1)
        .build(&upstream);
    let heard = LogCapture::start();
    for _ in 0..3 {
        let request = prompt("a").map(|_| tower_agent::ReplayBody::from("{}"));
        if let Ok(answer) = stack
            .clone()
            .oneshot(with_header(request, "x-run-id", "r-1"))
            .await
        {
            answer.into_body().read().await.whole();
        }
    }

    let told: Vec<_> = calls(&heard)
        .iter()
        .map(|line| format!("{} {}", line["level"], line["reason"]))
        .collect();
    let capped = "WARN turn_cap_reached";
    assert_eq!(told, ["DEBUG completed", capped, capped]);
    let runs = runs(&heard);
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0]["level"], "WARN");
}

#[tokio::test(start_paused = true)]
async fn a_run_further_out_whose_call_belongs_to_another_run_is_logged_as_that_call() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().never());
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(9)))
        .layer(RunLayer::new(registry.clone()))
        .service(upstream);
    let taken = RunLayer::new(registry).layer(Upstream::script(Script::sse().data(DONE)));
    Outcome::of(taken.oneshot(with_header(request(), "x-run-id", "r-1")))
        .await
        .whole();
    let heard = LogCapture::start();

    let body = service
        .oneshot(with_header(request(), "x-run-id", "r-1"))
        .await
        .unwrap();
    body.into_body().read().await.end.unwrap_err();

    let line = one_call(&heard);
    assert_eq!((&*line["reason"], &*line["run"]), ("max_turn_time", "r-1"));
}

/// A subscriber that does something with each line of a call or a run.
struct Doing<F>(F);

impl<S: tracing::Subscriber, F: Fn() + 'static> tracing_subscriber::Layer<S> for Doing<F> {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "tower_agent"
            && event.fields().any(|it| it.name() == "ended")
        {
            (self.0)();
        }
    }
}

/// Ends a call and its run while this subscriber listens.
async fn ends_before(subscriber: impl Fn(&Run, &WakeCount) + Send + Sync + 'static) -> (Run, Run) {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let service = StepTimeoutLayer::new(secs(60)).layer(upstream);
    let mut body = service.oneshot(request).await.unwrap().into_body();
    body.token().await;
    let wakes = WakeCount::default();
    let mut settled = Box::pin(call.settled());
    assert!(wakes.poll(&mut settled).is_pending());

    let of_run = run.clone();
    let doing = Doing(move || subscriber(&of_run, &wakes));
    let subscriber = tracing_subscriber::registry().with(doing);
    tracing::subscriber::with_default(subscriber, || {
        call.end(TerminalReason::Aborted);
        drop(body);
        run.end(TerminalReason::TurnCap);
    });
    assert!(poll_once(&mut settled).is_ready());
    (run, call)
}

#[tokio::test(start_paused = true)]
async fn a_line_comes_after_those_who_wait_were_woken_and_may_look_at_everything() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&seen);
    let _ended = ends_before(move |run, wakes| {
        let snapshot = run.snapshot();
        list.lock()
            .unwrap()
            .push((wakes.count() > 0, snapshot.in_flight));
        // Nothing is locked.
        run.child().end(TerminalReason::Shutdown);
    })
    .await;

    // The run counts the call until its line is written.
    assert_eq!(*seen.lock().unwrap(), [(true, 1), (true, 0)]);
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_that_panics_disturbs_nothing() {
    let times = Arc::new(Mutex::new(0));
    let count = Arc::clone(&times);
    let ended = ends_before(move |_, _| {
        *count.lock().unwrap() += 1;
        panic!("as the test says");
    });
    let (run, call) = ended.await;

    assert_eq!(*times.lock().unwrap(), 2);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::TurnCap));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_is_no_end_is_logged_once_with_all_its_causes() {
    let stack = Stack::default()
        .terminal()
        .run(&RunRegistry::new())
        .budget(no_delay())
        .build(&Upstream::script(Script::before_head().fail("peer reset")));
    let heard = LogCapture::start();

    let request = with_header(prompt("a"), "x-run-id", "r-1");
    let outcome = stack.ask(request).await;

    assert_eq!(outcome.status, 502);
    let [failed] = &heard.events("call failed")[..] else {
        panic!("{:?}", heard.events("call failed"));
    };
    assert_eq!(failed["run"], "r-1");
    assert_eq!(
        failed["error"].matches("peer reset").count(),
        1,
        "{failed:?}"
    );
    assert!(!failed["error"].contains("r-1"), "{failed:?}");
    assert!(!failed["error"].contains("failed attempts"), "{failed:?}");
    let [stopped] = &heard.events("no further attempt")[..] else {
        panic!("{:?}", heard.events("no further attempt"));
    };
    assert_eq!(stopped["tried"], "transport, transport");
    assert_eq!(one_call(&heard)["reason"], "upstream_failed");
}

/// A call whose body is still held when its run ends.
#[tokio::test(start_paused = true)]
async fn a_run_that_ends_after_its_only_call_did_has_a_line_of_its_own() {
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let stack = Stack::default().run(&registry).ceiling(10).build(&upstream);
    let answer = stack
        .oneshot(with_header(request(), "x-run-id", "r"))
        .await
        .unwrap();
    let run = registry.find(&"r".parse().unwrap()).remove(0);
    let mut body = answer.into_body();
    body.token().await;
    let heard = LogCapture::start();

    // The reader stands still; another task looks at the clocks.
    tokio::time::advance(secs(10)).await;
    assert!(upstream.run().check().is_err());
    run.end(TerminalReason::Aborted);
    assert!(calls(&heard).is_empty() && runs(&heard).is_empty());
    drop(body);
    yield_now().await;

    let (calls, runs) = (calls(&heard), runs(&heard));
    assert_eq!((calls.len(), runs.len()), (1, 1), "{calls:?} {runs:?}");
    assert_eq!(
        (&*calls[0]["reason"], &*calls[0]["ended"]),
        ("max_turn_time", "call")
    );
    assert_eq!(
        (&*runs[0]["reason"], &*runs[0]["ended"]),
        ("aborted", "run")
    );
}

#[tokio::test(start_paused = true)]
async fn a_step_window_that_leaves_no_time_for_a_retry_is_warned_of_once() {
    let heard = LogCapture::start();
    let warnings = || heard.events("outer step timeout leaves no time for a retry");
    // The lengths occur in no other test, because each is warned of once in a process.
    for (outer, scope, warned) in [
        (7001, Scope::Found, 0),
        (7000, Scope::Found, 1),
        (7000, Scope::Run, 1),
        (6999, Scope::Run, 2),
    ] {
        let upstream = Upstream::script(Script::before_head().never());
        let service = ServiceBuilder::new()
            .layer(StepTimeoutLayer::new(secs(outer)).scope(scope))
            .layer(ModelFallbackLayer::new(["a"].map(Candidate::new)).budget(no_delay()))
            .layer(RetryBudgetLayer::new(no_delay()))
            .layer(StepTimeoutLayer::new(secs(7000)))
            .service(upstream.clone());

        Outcome::of(service.oneshot(prompt("any"))).await;

        assert_eq!(warnings().len(), warned, "{outer} {scope:?}");
    }
    let [line, _] = &warnings()[..] else {
        panic!("{:?}", warnings());
    };
    assert_eq!((&*line["level"], &*line["target"]), ("WARN", "tower_agent"));
    assert_eq!((&*line["limit"], &*line["ended"]), ("7000s", "run"));
}
