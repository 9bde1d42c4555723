//! Clients that do anything at once: the log, the metrics, the events, the records and the answers
//! agree.
//!
//! covers: H10

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    events::{Event, events},
    metrics::scrape,
    net::{Ask, CHAT, eventually, run, within},
    support::{Config, Gateway},
};

const CLIENTS: u64 = 12;
const REQUESTS: usize = 30;

const SETTINGS: &str = "[run]\nmax_turns = 2\nmax_turn_time = \"600ms\"\nidle = \"300ms\"\n\
    [attempt]\nstep_timeout = \"200ms\"\n\
    [retry]\nmax_attempts_per_candidate = 2\nbase_delay = \"1ms\"\nmax_delay = \"5ms\"\n";

/// How the upstream answers.
const WORDS: [&str; 11] = [
    "ok",
    "ok",
    "ok",
    "slow",
    "stall",
    "silent",
    "prelude",
    "cut-prelude",
    "error-event",
    "400",
    "503",
];

/// The reasons of ends without a record: no limit and no clock ended the run.
const UNRECORDED: [&str; 4] = [
    "aborted",
    "client_disconnect",
    "completed",
    "upstream_failed",
];

/// How often each reason was told.
type Counts = BTreeMap<String, u64>;

/// Sends requests one by one: the reasons in the answers that were read to their end.
async fn client(gateway: Arc<Gateway>, number: u64) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(number);
    let mut reasons = Vec::new();
    for _ in 0..REQUESTS {
        let word = random.choice(WORDS).unwrap();
        let stream = random.bool();
        let body = json!({"model": "m", "user": word, "stream": stream, "messages": []});
        let mut request = gateway.post(CHAT, body.to_string());
        let id = format!("{number}-{}", random.u8(..2));
        if random.u8(..4) > 0 {
            request = request.header("x-run-id", &id);
        }
        match random.u8(..7) {
            // New runs get a new stack, and the others keep theirs.
            6 => gateway.signal("HUP"),
            0 => {
                // The caller leaves at any moment, mostly before the head.
                let patience = Duration::from_millis(random.u64(..30));
                drop(tokio::time::timeout(patience, request.send()).await);
            }
            1 => drop(request.open().await),
            2 => {
                let mut answer = request.open().await;
                // The id may be unknown: the call has one of its own.
                let abort = gateway.post(&format!("/runs/{id}/abort"), "").ask().await;
                assert!([200, 404].contains(&abort.status.as_u16()));
                answer.rest().await;
            }
            _ => {
                let answer = request.ask().await;
                let failed = answer.reason().map(str::to_owned);
                if failed.is_some() || answer.status == 200 && !stream {
                    reasons.push(failed.unwrap_or_else(|| "completed".to_owned()));
                }
            }
        }
    }
    reasons
}

fn count(reasons: impl Iterator<Item = String>) -> Counts {
    let mut counts = Counts::new();
    for reason in reasons {
        *counts.entry(reason).or_default() += 1;
    }
    counts
}

/// The value of a label in a line of the metrics, or of a field in a line of the log.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = line.split_once(&format!("{name}=\""))?;
    Some(value.split_once('"')?.0)
}

/// The values of a metric, summed by a label. Without the label the reason is `completed`.
fn metric(text: &str, name: &str, label: &str) -> Counts {
    let mut counts = Counts::new();
    for line in text.lines().filter(|line| line.starts_with(name)) {
        let reason = value(line, label).unwrap_or("completed");
        let (_, number) = line.rsplit_once(' ').unwrap();
        *counts.entry(reason.to_owned()).or_default() += number.parse::<u64>().unwrap();
    }
    counts
}

/// Each run was told as opened before it was told as ended, and as ended once.
fn assert_ends_follow(events: &[Event]) {
    let mut open: BTreeMap<&str, i64> = BTreeMap::new();
    for (name, _, data) in events {
        let open = open.entry(data["run"].as_str().unwrap()).or_default();
        match &**name {
            "ended" => *open -= 1,
            _ if data["notice"]["kind"] == "opened" => *open += 1,
            _ => {}
        }
        assert!(*open >= 0, "ended before it was opened: {data}");
    }
    assert!(open.values().all(|open| *open == 0), "{open:?}");
}

#[test]
fn whatever_clients_do_all_that_is_told_agrees() {
    run(async {
        let config = Config::new(SETTINGS);
        let (upstream, gateway) = config.start_with_model(&["m", "n"]).await;
        let mut observer = gateway.get("/events").open().await;
        let observed = tokio::spawn(async move { events(&mut observer, usize::MAX).await });
        let gateway = Arc::new(gateway);
        let clients = (1..=CLIENTS).map(|number| client(Arc::clone(&gateway), number));
        let clients: Vec<_> = clients.map(tokio::spawn).collect();
        let mut answers = Vec::new();
        for client in clients {
            answers.extend(client.await.unwrap());
        }
        eventually(async || {
            let page = gateway.json("/runs?limit=1000").await;
            let mut runs = page["runs"].as_array().unwrap().iter();
            let is_over = |run: &Value| run["in_flight"] == 0 && !run["reason"].is_null();
            runs.all(is_over).then_some(())
        })
        .await;
        let text = scrape(&gateway).await;
        let mut gateway = Arc::into_inner(gateway).unwrap();
        gateway.signal("TERM");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
        let told = within(observed).await.unwrap();

        assert_ends_follow(&told);
        let ends = told.iter().filter(|(name, ..)| name == "ended");
        let ends = count(ends.map(|(.., data)| data["reason"].as_str().unwrap().to_owned()));
        assert_eq!(metric(&text, "agent_runs_ended_total", "reason"), ends);
        for reason in [
            "completed",
            "upstream_failed",
            "step_timeout",
            "turn_cap_reached",
        ] {
            assert!(ends.contains_key(reason), "no run ended so: {reason}");
        }
        let log = gateway.log();
        let calls = log.lines().filter(|line| line.contains("call ended"));
        let calls = count(calls.map(|line| value(line, "reason").unwrap().to_owned()));
        let duration = "gen_ai_client_operation_duration_seconds_count";
        assert_eq!(metric(&text, duration, "error_type"), calls);
        for (reason, read) in count(answers.into_iter()) {
            let calls = calls.get(&reason).copied().unwrap_or(0);
            assert!(read <= calls, "{reason}: {read} answers, {calls} calls");
        }
        let records = gateway.records();
        let records = count(
            records
                .iter()
                .map(|it| it["reason"].as_str().unwrap().to_owned()),
        );
        let mut ends = ends;
        ends.retain(|reason, _| !UNRECORDED.contains(&&**reason));
        assert_eq!(records, ends);
        assert_eq!(upstream.open(), 0);
    });
}
