//! Limits of an agent, which its key chooses.
//!
//! covers: A5

use crate::{
    net::{Ask, CHAT, Upstream, chat, eventually, run},
    support::{Config, Gateway},
};

const AUTH: &str = "[auth]\nkeys_env = \"TEST_KEYS\"\n";

const KEYS: (&str, &str) = ("TEST_KEYS", "one:sk-one,two:sk-two,rest:sk-rest");

async fn start(more: &str) -> (Upstream, Gateway) {
    let (upstream, gateway) = Config::new(format!("{more}\n{AUTH}"))
        .env(KEYS.0, KEYS.1)
        .start_with_model(&["m"])
        .await;
    (upstream, gateway)
}

/// All but one have 100 ms, and that one any time.
#[test]
fn an_agents_limit_beats_that_of_all_and_zero_switches_it_off() {
    run(async {
        let limits = "[run]\nmax_turn_time = \"100ms\"\n\
                      [agents.one]\nmax_turn_time = \"0s\"\n\
                      [agents.two]\nmax_turn_time = \"1h\"\ntimeout = \"100ms\"";
        let (_upstream, gateway) = start(limits).await;
        for (key, user, status, reason) in [
            ("sk-rest", "silent", 504, Some("max_turn_time")),
            ("sk-two", "silent", 504, Some("timeout")),
            // The upstream's own word, after 700 ms.
            ("sk-one", "slow-503", 503, None),
        ] {
            let answer = gateway.post(CHAT, chat(user)).bearer_auth(key).ask().await;
            assert_eq!(answer.status, status, "{key}");
            let told = answer.headers.get("x-terminal-reason");
            assert_eq!(told.map(|it| it.to_str().unwrap()), reason, "{key}");
        }
    });
}

/// Which header a caller could think of makes no difference.
/// covers: D6
#[test]
fn an_agent_has_as_many_attempts_as_its_key_says() {
    run(async {
        let retries = "[retry]\nbase_delay = \"0s\"\n\
                       [agents.one]\nmax_attempts_per_candidate = 3\n\
                       [agents.two]\nmax_attempts_per_candidate = 1";
        let (upstream, gateway) = start(retries).await;
        for (key, attempts) in [("sk-one", 3), ("sk-two", 1), ("sk-rest", 2)] {
            let before = upstream.count();
            let request = gateway.post(CHAT, chat("500")).bearer_auth(key);
            let request = request.header("x-agent", "one").header("x-name", "one");
            let request = request.header("x-max-attempts-per-candidate", "9");
            assert_eq!(request.ask().await.status, 500);
            assert_eq!(upstream.count() - before, attempts, "{key}");
        }
    });
}

/// Two first attempts pay for one repeat, whosever they are.
#[test]
fn agents_share_what_all_may_repeat() {
    run(async {
        let shared = "[retry]\nbase_delay = \"0s\"\nshared_ratio = 0.5\nshared_floor = 0\n\
                      [agents.one]\nper_run = 9\n[agents.two]\nper_run = 8";
        let (upstream, gateway) = start(shared).await;
        for (key, calls) in [("sk-one", 1), ("sk-two", 3), ("sk-rest", 4)] {
            assert_eq!(
                gateway
                    .post(CHAT, chat("500"))
                    .bearer_auth(key)
                    .ask()
                    .await
                    .status,
                500
            );
            assert_eq!(upstream.count(), calls, "{key}");
        }
    });
}

#[test]
fn an_agent_that_may_repeat_more_does_not_use_up_what_is_for_all() {
    run(async {
        let shared = "[retry]\nbase_delay = \"0s\"\nshared_ratio = 0.5\nshared_floor = 0\n\
                      [agents.one]\nshared_ratio = 1";
        let (upstream, gateway) = start(shared).await;
        for (key, calls) in [("sk-rest", 1), ("sk-one", 3), ("sk-one", 5), ("sk-two", 7)] {
            assert_eq!(
                gateway
                    .post(CHAT, chat("500"))
                    .bearer_auth(key)
                    .ask()
                    .await
                    .status,
                500
            );
            assert_eq!(upstream.count(), calls, "{key}");
        }
    });
}

#[test]
fn agents_know_together_whom_to_leave_alone() {
    run(async {
        let cooldown = "[fallback]\ncooldown = true\n[agents.one]\nper_run = 9";
        let (upstream, gateway) = start(cooldown).await;
        assert_eq!(
            gateway
                .post(CHAT, chat("500"))
                .bearer_auth("sk-one")
                .ask()
                .await
                .status,
            500
        );
        for key in ["sk-two", "sk-rest", "sk-one"] {
            let answer = gateway.post(CHAT, chat("ok")).bearer_auth(key).ask().await;
            assert_eq!(answer.status, 503, "{key}");
            assert!(answer.headers.contains_key("retry-after"));
        }
        assert_eq!(upstream.count(), 1);
    });
}

#[test]
fn an_agents_failures_end_its_own_run() {
    run(async {
        let (upstream, gateway) = start("[agents.one]\nper_run = 1").await;
        let fail = async |key: &str, id: &str| {
            let request = gateway.post(CHAT, chat("500")).bearer_auth(key);
            request.header("x-run-id", id).ask().await.status
        };
        for (key, id) in [("sk-one", "r-1"), ("sk-two", "r-2")] {
            assert_eq!(fail(key, id).await, 500, "{key}");
            assert_eq!(fail(key, id).await, 500, "{key}");
        }
        // It is counted when the call is over, which its client cannot see.
        eventually(async || {
            let run = gateway.json("/runs/r-1").await;
            (run["reason"] == "per_dispatch_errors_exceeded").then_some(())
        })
        .await;
        assert_eq!(fail("sk-one", "r-1").await, 422);
        assert_eq!(fail("sk-two", "r-2").await, 500);
        assert_eq!(upstream.count(), 5);
    });
}

/// All runs of an id but for those of one agent are soon idle.
#[test]
fn a_run_of_which_nothing_more_is_heard_completes() {
    run(async {
        let idle = "[run]\nidle = \"20ms\"\n[agents.one]\nidle = \"0s\"";
        let (_upstream, gateway) = start(idle).await;
        for (key, id) in [("sk-one", "r-1"), ("sk-two", "r-2")] {
            let request = gateway.post(CHAT, chat("ok")).bearer_auth(key);
            let request = request.header("x-run-id", id);
            let answer = request.ask().await;
            assert_eq!(answer.status, 200);
        }
        eventually(async || {
            (gateway.json("/runs/r-2").await["reason"] == "completed").then_some(())
        })
        .await;
        let kept = gateway.json("/runs/r-1").await;
        assert!(kept["reason"].is_null(), "{kept}");
    });
}
