//! The same turns over both transports: usage, cost, metrics and log are equal, to the token.

use std::collections::BTreeMap;

use serde_json::Value;

use super::client::{Caller, PATH, continuing, create, kept_item, upstream};
use crate::{
    net::{Ask, Call, Upstream, eventually, run},
    support::{Config, Gateway},
};

const TURNS: [&str; 5] = ["one", "deltas 50", "big 3000", "400", "failed"];

async fn start(upstream: &Upstream) -> Gateway {
    let config =
        Config::new("[run]\nmax_turns = 50\nmax_cost = 9\n[retry]\nmax_attempts_per_candidate = 2");
    let config = config.candidate("m", upstream.addr);
    config
        .set("price = { input = 2.5, output = 10, cached_input = 1.25 }")
        .start()
        .await
}

/// The counters of `/metrics`, without times.
async fn counters(gateway: &Gateway) -> BTreeMap<String, String> {
    let text = gateway.get("/metrics").ask().await;
    let lines = text.text().lines().filter(|line| !line.starts_with('#'));
    let is_count = |line: &&str| {
        let timed = [
            "duration",
            "latency",
            "_seconds",
            "websockets",
            "buffer_bytes",
            "time_to_first",
            "time_per",
        ];
        !timed.iter().any(|name| line.contains(name))
    };
    let pairs = lines
        .filter(is_count)
        .filter_map(|line| line.rsplit_once(' '));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The lines of the log about calls, without times and addresses.
fn calls(gateway: &Gateway) -> Vec<String> {
    let log = gateway.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("call ended") || line.contains("call failed"));
    lines
        .map(|line| {
            let words = line.split_whitespace().skip(1);
            let words =
                words.filter(|word| !word.starts_with("elapsed=") && !word.contains("127.0.0.1"));
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// The run as the operator sees it once nothing is under way, without times.
async fn settled(gateway: &Gateway) -> Option<Value> {
    let mut row = gateway.json("/runs/r-1").await;
    if row["in_flight"] != 0 {
        return None;
    }
    let members = row.as_object_mut().unwrap();
    let kept = [
        "run",
        "turns",
        "spent",
        "reason",
        "errors",
        "consecutive_errors",
        "text",
    ];
    members.retain(|name, _| kept.contains(&name.as_str()));
    Some(row)
}

#[test]
fn the_same_turns_cost_the_same_over_both_transports() {
    run(async {
        let (over_http, over_socket) = (upstream().await, upstream().await);
        let (http, socket) = (start(&over_http).await, start(&over_socket).await);
        let mut caller = Caller::connect_with(&socket, &[("x-run-id", "r-1")]).await;
        let (mut items, mut last) = (Vec::new(), None::<String>);
        for turn in TURNS {
            let mut body = create(turn);
            items.push(body["input"][0].clone());
            body["input"] = Value::Array(items.clone());
            // What a socket takes up by the id, or is sent in full after a failure.
            let event = match &last {
                Some(id) => continuing(id, turn),
                None => body.clone(),
            };
            body["stream"] = true.into();
            body.as_object_mut().unwrap().remove("type");
            let answer = http
                .post(PATH, body.to_string())
                .header("x-run-id", "r-1")
                .ask()
                .await;
            caller.send(&event).await;
            let events = caller.response().await;
            let end = events.last().unwrap();
            last = None;
            if end["type"] == "response.completed" {
                // The events are the same, one for one.
                let sent: Vec<Value> = answer
                    .text()
                    .lines()
                    .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
                    .collect();
                assert_eq!(sent, events, "{turn}");
                last = Some(end["response"]["id"].as_str().unwrap().to_owned());
                let text = end["response"]["output"][0]["content"][0]["text"].as_str();
                items.push(kept_item(text.unwrap()));
            } else {
                items.pop();
            }
        }
        let sent =
            |upstream: &Upstream| upstream.calls().iter().map(Call::json).collect::<Vec<_>>();
        assert_eq!(sent(&over_http), sent(&over_socket));
        assert!(over_http.count() > TURNS.len(), "a failure was repeated");

        let row_of_http = eventually(async || settled(&http).await).await;
        let row_of_socket = eventually(async || settled(&socket).await).await;
        assert_eq!(row_of_http, row_of_socket);
        let spent = &row_of_http["spent"];
        assert_eq!(spent["output_tokens"], 15, "{row_of_http}");
        assert!(spent["cost"].as_f64().unwrap() > 0.0);
        let (of_http, of_socket) = (counters(&http).await, counters(&socket).await);
        assert!(
            of_http.keys().any(|name| name.contains("token")),
            "{of_http:?}"
        );
        assert_eq!(of_http, of_socket);
        assert_eq!(calls(&http), calls(&socket));
        assert!(calls(&http).len() >= 3, "{}", http.log());
    });
}
