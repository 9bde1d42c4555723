//! What is counted, for Prometheus.

use crate::{
    net::{Ask, CHAT, Upstream, eventually, run, until},
    support::{Config, Gateway},
};

pub(crate) async fn scrape(gateway: &Gateway) -> String {
    let answer = gateway.get("/metrics").ask().await;
    assert_eq!(answer.status, 200);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(answer.headers["content-type"], kind);
    answer.text().to_owned()
}

fn value(text: &str, sample: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample));
    line.map_or(0, |line| line.trim().parse().unwrap())
}

/// The series of a candidate's calls, or of the values that they made.
fn calls(metric: &str, candidate: &str, more: &str) -> String {
    format!(
        "gen_ai_client_{metric}{{gen_ai_operation_name=\"chat\",gen_ai_provider_name=\"openai\",\
         gen_ai_request_model=\"{candidate}\"{more}}}"
    )
}

/// The series of a candidate's calls that ended for a reason, or completed.
fn ended(candidate: &str, reason: Option<&str>) -> String {
    let error = reason.map(|reason| format!(",error_type=\"{reason}\""));
    let metric = "operation_duration_seconds_count";
    calls(metric, candidate, &error.unwrap_or_default())
}

#[test]
fn each_call_and_each_run_is_counted_once() {
    run(async {
        let more = "[retry]\nbase_delay = \"0s\"";
        let (_upstream, gateway) = Config::new(more)
            .start_with_model(&["500", "slow", "stall"])
            .await;
        let ask = |model: &str| {
            let body = format!("{{\"model\":\"{model}\",\"stream\":true,\"messages\":[]}}");
            gateway.post(CHAT, body)
        };
        // Two tries of the first candidate, then the second serves: 7 and 2 tokens.
        for _ in 0..2 {
            ask("500").ask().await;
        }
        let served = ended("slow", None);
        let stalled = ask("stall").header("x-run-id", "r-1");
        let stalled = stalled.open().await;
        let text = eventually(async || {
            let text = scrape(&gateway).await;
            let runs = value(&text, "agent_runs_ended_total{reason=\"completed\"}");
            (runs == 2 && value(&text, &served) == 2).then_some(text)
        })
        .await;
        assert_eq!(value(&text, "agent_runs_open"), 1, "{text}");
        let tokens = |kind: &str| {
            let kind = format!(",gen_ai_token_type=\"{kind}\"");
            calls("token_usage_sum", "slow", &kind)
        };

        assert!(gateway.abort("r-1").await);
        drop(stalled);
        let aborted = ended("stall", Some("aborted"));
        let text = eventually(async || {
            let text = scrape(&gateway).await;
            let calls = value(&text, &aborted);
            let runs = value(&text, "agent_runs_ended_total{reason=\"aborted\"}");
            (calls > 0 && runs > 0).then_some(text)
        })
        .await;
        for (sample, count) in [
            ("agent_runs_open", 0),
            ("agent_runs_ended_total{reason=\"aborted\"}", 1),
            ("agent_runs_ended_total{reason=\"completed\"}", 2),
            (&*aborted, 1),
            (&*served, 2),
            ("agent_attempts_total{model=\"500\",outcome=\"5xx\"}", 4),
            ("agent_attempts_total{model=\"slow\",outcome=\"2xx\"}", 2),
            ("agent_attempts_total{model=\"stall\",outcome=\"2xx\"}", 1),
            (&*tokens("input"), 14),
            (&*tokens("output"), 4),
            (
                "agent_fallbacks_total{from=\"500\",to=\"slow\",why=\"server\"}",
                2,
            ),
            ("agent_retry_budget_denied_total{budget=\"spent\"}", 2),
            (
                &*calls("operation_time_to_first_chunk_seconds_count", "slow", ""),
                2,
            ),
        ] {
            assert_eq!(value(&text, sample), count, "{sample}: {text}");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some(name) = line
                .split(['{', ' '])
                .next()
                .filter(|name| !name.is_empty())
            else {
                continue;
            };
            let parts = ["_bucket", "_sum", "_count"];
            let histogram = parts.iter().find_map(|part| name.strip_suffix(part));
            let (name, kind) = match histogram {
                Some(name) => (name, "histogram"),
                None if name.ends_with("_total") => (name, "counter"),
                None => (name, "gauge"),
            };
            assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{line}");
            assert!(text.contains(&format!("# HELP {name} ")), "{line}");
        }
    });
}

/// Where no answer began, why not.
/// covers: T102
#[test]
fn tries_are_counted_by_whom_they_went_to_and_what_came_of_them() {
    run(async {
        let upstream = Upstream::model().await;
        let of = |limit: &str| {
            Config::new(format_args!("[attempt]\nfirst_token_timeout = \"{limit}\""))
                .candidate("silent", upstream.addr)
                .candidate("gone", ([127, 0, 0, 1], 1).into())
        };
        let body = "{\"model\":\"silent\",\"messages\":[]}";
        let count = |text: &str, candidate: &str, outcome: &str| {
            let labels = format!("model=\"{candidate}\",outcome=\"{outcome}\"");
            value(text, &format!("agent_attempts_total{{{labels}}}"))
        };

        let gateway = of("200ms").start().await;
        let answer = gateway.post(CHAT, body).ask().await;
        assert!(!answer.status.is_success());
        let text = scrape(&gateway).await;
        let counts = [("silent", "step_timeout"), ("gone", "error")];
        assert_eq!(
            counts.map(|(who, why)| count(&text, who, why)),
            [1, 1],
            "{text}"
        );

        let gateway = of("60s").start().await;
        let leaves = tokio::spawn(gateway.post(CHAT, body).ask());
        until(|| upstream.count() == 2).await;
        leaves.abort();
        eventually(async || {
            let text = scrape(&gateway).await;
            (count(&text, "silent", "given_up") == 1).then_some(())
        })
        .await;
    });
}

/// What callers make up is not a label.
/// covers: T103
#[test]
fn what_callers_send_makes_no_series() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let series = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        let mut counts = Vec::new();
        for number in 0..3 {
            let body = format!("{{\"model\":\"made-up-{number}\",\"messages\":[]}}");
            let request = gateway
                .post(CHAT, body)
                .header("x-run-id", format!("r-{number}"));
            request.ask().await;
            let text = eventually(async || {
                let text = scrape(&gateway).await;
                (value(&text, &ended("m", None)) == number + 1).then_some(text)
            });
            let text = text.await;
            assert!(!text.contains("made-up"), "{text}");
            counts.push(series(&text));
        }
        assert_eq!(counts[0], counts[2]);
    });
}
