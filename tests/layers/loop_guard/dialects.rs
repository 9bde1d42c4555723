use bytes::Bytes;
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    LoopGuardLayer, RetryBudget, RetryBudgetLayer, RunEvent, RunLayer, RunRegistry, TerminalReason,
    TerminalResponseLayer,
};

use super::{
    agent::{ALL, Agent, Dialect},
    told,
};
use crate::support::{Outcome, Script, Upstream, reason_of};

fn fine() -> Script {
    Script::answer(200, "{}")
}

/// covers: A9
#[tokio::test(start_paused = true)]
async fn a_looping_agent_is_found_at_the_fifth_call_and_ended_at_the_twentieth() {
    for dialect in ALL {
        let upstream = Upstream::script(fine());
        let registry = RunRegistry::new();
        let events = registry.subscribe();
        let service = ServiceBuilder::new()
            .layer(RunLayer::new(registry))
            .layer(LoopGuardLayer::new())
            .service(upstream.clone());
        let mut agent = Agent::new(dialect);
        for turn in 0..20 {
            Outcome::of(service.clone().oneshot(agent.request_of("r")))
                .await
                .whole();
            assert_eq!(upstream.calls(), turn + 1);
            agent.does("job_status", "running");
        }

        let error = service
            .clone()
            .oneshot(agent.request_of("r"))
            .await
            .unwrap_err();

        assert_eq!(
            reason_of(&error),
            Some(TerminalReason::LoopDetected),
            "{dialect:?}"
        );
        assert_eq!(upstream.calls(), 20, "the last one was not sent on");
        let told = told(events).await;
        assert_eq!(
            told[..4],
            [
                "opened",
                "stuck 5",
                "same call warned job_status 10",
                "same call stopped job_status 20",
            ]
        );
        let words = "it called job_status 20 times with the same result (loop_detected)";
        assert!(told[4].contains(words), "{}", told[4]);
        assert_eq!(told.len(), 5);

        agent.hears("go on");
        let late = service.oneshot(agent.request_of("r")).await.unwrap_err();
        assert_eq!(reason_of(&late), Some(TerminalReason::LoopDetected));
        assert_eq!(upstream.calls(), 20, "the run stays ended");
    }
}

#[tokio::test(start_paused = true)]
async fn at_a_server_it_is_an_answer_that_nobody_retries() {
    let upstream = Upstream::script(fine());
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(LoopGuardLayer::new())
        .service(upstream.clone());
    let mut agent = Agent::new(Dialect::Chat);
    (0..20).for_each(|_| agent.does("job_status", "running"));

    let outcome = Outcome::of(service.oneshot(agent.request())).await;

    assert_eq!(outcome.status, 422);
    assert_eq!(outcome.headers["x-terminal-reason"], "loop_detected");
    let body = outcome.whole();
    assert!(body.contains("job_status 20 times"), "{body}");
    assert_eq!(upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_an_id_what_came_before_the_users_message_does_not_count() {
    for dialect in ALL {
        let upstream = Upstream::script(fine());
        let service = LoopGuardLayer::new().layer(upstream.clone());
        let mut agent = Agent::new(dialect);
        (0..20).for_each(|_| agent.does("job_status", "running"));
        let cut = service.clone().oneshot(agent.request()).await.unwrap_err();
        assert_eq!(reason_of(&cut), Some(TerminalReason::LoopDetected));

        agent.hears("then do something else");
        Outcome::of(service.clone().oneshot(agent.request()))
            .await
            .whole();
        (0..19).for_each(|_| agent.does("job_status", "running"));
        Outcome::of(service.clone().oneshot(agent.request()))
            .await
            .whole();

        agent.does("job_status", "running");
        let cut = service.oneshot(agent.request()).await.unwrap_err();
        assert_eq!(reason_of(&cut), Some(TerminalReason::LoopDetected));
    }
}

#[tokio::test(start_paused = true)]
async fn twice_in_a_stack_and_inside_of_retries_each_call_counts_once() {
    let upstream = Upstream::script(fine());
    let registry = RunRegistry::new();
    let events = registry.subscribe();
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry))
        .layer(LoopGuardLayer::new())
        .layer(RetryBudgetLayer::new(RetryBudget::new()))
        .layer(LoopGuardLayer::new().warn(0))
        .service(upstream.clone());
    let mut agent = Agent::new(Dialect::Anthropic);
    for _ in 0..20 {
        Outcome::of(service.clone().oneshot(agent.request_of("r")))
            .await
            .whole();
        agent.does("job_status", "running");
    }

    let cut = service.oneshot(agent.request_of("r")).await.unwrap_err();

    assert_eq!(reason_of(&cut), Some(TerminalReason::LoopDetected));
    assert_eq!(told(events).await[2], "same call warned job_status 10");
    assert_eq!(upstream.calls(), 20);
}

#[tokio::test(start_paused = true)]
async fn results_that_come_without_their_calls_find_them_in_the_answers() {
    let call = |turn: usize| {
        format!(
            r#"{{"type":"function_call","call_id":"c{turn}","name":"job_status","arguments":"{{\"job\":7}}"}}"#
        )
    };
    let unary: Vec<_> = (0..20)
        .map(|turn| Script::answer(200, format!(r#"{{"output":[{}]}}"#, call(turn))))
        .collect();
    let streams: Vec<_> = (0..20)
        .map(|turn| {
            let event = format!(
                "event: response.output_item.done\ndata: {{\"type\":\"response.output_item.done\",\"item\":{}}}\n\n",
                call(turn)
            );
            let (one, other) = event.split_at(90);
            let end = "data: {\"type\":\"response.completed\",\"response\":{}}\n\n";
            Script::sse().data(one).data(other).data(end)
        })
        .collect();
    for scripts in [unary, streams] {
        let upstream = Upstream::scripts(scripts);
        let service = ServiceBuilder::new()
            .layer(RunLayer::new(RunRegistry::new()))
            .layer(LoopGuardLayer::new())
            .service(upstream.clone());
        let request = |turn: usize| {
            let input = format!(
                r#"{{"type":"function_call_output","call_id":"c{}","output":"running"}}"#,
                turn.wrapping_sub(1)
            );
            let body = format!(r#"{{"previous_response_id":"r{turn}","input":[{input}]}}"#);
            let request = http::Request::post("/v1/responses").header("x-run-id", "r");
            request
                .body(http_body_util::Full::<bytes::Bytes>::from(body))
                .unwrap()
        };
        for turn in 0..20 {
            Outcome::of(service.clone().oneshot(request(turn)))
                .await
                .whole();
        }

        let cut = service.oneshot(request(20)).await.unwrap_err();

        assert_eq!(reason_of(&cut), Some(TerminalReason::LoopDetected));
        assert_eq!(upstream.calls(), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_of_another_api_or_deep_brackets_switch_nothing_off() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    let extras = [
        r#""input":"""#.to_owned(),
        r#""messages":"""#.to_owned(),
        format!(r#""metadata":{{"a":{deep}}}"#),
    ];
    for dialect in ALL {
        for extra in &extras {
            let own = if dialect == Dialect::Responses {
                "input"
            } else {
                "messages"
            };
            if extra.contains(own) {
                continue;
            }
            let service = LoopGuardLayer::new().layer(Upstream::script(fine()));
            let mut agent = Agent::new(dialect);
            (0..20).for_each(|_| agent.does("job_status", "running"));
            let body = agent.body();
            let body = format!("{},{extra}}}", &body[..body.len() - 1]);

            let request = agent.request().map(|_| Full::<Bytes>::from(body));
            let cut = service.oneshot(request).await.unwrap_err();

            assert_eq!(
                reason_of(&cut),
                Some(TerminalReason::LoopDetected),
                "{extra:.30}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_request_with_thousands_of_results_is_told_of_once() {
    let registry = RunRegistry::new();
    let mut events = registry.subscribe();
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(registry.clone()))
        .layer(LoopGuardLayer::new().observe())
        .service(Upstream::script(fine()));
    let mut agent = Agent::new(Dialect::Chat);
    (0..20_000).for_each(|_| agent.does("job_status", "running"));

    drop(service.oneshot(agent.request_of("r")).await.unwrap());

    let run = registry.find(&"r".parse().unwrap()).remove(0);
    run.end(TerminalReason::Aborted);
    let mut notices = 0;
    while let Some(event) = events.next().await {
        match event {
            RunEvent::Notice { .. } => notices += 1,
            RunEvent::Ended { .. } => break,
            other => panic!("{other:?}"),
        }
    }
    // Opened, stuck, and two patterns, each at most warned of and observed.
    assert!(notices <= 6, "{notices}");
}
