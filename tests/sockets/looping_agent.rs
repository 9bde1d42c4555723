//! An agent that goes in circles, on sockets: found at its fifth action, which the gateway
//! knows of from the requests of the run alone.
//!
//! covers: A9

use axum::{Router, routing::any_service};
use bytes::Bytes;
use futures_util::FutureExt;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tower::ServiceBuilder;
use tower_agent::{
    LoopGuardLayer, ReplayBody, RunEvent, RunLayer, RunNotice, RunRegistry, StepTimeoutLayer,
    TerminalResponseLayer, run::RunEvents,
};
use tower_agent_reqwest::ReqwestService;

use crate::net::{CHAT, Client, Play, Upstream, Version, run, serve};

/// A model that wants the same tool every time.
fn polls() -> Play {
    let wants = json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant",
        "tool_calls": [{"id": "call", "type": "function", "function": {
            "name": "job_status",
            "arguments": "{\"job\":7}",
        }}],
    }}]});
    let body = wants.to_string();
    Play::keep(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
}

/// Serves what looks after agents in front of `upstream`: where, and what it tells.
async fn guard(upstream: &Upstream) -> (std::net::SocketAddr, RunEvents) {
    let registry = RunRegistry::new();
    let events = registry.subscribe();
    let client = ReqwestService::new(reqwest::Client::builder().no_proxy()).unwrap();
    let uri: http::Uri = format!("http://{}{CHAT}", upstream.addr).parse().unwrap();
    let stack = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(registry))
        .layer(LoopGuardLayer::new())
        .layer(StepTimeoutLayer::local())
        .map_request(move |mut request: Request<ReplayBody>| {
            *request.uri_mut() = uri.clone();
            request
        })
        .service(client);
    let app = Router::new().fallback_service(any_service(stack));
    (serve(app).await, events)
}

/// Asks the model, with all that was said before: the message that it answers.
async fn ask(client: &mut Client, messages: &[Value]) -> Value {
    let body = json!({"model": "m", "messages": messages}).to_string();
    let request = Request::post(format!("http://gateway{CHAT}"))
        .header("x-run-id", "agent-1")
        .body(Full::<Bytes>::from(body))
        .unwrap();
    let answer = client.ask(request).await.unwrap();
    assert!(answer.status.is_success(), "{answer:?}");
    answer.json()["choices"][0]["message"].clone()
}

/// After how many repeats the run was told of as stuck since the last look.
fn stuck(events: &mut RunEvents) -> Vec<u32> {
    let mut found = Vec::new();
    while let Some(Some(event)) = events.next().now_or_never() {
        if let RunEvent::Notice {
            notice: RunNotice::LooksStuck { repeats },
            ..
        } = event
        {
            found.push(repeats);
        }
    }
    found
}

#[test]
fn it_is_found_with_the_result_of_its_fifth_call() {
    run(async {
        let upstream = Upstream::http1(polls()).await;
        let (addr, mut events) = guard(&upstream).await;
        let mut client = Client::connect(addr, Version::Http1).await;
        let mut messages = vec![json!({"role": "user", "content": "is the job done?"})];
        for turn in 0..5 {
            let mut wants = ask(&mut client, &messages).await;
            assert!(stuck(&mut events).is_empty(), "{turn} actions are no loop");
            let id = format!("call-{turn}");
            wants["tool_calls"][0]["id"] = json!(id);
            let result = json!({"role": "tool", "tool_call_id": id, "content": "running"});
            messages.extend([wants, result]);
        }

        ask(&mut client, &messages).await;

        assert_eq!(stuck(&mut events), [5]);
        assert_eq!(upstream.count(), 6, "it is told, and not ended");
    });
}
