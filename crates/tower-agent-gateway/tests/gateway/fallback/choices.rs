//! Who may be asked next, and who may not.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    net::{Ask, CHAT, DIALECTS, Upstream, asks, run},
    support::Config,
};

/// Nothing is translated.
/// covers: H6
#[test]
fn a_candidate_of_another_dialect_is_skipped() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Config::default()
            .candidate("500", upstream.addr)
            .set("dialect = \"openai\"")
            .candidate("503", upstream.addr)
            .set("dialect = \"anthropic\"")
            .candidate("ok", upstream.addr)
            .set("dialect = \"openai\"")
            .start()
            .await;
        for (dialect, order) in
            DIALECTS
                .iter()
                .zip([&["500", "ok"] as &[&str], &["500", "ok"], &["503"]])
        {
            let before = upstream.count();
            let request = gateway.post(dialect.path, dialect.asks("500", false));
            request.ask().await;
            assert_eq!(upstream.models()[before..], *order, "{}", dialect.path);
        }
    });
}

#[test]
fn a_dialect_that_nobody_speaks_is_400_and_names_both() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Config::default()
            .candidate("ok", upstream.addr)
            .set("dialect = \"openai\"")
            .start()
            .await;
        let dialect = &DIALECTS[2];
        let request = gateway.post(dialect.path, dialect.asks("ok", false));
        let answer = request.ask().await;
        assert_eq!(answer.status, 400);
        let (kind, message) = dialect.error(answer.text());
        assert_eq!(kind, "invalid_request_error");
        assert!(
            message.contains("anthropic") && message.contains("openai"),
            "{message}"
        );
        assert_eq!(upstream.count(), 0);
    });
}

/// A client with one model may leave it to the gateway.
/// covers: F5
#[test]
fn a_missing_model_is_filled_in_if_the_configuration_says_so() {
    run(async {
        for fills in [true, false] {
            let upstream = Upstream::model().await;
            let settings = format!(
                "[fallback]\ndefault_model = {fills}\n[retry]\nmax_attempts_per_candidate = 1"
            );
            let config = Config::new(settings).candidates(&["500", "ok"], upstream.addr);
            let gateway = config.start().await;
            for dialect in &DIALECTS {
                let before = upstream.count();
                let body = "{ \"seed\":1.0000000000000000001,\"a\":{\"model\":\"x\"}} ";
                let answer = gateway.post(dialect.path, body).ask().await;
                assert_eq!(answer.status, 200);
                let sent = |model: &str| match fills {
                    true => body.replacen('{', &format!("{{\"model\":\"{model}\","), 1),
                    false => body.to_owned(),
                };
                let seen: Vec<_> = upstream.calls()[before..]
                    .iter()
                    .map(|call| String::from_utf8(call.body.to_vec()).unwrap())
                    .collect();
                match fills {
                    true => assert_eq!(seen, [sent("500"), sent("ok")]),
                    false => assert_eq!(seen, [sent("")]),
                }
            }
            // A `model` that is none is the caller's mistake.
            let answer = gateway.post(CHAT, "{\"model\":null}").ask().await;
            assert_eq!(answer.status, 400);
        }
    });
}

/// A key that is refused here is refused there.
#[test]
fn a_refused_key_goes_on_to_another_account_only() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Config::default()
            .candidate("401", upstream.addr)
            .set("api_key_env = \"ONE\"")
            .candidate("500", upstream.addr)
            .set("api_key_env = \"ONE\"")
            .candidate("ok", upstream.addr)
            .set("api_key_env = \"TWO\"")
            .env("ONE", "sk-1")
            .env("TWO", "sk-2")
            .start()
            .await;
        let answer = gateway.post(CHAT, asks("401", false)).ask().await;
        assert_eq!(answer.status, 200);
        assert_eq!(upstream.models(), ["401", "ok"]);
    });
}

/// A ceiling is not silence: the same would take as long again.
#[test]
fn an_attempt_at_its_ceiling_is_not_repeated() {
    run(async {
        let limits = "[attempt]\nmax_time = \"1s\"\n[retry]";
        let (upstream, gateway) = Config::new(limits)
            .start_with_model(&["prelude", "ok"])
            .await;
        let begun = Instant::now();
        let answer = gateway.post(CHAT, asks("prelude", true)).open().await;
        assert_eq!(answer.headers["x-served-model"], "ok");
        assert!(begun.elapsed() >= Duration::from_secs(1));
        assert_eq!(upstream.models(), ["prelude", "ok"]);
    });
}

/// The time that a run has is shared: a hung candidate leaves some for the next.
#[test]
fn a_ceiling_alone_leaves_time_for_the_next_candidate() {
    run(async {
        let limits = "[run]\nmax_turn_time = \"6s\"\n[retry]";
        let (upstream, gateway) = Config::new(limits)
            .start_with_model(&["silent", "ok"])
            .await;
        let begun = Instant::now();
        let answer = gateway.post(CHAT, asks("silent", true)).ask().await;
        assert_eq!(answer.status, 200);
        assert!(begun.elapsed() >= Duration::from_millis(2900));
        assert_eq!(upstream.models(), ["silent", "ok"]);
    });
}

/// Nor is begun what the time does not last for.
#[test]
fn a_wait_that_is_longer_than_the_time_left_is_not_begun() {
    run(async {
        let limits = "[run]\nmax_turn_time = \"90s\"\n[retry]";
        let (upstream, gateway) = Config::new(limits)
            .start_with_model(&["429-later", "ok"])
            .await;
        // Half of that is for the first one: a wait that was begun would outlast the test.
        let answer = gateway.post(CHAT, asks("429-later", false)).ask().await;
        assert_eq!(answer.headers["x-served-model"], "ok");
        assert_eq!(upstream.models(), ["429-later", "ok"]);
    });
}

/// The client's own retries are not multiplied by ours.
#[test]
fn a_clients_own_retries_lower_ours() {
    run(async {
        let limits = "[retry]\nmax_attempts_per_candidate = 3\nbase_delay = \"1ms\"";
        let (upstream, gateway) = Config::new(limits).start_with_model(&["500"]).await;
        for (count, calls) in [("0", 3), ("1", 2), ("2", 1), ("9", 1)] {
            let before = upstream.count();
            let request = gateway.post(CHAT, asks("500", false));
            let request = request.header("x-stainless-retry-count", count);
            assert_eq!(request.ask().await.status, 500);
            assert_eq!(upstream.count() - before, calls, "{count}");
        }
    });
}

/// An outage is not made worse: all runs together repeat what the bucket pays.
#[test]
fn all_calls_share_one_bucket() {
    run(async {
        let limits = "[retry]\nbase_delay = \"0s\"\nshared_ratio = 0.2\nshared_floor = 0";
        let (upstream, gateway) = Config::new(limits).start_with_model(&["500", "503"]).await;
        for _ in 0..20 {
            let request = gateway.post(CHAT, asks("500", false));
            assert_eq!(request.ask().await.status, 503);
        }
        // A fifth of twenty, of each: neither pays for the other.
        for model in ["500", "503"] {
            let calls = upstream.models().iter().filter(|it| *it == model).count();
            assert_eq!(calls, 24, "{model}");
        }
    });
}
