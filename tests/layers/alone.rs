//! Each layer that guards a run alone and twice, wherever its node comes from,
//! and in both orders around the layer that opens it.

use http::{Method, Request};
use http_body::Body;
use http_body_util::BodyExt;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, ClientDisconnectLayer, HealthGateLayer, LoopGuardLayer, ReplayBody, Run, RunLayer,
    RunRegistry, StepTimeoutLayer, TerminalReason, TerminalResponseLayer, TurnCapLayer,
};

use crate::support::{
    DONE, PRELUDE, ReadExt, Script, StackService, Upstream, chat, healthy, healthy_text, reason_of,
    request, secs,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Guard {
    TurnCap,
    Loops,
    KeepAlive,
    Gate,
    Local,
}

const GUARDS: [Guard; 5] = [
    Guard::TurnCap,
    Guard::Loops,
    Guard::KeepAlive,
    Guard::Gate,
    Guard::Local,
];

impl Guard {
    fn around(self, inner: StackService) -> StackService {
        match self {
            Self::TurnCap => StackService::new(TurnCapLayer::new(10).layer(inner)),
            Self::Loops => StackService::new(LoopGuardLayer::new().layer(inner)),
            Self::KeepAlive => {
                let layer = TerminalResponseLayer::new().keep_alive(Some(secs(15)));
                StackService::new(layer.layer(inner))
            }
            Self::Gate => {
                let probe = service_fn(|()| std::future::ready(Ok::<_, BoxError>(true)));
                let gate = HealthGateLayer::new(probe).watch_silence(secs(1));
                StackService::new(gate.layer(inner))
            }
            Self::Local => StackService::new(StepTimeoutLayer::local().layer(inner)),
        }
    }

    /// Alone, then twice.
    fn stacks(self, script: &Script) -> [(StackService, Upstream); 2] {
        let upstream = || {
            let upstream = Upstream::script(script.clone());
            (StackService::new(upstream.clone()), upstream)
        };
        let (inner, probe) = upstream();
        let alone = (self.around(inner), probe);
        let (inner, probe) = upstream();
        [alone, (self.around(self.around(inner)), probe)]
    }
}

fn streamed() -> Request<ReplayBody> {
    let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"go"}]}"#;
    let request = Request::post("/v1/chat/completions");
    request.body(ReplayBody::from(body)).unwrap()
}

fn stream() -> Script {
    let slow = Script::sse().data(PRELUDE).wait(3.0);
    slow.data(chat("a")).data(DONE)
}

#[tokio::test(start_paused = true)]
async fn without_a_node_each_call_is_a_run() {
    for guard in GUARDS {
        for (service, probe) in guard.stacks(&stream()) {
            for _ in 0..2 {
                let answer = service.clone().oneshot(streamed()).await.unwrap();
                let run = answer.extensions().get::<Run>().cloned();
                // It only looks on, and opens nothing.
                assert_eq!(run.is_none(), guard == Guard::KeepAlive, "{guard:?}");
                let read = answer.into_body().read().await;
                assert_eq!(read.whole(), healthy_text(), "{guard:?}");
                if let Some(run) = run {
                    let end = run.terminal_reason();
                    assert_eq!(end, Some(TerminalReason::Completed), "{guard:?}");
                    assert_eq!(run.in_flight(), 0, "{guard:?}");
                }
            }
            assert_eq!(probe.calls(), 2, "{guard:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_in_the_request_outlives_its_calls_bare_or_attached() {
    for guard in GUARDS {
        for (service, probe) in guard.stacks(&stream()) {
            for attached in [false, true] {
                let run = Run::open();
                let mut request = streamed();
                if attached {
                    request = run.attach(request);
                } else {
                    request.extensions_mut().insert(run.clone());
                }

                let outcome = service.ask(request).await;
                assert_eq!(outcome.whole(), healthy_text());

                let node = probe.run();
                assert_eq!(node.run().id(), run.id(), "{guard:?}");
                assert_eq!(run.terminal_reason(), None, "{guard:?}, {attached}");
                assert_eq!(run.in_flight(), 0, "{guard:?}, {attached}");
                // A layer that opens nothing settles nothing.
                if attached && guard != Guard::KeepAlive {
                    let end = node.terminal_reason();
                    assert_eq!(end, Some(TerminalReason::Completed), "{guard:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn on_both_sides_of_the_layer_that_opens_the_run() {
    for guard in GUARDS {
        for outside in [false, true] {
            let registry = RunRegistry::new();
            let runs = RunLayer::new(registry.clone());
            let upstream = Upstream::script(stream());
            let service = if outside {
                guard.around(StackService::new(runs.layer(upstream.clone())))
            } else {
                StackService::new(runs.layer(guard.around(StackService::new(upstream.clone()))))
            };
            for calls in 1..=2 {
                let mut request = streamed();
                let id = "r".parse().unwrap();
                request.headers_mut().insert("x-run-id", id);

                let outcome = service.ask(request).await;
                assert_eq!(outcome.whole(), healthy_text());

                assert_eq!(upstream.calls(), calls, "{guard:?}, {outside}");
                let [run] = &registry.list()[..] else {
                    panic!("{guard:?}, outside: {outside}: {:?}", registry.list());
                };
                assert_eq!(run.reason, None, "{guard:?}, {outside}");
                assert_eq!(run.in_flight, 0, "{guard:?}, {outside}");
                let call = upstream.run().terminal_reason();
                assert_eq!(
                    call,
                    Some(TerminalReason::Completed),
                    "{guard:?}, {outside}"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_takes_all_along() {
    for guard in GUARDS {
        for (service, probe) in guard.stacks(&Script::sse().data(PRELUDE).never()) {
            let service = StackService::new(ClientDisconnectLayer::new().layer(service));
            let answer = service.oneshot(streamed()).await.unwrap();
            let mut body = answer.into_body();
            body.frame().await.unwrap().unwrap();
            assert!(!probe.is_dropped());

            drop(body);

            let run = probe.run();
            assert!(probe.is_dropped(), "{guard:?}");
            let gone = Some(TerminalReason::ClientDisconnect);
            assert_eq!(run.terminal_reason(), gone, "{guard:?}");
            assert_eq!(run.in_flight(), 0, "{guard:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_a_body_is_complete_as_it_comes() {
    let of = |status| Script::sse().status(status).knows_its_end();
    for (method, script) in [(Method::HEAD, of(200)), (Method::POST, of(204))] {
        for guard in GUARDS {
            for (service, probe) in guard.stacks(&script) {
                let mut request = streamed();
                *request.method_mut() = method.clone();

                let answer = service.oneshot(request).await.unwrap();
                let case = format!("{method} {guard:?}");
                assert!(answer.body().is_end_stream(), "{case}");
                let read = answer.into_body().read().await;
                assert_eq!(read.whole(), "", "{case}");
                if guard != Guard::KeepAlive {
                    let end = probe.run().terminal_reason();
                    assert_eq!(end, Some(TerminalReason::Completed), "{case}");
                }
            }
        }
    }
}

/// covers: T68
#[tokio::test(start_paused = true)]
async fn size_end_and_trailers_are_the_inner_bodys() {
    for guard in GUARDS {
        let script = Script::json().size(2).knows_its_end().data("{}");
        for (service, _) in guard.stacks(&script) {
            let mut body = service.oneshot(streamed()).await.unwrap().into_body();
            assert_eq!(body.size_hint().exact(), Some(2), "{guard:?}");
            assert!(!body.is_end_stream(), "{guard:?}");
            body.frame().await.unwrap().unwrap();
            assert!(body.is_end_stream(), "{guard:?}");
            assert_eq!(body.size_hint().exact(), Some(0), "{guard:?}");
        }
        for script in [Script::json().data("{}"), stream()] {
            for (service, _) in guard.stacks(&script.clone().trailers()) {
                let outcome = service.ask(streamed()).await;
                assert!(outcome.trailers.is_some(), "{guard:?}");
                outcome.whole();
            }
        }
    }
}

/// covers: T74
#[tokio::test(start_paused = true)]
async fn a_call_is_one_turn_on_both_sides_of_the_layer_that_opens_it() {
    let service = ServiceBuilder::new()
        .layer(TurnCapLayer::new(1))
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(TurnCapLayer::new(1))
        .service(Upstream::script(healthy()));

    let answer = service.oneshot(request()).await.unwrap();

    let run = answer.extensions().get::<tower_agent::Run>().unwrap().run();
    assert_eq!(run.turns(), 1);
    answer.into_body().read().await.end.unwrap();
}

/// covers: T75
#[tokio::test(start_paused = true)]
async fn the_smaller_limit_of_loops_holds_though_it_stands_further_in() {
    let action = r#",{"role":"assistant","tool_calls":[{"id":"c","type":"function",
        "function":{"name":"poll","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c","content":"not yet"}"#;
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"go"}}{}]}}"#,
        action.repeat(2),
    );
    for (outer, inner) in [(3, 2), (2, 3)] {
        let upstream = Upstream::script(healthy());
        let service = ServiceBuilder::new()
            .layer(LoopGuardLayer::new().stop(outer))
            .layer(LoopGuardLayer::new().stop(inner))
            .service(upstream.clone());
        let request = Request::post("/v1/chat/completions");
        let request = request.body(ReplayBody::from(body.clone())).unwrap();

        let error = service.oneshot(request).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(TerminalReason::LoopDetected));
        assert_eq!(upstream.calls(), 0);
    }
}
