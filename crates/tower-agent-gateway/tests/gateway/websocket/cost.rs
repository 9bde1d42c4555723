//! What a socket costs. `.ci/full.d/websocket` asks for more than the tests do, and shows the figures.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::client::{Caller, PATH, create};
use crate::{
    net::{Ask, Play, SSE_HEAD, Upstream, chunk, eventually, run_alone},
    support::Config,
};

/// A number of the environment.
fn number(variable: &str, absent: usize) -> usize {
    let number = std::env::var(variable).ok();
    number.map_or(absent, |number| number.parse().unwrap())
}

/// Resident memory of an idle socket: at most 40 KB, also behind messages of 4 MiB.
#[test]
#[cfg(target_os = "linux")]
fn an_idle_socket_takes_at_most_40_kb() {
    run_alone(async {
        let sockets = number("SOCKETS", 1000);
        let upstream = super::client::upstream().await;
        let config = Config::new("[server]\nmax_connections = 12000");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut first = Caller::connect(&gateway).await;
        first.create("ok").await;
        first.completed().await;
        let before = gateway.process.memory("VmRSS");
        let connecting = stream::iter(0..sockets).map(|_| Caller::connect(&gateway));
        let mut callers: Vec<_> = connecting.buffer_unordered(100).collect().await;
        let idle = gateway.process.memory("VmRSS") - before;
        println!(
            "{sockets} idle sockets: {idle} MiB, {} KiB each",
            idle * 1024 / sockets
        );

        // Each has had a message, of which nothing is kept.
        let messages = number("MESSAGES", 20);
        let long = " ".repeat(4 << 20);
        for caller in callers.iter_mut().take(messages) {
            caller.send_text(long.as_str()).await;
            assert_eq!(caller.error().await["error"]["code"], "invalid_json");
        }
        let after = eventually(async || {
            let held = gateway.process.memory("VmRSS") - before;
            (held < idle + 40).then_some(held)
        })
        .await;
        println!("behind {messages} messages of 4 MiB: {after} MiB");
        assert!(idle << 20 <= sockets * 40_000, "{idle} MiB");
    });
}

const TURNS: usize = 30;

/// A turn of an agent: a tool is called, and its output of 2 KB goes into the next request.
#[test]
fn thirty_tool_turns_on_a_socket_beside_thirty_posts() {
    run_alone(async {
        let upstream = Upstream::http1(answer()).await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let url = format!("http://{}{PATH}", gateway.addr);
        let rounds = number("ROUNDS", 1);
        let (mut over_socket, mut over_http) = (Vec::new(), Vec::new());
        let mut sent = [0, 0];
        for round in 0..rounds {
            let began = Instant::now();
            let mut items = vec![instructions()];
            let mut bytes = 0;
            for turn in 0..TURNS {
                let body = json!({ "model": "m", "store": false, "stream": true, "input": items })
                    .to_string();
                bytes += body.len();
                let answer = client.post(&url).header("x-run-id", format!("h-{round}"));
                let answer = answer
                    .header("content-type", "application/json")
                    .body(body)
                    .ask()
                    .await;
                assert!(answer.text().contains("response.completed"));
                items.extend([call(), output(turn)]);
            }
            over_http.push(began.elapsed());
            sent[0] = bytes;

            let run = format!("s-{round}");
            let mut caller = Caller::connect_with(&gateway, &[("x-run-id", &*run)]).await;
            let began = Instant::now();
            let mut event = create("");
            event["input"] = json!([instructions()]);
            let mut bytes = 0;
            for turn in 0..TURNS {
                let text = event.to_string();
                bytes += text.len();
                caller.send_text(text).await;
                let id = caller.completed().await;
                event["previous_response_id"] = id.into();
                event["input"] = json!([output(turn)]);
            }
            over_socket.push(began.elapsed());
            sent[1] = bytes;
        }
        let [http, socket] = [over_http, over_socket].map(median);
        let ratio = socket.as_secs_f64() / http.as_secs_f64();
        assert!(sent[1] * 10 < sent[0], "{sent:?}");
        println!(
            "{TURNS} turns, median of {rounds}: POST {http:?}, {} bytes sent; socket {socket:?}, {} bytes sent; {ratio:.2}",
            sent[0], sent[1]
        );
    });
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn instructions() -> Value {
    json!({ "type": "message", "role": "developer", "content": "x".repeat(20 * 1024) })
}

fn call() -> Value {
    json!({ "type": "function_call", "call_id": "call_1", "name": "shell", "arguments": "{\"cmd\":\"ls\"}" })
}

fn output(turn: usize) -> Value {
    let text = format!("{turn}{}", "y".repeat(2048));
    json!({ "type": "function_call_output", "call_id": "call_1", "output": text })
}

fn answer() -> Play {
    let mut item = call();
    item["id"] = "fc_1".into();
    let response = json!({ "id": "resp_1", "object": "response", "status": "completed", "output": [item],
        "usage": { "input_tokens": 9, "output_tokens": 9, "total_tokens": 18 } });
    let events = [
        json!({ "type": "response.created", "response": { "id": "resp_1", "object": "response" } }),
        json!({ "type": "response.output_item.added", "output_index": 0, "item": item }),
        json!({ "type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{\"cmd\":\"ls\"}" }),
        json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
        json!({ "type": "response.completed", "response": response }),
    ];
    let events: String = events
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    Play::keep(format!("{SSE_HEAD}{}0\r\n\r\n", chunk(&events)))
}
