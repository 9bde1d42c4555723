//! What a recorder gets of runs, calls and attempts: each end once.
//!
//! covers: H10

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use ::metrics::{
    Counter, Gauge, Histogram, Key, KeyName, LocalRecorderGuard, Metadata, Recorder, SharedString,
    Unit,
};
use http::StatusCode;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tower::{Layer, Service, ServiceExt};
use tower_agent::{
    Candidate, ClientDisconnectLayer, Cooldowns, ModelFallbackLayer, OwnerCapLayer, OwnerCaps,
    PumpLayer, ReasonClass, Run, RunRegistry, TerminalReason, attempt::Count,
};

use crate::support::{
    DONE, FINISH, PRELUDE, Place, ReadExt, Script, Stack, USAGE, Upstream, chat, failure, healthy,
    no_delay, poll_once, prompt, request, secs, with_header,
};

/// The recorder of this thread, until the drop of the guard.
struct Recorded {
    numbers: Snapshotter,
    _guard: LocalRecorderGuard<'static>,
}

/// All series by `name label=value ..`: the count, or the values.
type Series = BTreeMap<String, Vec<f64>>;

impl Recorded {
    fn start() -> Self {
        let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
        Self {
            numbers: recorder.snapshotter(),
            _guard: ::metrics::set_default_local_recorder(recorder),
        }
    }

    /// All series since the last look.
    fn all(&self) -> Series {
        let series = self.numbers.snapshot().into_vec().into_iter();
        let series = series.map(|(key, _, _, value)| {
            let mut name = key.key().name().to_owned();
            for label in key.key().labels() {
                name = format!("{name} {}={}", label.key(), label.value());
            }
            let values = match value {
                DebugValue::Counter(count) => vec![count as f64],
                DebugValue::Gauge(value) => vec![value.0],
                DebugValue::Histogram(values) => values.iter().map(|value| value.0).collect(),
            };
            (name, values)
        });
        series.collect()
    }

    /// The series of one metric since the last look, without its name.
    fn of(&self, metric: &str) -> Vec<(String, Vec<f64>)> {
        of(&self.all(), metric)
    }
}

fn of(all: &Series, metric: &str) -> Vec<(String, Vec<f64>)> {
    let series = all.iter().filter_map(|(name, values)| {
        let rest = name.strip_prefix(metric)?;
        (rest.is_empty() || rest.starts_with(' ')).then(|| (rest.trim().to_owned(), values.clone()))
    });
    series.collect()
}

/// The values of all series of one metric.
fn values(all: &Series, metric: &str) -> Vec<f64> {
    let series = of(all, metric).into_iter();
    series.flat_map(|(_, values)| values).collect()
}

fn one(labels: &str, values: impl Into<Vec<f64>>) -> (String, Vec<f64>) {
    (labels.to_owned(), values.into())
}

const DURATION: &str = "gen_ai.client.operation.duration";
const FIRST: &str = "gen_ai.client.operation.time_to_first_chunk";
const PER_CHUNK: &str = "gen_ai.client.operation.time_per_output_chunk";
const TOKENS: &str = "gen_ai.client.token.usage";
const RUNS: &str = "agent_runs_ended_total";
const ATTEMPTS: &str = "agent_attempts_total";
const DENIED: &str = "agent_retry_budget_denied_total";
const FALLBACKS: &str = "agent_fallbacks_total";
const COOLDOWNS: &str = "agent_cooldowns_total";
const RELEASED: &str = "agent_cancel_latency_seconds";

const CHAT: &str = "gen_ai.operation.name=chat gen_ai.provider.name=openai";

/// A head after a second, three chunks with two seconds between them, then usage.
fn counted() -> Script {
    Script::before_head()
        .wait(1.0)
        .head("text/event-stream")
        .data(PRELUDE)
        .wait(1.0)
        .data(chat("a"))
        .repeat(2, 2.0, chat("b"))
        .wait(1.0)
        .data(FINISH)
        .data(USAGE)
        .data(DONE)
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_completes_is_recorded_once_by_each_metric() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(counted());
    let stack = Stack::default()
        .run(&RunRegistry::new())
        .disconnect()
        .ceiling(100)
        .step(50)
        .candidates(["a", "b"])
        .retry(2)
        .attempt_step(20)
        .build(&upstream);

    let outcome = stack.ask(prompt("a")).await;
    assert_eq!(outcome.at, secs(7));
    drop(outcome);

    let all = recorded.all();
    let model = format!("{CHAT} gen_ai.request.model=a");
    assert_eq!(of(&all, DURATION), [one(&model, [7.0])]);
    assert_eq!(of(&all, FIRST), [one(&model, [2.0])]);
    assert_eq!(of(&all, PER_CHUNK), [one(&model, [2.0, 2.0])]);
    assert_eq!(
        of(&all, TOKENS),
        [
            one(&format!("{model} gen_ai.token.type=input"), [7.0]),
            one(&format!("{model} gen_ai.token.type=output"), [2.0]),
        ]
    );
    assert_eq!(of(&all, RUNS), [one("reason=completed", [1.0])]);
    assert_eq!(of(&all, ATTEMPTS), [one("model=a outcome=2xx", [1.0])]);
    assert_eq!(all.len(), 7, "nothing else: {all:?}");
}

/// A reader that is slow after the first chunk is not taken for an upstream that is slow before it.
#[tokio::test(start_paused = true)]
async fn the_first_chunk_is_timed_when_it_comes() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(counted());
    let stack = Stack::default().step(50).build(&upstream);
    let mut body = stack.oneshot(prompt("a")).await.unwrap().into_body();
    while body.token().await != chat("a") {}

    tokio::time::sleep(secs(5)).await;
    drop(body.read().await);

    assert_eq!(recorded.of(FIRST), [one(CHAT, [2.0])]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_stream_has_no_chunks() {
    let recorded = Recorded::start();
    let body = r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}"#;
    let upstream = Upstream::script(Script::answer(200, body));
    let stack = Stack::default().candidates(["a"]).retry(2);

    drop(stack.build(&upstream).ask(prompt("a")).await);

    let all = recorded.all();
    assert_eq!(of(&all, FIRST), []);
    assert_eq!(of(&all, PER_CHUNK), []);
    assert_eq!(values(&all, TOKENS), [5.0, 3.0]);
}

/// Without a candidate there is no model; the layer that opens the call reads its operation.
#[tokio::test(start_paused = true)]
async fn a_call_of_each_layer_alone_is_recorded_once() {
    for stack in [
        Stack::default().disconnect(),
        Stack::default().ceiling(9),
        Stack::default().step(9),
        Stack::default().retry(1),
        Stack::default().run(&RunRegistry::new()),
        Stack::default().pump(),
        Stack::default().disconnect().retry(1),
    ] {
        let recorded = Recorded::start();
        drop(
            stack
                .build(&Upstream::script(healthy()))
                .ask(prompt("made-up"))
                .await,
        );
        let all = recorded.all();
        assert_eq!(of(&all, DURATION), [one(CHAT, [0.0])], "{stack:?}");
        assert_eq!(
            of(&all, RUNS),
            [one("reason=completed", [1.0])],
            "{stack:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn each_call_of_a_run_is_recorded_and_the_run_once() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(healthy());
    let stack = Stack::default().step(9).build(&upstream);
    let run = Run::open();

    for _ in 0..3 {
        drop(stack.ask(run.attach(prompt("a"))).await);
    }
    let calls = recorded.all();
    assert_eq!(of(&calls, DURATION), [one(CHAT, [0.0, 0.0, 0.0])]);
    assert_eq!(of(&calls, RUNS), []);
    assert!(run.end(TerminalReason::TurnCap));
    assert!(!run.end(TerminalReason::Aborted));

    let all = recorded.all();
    assert!(values(&all, DURATION).is_empty());
    assert_eq!(of(&all, RUNS), [one("reason=turn_cap_reached", [1.0])]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_an_error_and_each_of_its_attempts_counts() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(failure(500));
    let stack = Stack::default().disconnect().retry(3).build(&upstream);

    drop(stack.ask(prompt("a")).await);

    let all = recorded.all();
    let failed = format!("{CHAT} error.type=upstream_failed");
    assert_eq!(of(&all, DURATION), [one(&failed, [0.0])]);
    assert_eq!(of(&all, ATTEMPTS), [one("outcome=5xx", [3.0])]);
    assert_eq!(of(&all, RUNS), [one("reason=upstream_failed", [1.0])]);
    assert_eq!(of(&all, DENIED), [one("budget=spent", [1.0])]);
    assert_eq!(of(&all, TOKENS), []);
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_counts_its_chunks_and_its_tokens() {
    let recorded = Recorded::start();
    let start = "event: message_start\ndata: {\"type\":\"message_start\",\
         \"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n";
    let script = Script::sse()
        .data(start)
        .wait(1.0)
        .data(crate::support::content_block("a"));
    let upstream = Upstream::script(script.never());
    let stack = Stack::default().disconnect().step(5).build(&upstream);
    let mut asked = prompt("a");
    *asked.uri_mut() = "/v1/messages".parse().unwrap();

    drop(stack.ask(asked).await);

    let all = recorded.all();
    let of_call = "gen_ai.operation.name=chat gen_ai.provider.name=anthropic";
    assert_eq!(
        of(&all, DURATION),
        [one(&format!("{of_call} error.type=step_timeout"), [6.0])]
    );
    assert_eq!(of(&all, FIRST), [one(of_call, [1.0])]);
    assert_eq!(of(&all, PER_CHUNK), [], "there is one chunk");
    assert_eq!(values(&all, TOKENS), [25.0, 1.0]);
    assert_eq!(of(&all, RUNS), [one("reason=step_timeout", [1.0])]);
}

#[tokio::test(start_paused = true)]
async fn a_refused_repeat_counts_by_the_budget_that_was_used_up() {
    let many = || no_delay().max_attempts_per_candidate(9).count(Count::Every);
    // With two candidates the repeats of each are refused, but for a limit of the whole run.
    for (budget, denied, of_two) in [
        (many().per_error_key(1), "budget=per_error_key", 2.0),
        (many().per_run(1), "budget=per_run", 1.0),
        (many().shared(0.0, 0), "budget=bucket", 2.0),
        (
            no_delay().max_attempts_per_candidate(2),
            "budget=spent",
            2.0,
        ),
    ] {
        let one_model = Stack::default().budget(budget);
        let two = one_model.clone().candidates(["a", "b"]);
        for (stack, count) in [(one_model, 1.0), (two, of_two)] {
            let recorded = Recorded::start();
            let upstream = Upstream::script(failure(500));

            drop(stack.build(&upstream).ask(prompt("a")).await);

            assert_eq!(recorded.of(DENIED), [one(denied, [count])]);
        }
    }
}

/// To have asked all candidates is no budget.
#[tokio::test(start_paused = true)]
async fn a_fallback_that_finds_no_candidate_was_refused_by_no_budget() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(failure(500));
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);

    drop(stack.ask(prompt("a")).await);

    let all = recorded.all();
    assert_eq!(of(&all, FALLBACKS), [one("from=a to=b why=server", [1.0])]);
    assert_eq!(of(&all, DENIED), []);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_counts_from_to_and_why_and_each_attempt_under_its_candidate() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(healthy());
    upstream.play("a", failure(503));
    upstream.play("b", Script::before_head().fail("refused"));
    let stack = Stack::default().candidates(["a", "b", "c"]).retry(2);

    drop(stack.build(&upstream).ask(prompt("a")).await);

    let all = recorded.all();
    assert_eq!(
        of(&all, FALLBACKS),
        [
            one("from=a to=b why=server", [1.0]),
            one("from=b to=c why=transport", [1.0]),
        ]
    );
    assert_eq!(
        of(&all, ATTEMPTS),
        [
            one("model=a outcome=5xx", [2.0]),
            one("model=b outcome=error", [2.0]),
            one("model=c outcome=2xx", [1.0]),
        ]
    );
    let served = format!("{CHAT} gen_ai.request.model=c");
    assert_eq!(of(&all, DURATION), [one(&served, [0.0])]);
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_counts_when_it_begins_and_its_candidate_is_fallen_back_from() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(healthy());
    let fails = Script::before_head().wait(1.0).head("text/plain");
    upstream.play("a", fails.status(500));
    let layer = ModelFallbackLayer::new(["a", "b"].map(Candidate::new));
    let layer = layer.cooldowns(Cooldowns::new());
    let stack = Stack::default()
        .layer(Place::Fallback, layer)
        .build(&upstream);

    // The second of these fails during the cooldown that the first began.
    drop(tokio::join!(stack.ask(prompt("a")), stack.ask(prompt("a"))));
    drop(stack.ask(prompt("a")).await);

    let all = recorded.all();
    assert_eq!(of(&all, COOLDOWNS), [one("model=a why=server", [1.0])]);
    assert_eq!(
        of(&all, FALLBACKS),
        [
            one("from=a to=b why=cooldown", [1.0]),
            one("from=a to=b why=server", [2.0]),
        ]
    );
    assert_eq!(
        of(&all, ATTEMPTS),
        [
            one("model=a outcome=5xx", [2.0]),
            one("model=b outcome=2xx", [3.0]),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_attempt_without_an_answer_counts_by_the_clock_that_ended_it() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(Script::before_head().never());
    let stack = Stack::default().candidates(["a"]).retry(1).attempt_step(5);

    drop(stack.build(&upstream).ask(prompt("a")).await);

    let attempts = recorded.of(ATTEMPTS);
    assert_eq!(attempts, [one("model=a outcome=step_timeout", [1.0])]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_service_gets_no_ready_counts() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(healthy()).readiness([None, Some("down".into())]);
    upstream.play("a", failure(500));
    let stack = Stack::default().candidates(["a", "b"]);

    drop(stack.build(&upstream).ask(prompt("a")).await);

    let failed = [
        one("model=a outcome=5xx", [1.0]),
        // No request went to a candidate.
        one("outcome=error", [1.0]),
    ];
    assert_eq!(recorded.of(ATTEMPTS), failed);
}

#[tokio::test(start_paused = true)]
async fn a_disconnect_gives_its_attempt_up_and_records_when_the_upstream_is_released() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(Script::before_head().never());
    let stack = Stack::default().disconnect().candidates(["a"]).retry(2);
    let mut call = stack.build(&upstream).call(prompt("a"));
    assert!(poll_once(&mut call).is_pending());
    tokio::time::advance(secs(3)).await;

    drop(call);

    let all = recorded.all();
    let left = format!("{CHAT} gen_ai.request.model=a error.type=client_disconnect");
    assert_eq!(of(&all, DURATION), [one(&left, [3.0])]);
    assert_eq!(of(&all, ATTEMPTS), [one("model=a outcome=given_up", [1.0])]);
    assert_eq!(of(&all, RUNS), [one("reason=client_disconnect", [1.0])]);
    assert_eq!(of(&all, RELEASED), [one("", [0.0])]);
}

/// The call is released when its last work has left: here a tool, two seconds after the disconnect.
#[tokio::test(start_paused = true)]
async fn the_time_to_the_release_is_that_of_the_work_that_leaves_last() {
    let recorded = Recorded::start();
    let run = Run::open();
    let request = run.attach(request());
    let call = request.extensions().get::<Run>().unwrap().clone();
    let tool = call
        .tool("notes")
        .call(std::future::pending::<Result<(), std::io::Error>>());
    let mut tool = Box::pin(tool);
    assert!(poll_once(&mut tool).is_pending());
    let layer = ClientDisconnectLayer::new();
    let upstream = Upstream::script(Script::before_head().never());
    let mut asked = layer.layer(upstream).call(request);
    assert!(poll_once(&mut asked).is_pending());

    drop(asked);
    assert_eq!(recorded.of(RELEASED), []);
    tokio::time::advance(secs(2)).await;
    drop(tool);

    assert_eq!(recorded.of(RELEASED), [one("", [2.0])]);
}

#[tokio::test(start_paused = true)]
async fn a_pump_records_the_release_and_a_drain_does_not() {
    for (pump, released) in [
        (PumpLayer::new(), vec![one("", [0.0])]),
        (PumpLayer::new().drain(Some(secs(9))), vec![]),
    ] {
        let recorded = Recorded::start();
        let upstream = Upstream::script(counted());
        let stack = Stack::default().layer(Place::Pump, pump).build(&upstream);
        let mut body = stack.oneshot(prompt("a")).await.unwrap().into_body();
        body.token().await;

        drop(body);
        tokio::time::sleep(secs(20)).await;

        let all = recorded.all();
        assert_eq!(of(&all, RELEASED), released);
        assert_eq!(of(&all, DURATION).len(), 1, "{all:?}");
        let reason = "reason=client_disconnect";
        assert_eq!(of(&all, RUNS), [one(reason, [1.0])]);
    }
}

/// A cap of the owner refuses the run before observers know it: the call counts, and no run.
#[tokio::test(start_paused = true)]
async fn a_run_that_its_registry_withdrew_is_no_run_that_ended() {
    let recorded = Recorded::start();
    let registry = RunRegistry::new();
    let upstream = Upstream::script(Script::sse().data(PRELUDE).never());
    let caps = OwnerCapLayer::new(registry.clone(), OwnerCaps::new().max_open_runs(1));
    let stack = Stack::default()
        .run(&registry)
        .layer(Place::OwnerCap, caps)
        .build(&upstream);
    let open = stack
        .clone()
        .oneshot(with_header(prompt("a"), "x-run-id", "r-1"))
        .await;

    drop(stack.ask(with_header(prompt("a"), "x-run-id", "r-2")).await);

    let all = recorded.all();
    let refused = format!("{CHAT} error.type=turn_cap_reached");
    assert_eq!(of(&all, DURATION), [one(&refused, [0.0])]);
    assert_eq!(of(&all, RUNS), []);
    drop(open);
}

/// covers: T103
#[tokio::test(start_paused = true)]
async fn what_callers_and_upstreams_make_up_is_no_label() {
    let recorded = Recorded::start();
    let upstream = Upstream::script(healthy());
    let stack = Stack::default().step(9).build(&upstream);
    for name in ["made-up-1", "made-up-2"] {
        let mut asked = prompt(name);
        *asked.uri_mut() = format!("/{name}").parse().unwrap();
        let run = Run::open();
        drop(stack.ask(run.attach(asked)).await);
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        run.end(TerminalReason::custom(name, ReasonClass::Limit, status));
    }

    let all = recorded.all();
    assert_eq!(of(&all, RUNS), [one("reason=other", [2.0])]);
    let other = "gen_ai.operation.name=other gen_ai.provider.name=other";
    assert_eq!(of(&all, DURATION), [one(other, [0.0, 0.0])]);
    assert!(all.keys().all(|name| !name.contains("made-up")), "{all:?}");
}

/// Panics at each metric.
struct Panics(AtomicUsize);

impl Panics {
    fn panic(&self) -> ! {
        self.0.fetch_add(1, Ordering::Relaxed);
        panic!("a recorder panics")
    }
}

impl Recorder for Panics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        self.panic()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        self.panic()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        self.panic()
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorder_that_panics_disturbs_no_call() {
    let recorder: &Panics = Box::leak(Box::new(Panics(AtomicUsize::new(0))));
    let _guard = ::metrics::set_default_local_recorder(recorder);
    let upstream = Upstream::script(healthy());
    upstream.play("a", failure(500));
    let stack = Stack::default()
        .disconnect()
        .candidates(["a", "b"])
        .retry(2);

    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.status, 200);
    assert!(outcome.error.is_none());
    drop(outcome);
    assert!(recorder.0.load(Ordering::Relaxed) > 5);
}

#[test]
fn each_metric_is_described_with_its_unit() {
    let recorder = DebuggingRecorder::new();
    let numbers = recorder.snapshotter();
    ::metrics::with_local_recorder(&recorder, || {
        tower_agent::metrics::describe();
        assert!(Run::open().end(TerminalReason::Aborted));
    });
    let [(key, unit, help, _)] = &numbers.snapshot().into_vec()[..] else {
        panic!("there is one series")
    };
    assert_eq!(key.key().name(), RUNS);
    assert_eq!(*unit, Some(Unit::Count));
    assert_eq!(help.as_deref(), Some("Runs that ended, by reason."));
}
