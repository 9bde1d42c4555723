//! The stack builder: each setting is the layer it names, and an unset one does nothing.

use std::time::Duration;

use http::Request;
use http_body_util::Full;
use tower::ServiceExt;
use tower_agent::{
    AgentStack, Candidate, Cooldowns, HardCeilingLayer, LoopGuardLayer, ModelFallbackLayer, Owner,
    OwnerCaps, RetryBudget, RetryBudgetLayer, Run, RunId, RunRegistry, StepTimeoutLayer,
    TerminalReason, TokenCaps, TurnCapLayer,
};

use crate::support::{
    LogCapture, Outcome, Script, Upstream, failure, healthy, healthy_text, no_delay, prompt, secs,
    with_header,
};

/// covers: H9
#[tokio::test(start_paused = true)]
async fn a_server_with_nothing_set_passes_every_request_on() {
    let upstream = Upstream::scripts([healthy(), Script::of("text/plain").data("text")]);
    let service = AgentStack::server(&RunRegistry::new()).service(upstream.clone());

    let streamed = Outcome::of(service.clone().oneshot(prompt("a"))).await;
    let text = Request::post("/tool").body(Full::from("no json")).unwrap();
    let plain = Outcome::of(service.oneshot(text)).await;

    assert_eq!((streamed.status, streamed.whole()), (200, &*healthy_text()));
    assert_eq!((plain.status, plain.whole()), (200, "text"));
    assert_eq!(upstream.calls(), 2);
}

/// A failure is repeated, then the silence of the repeat moves the call to the other model.
#[tokio::test(start_paused = true)]
async fn a_call_goes_through_its_attempts() {
    let upstream = Upstream::scripts([failure(503), Script::before_head().never(), healthy()]);
    let service = AgentStack::server(&RunRegistry::new())
        .first(secs(60))
        .step(secs(20))
        .attempt_ceiling(secs(300))
        .ceiling(secs(1800))
        .run_step(secs(600))
        .fallback(["a", "b"].map(Candidate::new))
        .retry(no_delay())
        .service(upstream.clone());

    let outcome = Outcome::of(service.oneshot(prompt("a"))).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.models(), ["a", "a", "b"]);
    assert_eq!(outcome.at, secs(60));
}

/// An unset loop guard neither reads the conversation nor ends a run for it.
#[tokio::test(start_paused = true)]
async fn an_unset_loop_guard_ends_no_loop() {
    let turn = r#",{"role":"assistant","tool_calls":[{"id":"c","type":"function",
        "function":{"name":"job_status","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c","content":"running"}"#;
    let body = format!(
        r#"{{"model":"a","messages":[{{"role":"user","content":"is it done?"}}{}]}}"#,
        turn.repeat(40),
    );
    let ask = |body: &str| {
        let request = Request::post("/v1/chat/completions");
        request.body(Full::from(body.to_owned())).unwrap()
    };
    let upstream = Upstream::script(healthy());
    let unset = AgentStack::client();
    let set = unset.clone().loops(LoopGuardLayer::new());

    let passed = Outcome::of(unset.service(upstream.clone()).oneshot(ask(&body))).await;
    let looped = Outcome::of(set.service(upstream).oneshot(ask(&body))).await;

    assert_eq!(passed.whole(), healthy_text());
    assert_eq!(looped.reason, Some(TerminalReason::LoopDetected));
}

/// The budget's hook is asked before the step to another model, too.
#[tokio::test(start_paused = true)]
async fn retry_and_fallback_share_one_budget() {
    let upstream = Upstream::script(failure(503));
    let once = no_delay().max_attempts_per_candidate(1);
    let service = AgentStack::client()
        .fallback(["a", "b"].map(Candidate::new))
        .retry(once.before_attempt(|_| false))
        .service(upstream.clone());

    let outcome = Outcome::of(service.oneshot(prompt("a"))).await;

    assert_eq!(outcome.status, 503);
    assert_eq!(upstream.models(), ["a"]);
}

/// The ceiling and the step window are those of the run: its next call is refused.
#[tokio::test(start_paused = true)]
async fn the_outer_limits_end_the_run() {
    type Set = fn(AgentStack<tower_agent::stack::Server>) -> AgentStack<tower_agent::stack::Server>;
    let limits: [(Set, TerminalReason); 2] = [
        (|stack| stack.ceiling(secs(9)), TerminalReason::HardCeiling),
        (|stack| stack.run_step(secs(9)), TerminalReason::StepTimeout),
    ];
    for (set, reason) in limits {
        let upstream = Upstream::script(Script::before_head().never());
        let stack = set(AgentStack::server(&RunRegistry::new()));
        let service = stack.service(upstream.clone());
        let ask = || with_header(prompt("a"), "x-run-id", "mine");

        let cut = Outcome::of(service.clone().oneshot(ask())).await;
        let next = Outcome::of(service.oneshot(ask())).await;

        assert_eq!(cut.header("x-terminal-reason"), Some(reason.as_str()));
        assert_eq!(cut.at, secs(9));
        assert_eq!(next.header("x-terminal-reason"), Some(reason.as_str()));
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_has_the_same_limits_on_the_programs_run() {
    let upstream = Upstream::scripts([failure(503), healthy()]);
    let service = AgentStack::client()
        .step(secs(20))
        .max_turns(1)
        .loops(LoopGuardLayer::new())
        .retry(no_delay())
        .service(upstream.clone());
    let run = Run::open();

    let served = Outcome::of(service.clone().oneshot(run.attach(prompt("a")))).await;
    let refused = service.oneshot(run.attach(prompt("a"))).await;

    assert_eq!(served.whole(), healthy_text());
    let error = refused.err().unwrap();
    assert_eq!(
        TerminalReason::find(&*error),
        Some(&TerminalReason::TurnCap)
    );
    assert_eq!(upstream.calls(), 2);
}

/// In whatever order the settings come.
#[tokio::test(start_paused = true)]
async fn a_stack_counts_turns_and_tokens_without_caps_if_it_is_told_to() {
    let upstream = Upstream::script(healthy());
    let stack = || AgentStack::client().retry(no_delay());
    let (turns, tokens) = (TurnCapLayer::optional(None), TokenCaps::new());
    for (stack, counted) in [
        (stack(), false),
        (stack().always_count(), true),
        (
            stack().always_count().max_turns(turns).token_caps(tokens),
            true,
        ),
    ] {
        let run = Run::open();
        let service = stack.service(upstream.clone());
        for _ in 0..2 {
            let answer = Outcome::of(service.clone().oneshot(run.attach(prompt("a")))).await;
            assert_eq!(answer.whole(), healthy_text());
        }
        assert_eq!(run.turns(), if counted { 2 } else { 0 });
        assert_eq!(run.tokens_spent().is_some(), counted);
    }
}

#[test]
fn debug_prints_every_number() {
    let stack = AgentStack::server(&RunRegistry::new())
        .responses(|it| it.keep_alive(Some(secs(11))))
        .runs(|it| it.idle(secs(12)))
        .pump(|it| it.drain(Some(secs(13))))
        .owner_caps(OwnerCaps::new().max_open_runs(14))
        .ceiling(HardCeilingLayer::new(secs(15)).timeout(Some(secs(16))))
        .run_step(secs(17))
        .max_turns(18)
        .loops(LoopGuardLayer::new().stop(19))
        .fallback([Candidate::new("large").context_window(20)])
        .retry(RetryBudget::new().max_attempts_per_candidate(21))
        .attempt_ceiling(secs(22))
        .step(secs(23))
        .first(secs(24));

    let text = format!("{stack:?}");

    for number in 11..=24 {
        assert!(text.contains(&number.to_string()), "{number}: {text}");
    }
}

/// covers: A3
#[tokio::test]
async fn settings_that_turn_off_others_are_named() {
    let base = AgentStack::client().retry(RetryBudget::new());
    let named = |stack: &AgentStack<_>| -> Vec<String> {
        let found = stack.contradictions();
        let words = found.iter().map(|it| {
            let names = it.split('`').skip(1).step_by(2);
            names.take(2).collect::<Vec<_>>().join(" ")
        });
        words.collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(named(&base), none);
    let longer = base.clone().step(secs(20)).run_step(secs(21));
    assert_eq!(named(&longer.clone().ceiling(secs(60))), none);
    assert_eq!(named(&longer.clone().ceiling(secs(19))), ["step"]);
    assert_eq!(named(&longer.clone().ceiling(secs(20))), ["step"]);
    let equal = base.clone().step(secs(20)).run_step(secs(20));
    assert_eq!(named(&equal), ["run_step step"]);
    let first = longer.clone().first(secs(21));
    assert_eq!(named(&first), ["run_step first"]);
    let ceilings = base.clone().ceiling(secs(9)).attempt_ceiling(secs(10));
    assert_eq!(named(&ceilings), ["attempt_ceiling"]);

    // The windows until the first content stand against each other, wherever they are set.
    let window = |first, step| StepTimeoutLayer::new(secs(step)).first(secs(first));
    let inside = base.clone().step(window(40, 20)).run_step(secs(30));
    assert_eq!(named(&inside), ["run_step first"]);
    let patient = base.clone().step(window(40, 20)).run_step(window(50, 30));
    assert_eq!(named(&patient), none);
    let hasty = base.clone().step(secs(20)).run_step(window(10, 30));
    assert_eq!(named(&hasty), ["run_step first"]);

    // A floor on speed must be able to end an attempt before its answer is committed.
    let floored = |over| StepTimeoutLayer::new(secs(20)).min_tokens_per_second(8.0, secs(over));
    let held = |hold| {
        let retry = RetryBudgetLayer::new(RetryBudget::new()).hold(secs(hold));
        AgentStack::client().retry(retry)
    };
    assert_eq!(named(&held(31).step(floored(30))), none);
    assert_eq!(named(&held(30).step(floored(30))), ["hold"]);
    assert_eq!(named(&held(30).step(floored(30).observe())), none);

    // Nothing follows the only attempt, and a limit that is observed ends nothing.
    let once = AgentStack::client().step(secs(20)).run_step(secs(20));
    assert_eq!(named(&once), none);
    assert_eq!(named(&once.ceiling(secs(20))), none);
    let observed = equal.run_step(StepTimeoutLayer::new(secs(20)).observe());
    assert_eq!(named(&observed), none);
}

#[tokio::test]
async fn a_contradiction_is_a_warning_once_the_layers_are_made() {
    let log = LogCapture::start();
    let stack = AgentStack::client()
        .fallback(ModelFallbackLayer::new([Candidate::new("a")]))
        .step(Duration::from_secs(120))
        .run_step(Duration::from_secs(120));
    let warnings = || log.events("a setting of the stack turns off another");
    assert!(warnings().is_empty());

    let _ = stack.layer();

    let warnings = warnings();
    assert_eq!(warnings.len(), 1);
    let says = &warnings[0]["contradiction"];
    assert!(says.contains("make `run_step` longer"), "{says}");
}

/// A stack's `Debug` has its settings, and the state of a busy server only as numbers.
#[tokio::test(start_paused = true)]
async fn the_debug_of_shared_state_is_short() {
    let registry = RunRegistry::new();
    let id = "whose".parse::<RunId>().unwrap();
    let owners = [Owner::anonymous(), Owner::default()];
    let _runs = owners.map(|owner| registry.open(owner, id.clone()));
    let cooldowns = Cooldowns::new();
    let candidates = ModelFallbackLayer::new([Candidate::new("a")]);
    let stack = AgentStack::server(&registry).fallback(candidates.cooldowns(cooldowns));

    let printed = format!("{registry:?}");
    assert_eq!(printed, "RunRegistry { opened: 2, remembered: 0, .. }");
    let printed = format!("{stack:?}");
    assert!(printed.contains("windows: 0"), "{printed}");
    assert!(!printed.contains("whose"), "{printed}");
    assert!(printed.len() < 5000, "{}: {printed}", printed.len());
}
