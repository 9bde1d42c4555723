//! A new configuration at SIGHUP.
//!
//! covers: H9

mod owners;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future::{join, join_all};
use serde_json::json;

use crate::{
    net::{Ask, CHAT, Raw, Upstream, asks, chat, eventually, run},
    support::{Config, File, Gateway},
};

async fn start(settings: &str) -> (Upstream, Gateway, File) {
    let upstream = Upstream::model().await;
    let config = Config::new(settings).candidates(&["m"], upstream.addr);
    let (gateway, file) = config.start_with_file().await;
    (upstream, gateway, file)
}

/// Sends SIGHUP, and waits for the `count`th line of the log with these words.
async fn reload(gateway: &Gateway, words: &str, count: usize) {
    gateway.signal("HUP");
    eventually(async || (gateway.log().matches(words).count() >= count).then_some(())).await;
}

async fn status(gateway: &Gateway, run: &str) -> u16 {
    let request = gateway.post(CHAT, chat("m")).header("x-run-id", run);
    request.ask().await.status.as_u16()
}

#[test]
fn a_new_limit_holds_for_new_runs_and_no_open_stream_is_cut() {
    run(async {
        let (upstream, gateway, file) = start("[run]\nmax_turns = 9\nmax_turn_time = \"1h\"").await;
        let held =
            json!({"model": "m", "user": "held", "stream": true, "messages": []}).to_string();
        let open = (0..100).map(|index| {
            let request = gateway.post(CHAT, held.clone());
            request.header("x-run-id", format!("open-{index}")).open()
        });
        let mut streams = join_all(open).await;
        join_all(streams.iter_mut().map(|stream| stream.until("data:"))).await;

        let config = Config::new("[run]\nmax_turns = 1").candidates(&["m", "n"], upstream.addr);
        file.replace(&config);
        reload(&gateway, "configuration reloaded", 1).await;

        assert_eq!(status(&gateway, "new").await, 200);
        assert_eq!(status(&gateway, "new").await, 422);
        assert_eq!(gateway.json("/v1/models").await["data"][1]["id"], "n");
        assert_eq!(upstream.open(), 100);
        upstream.resume();
        for stream in &mut streams {
            let rest = stream.rest().await;
            assert!(rest.contains("[DONE]"), "{rest}");
        }
        let runs = gateway.json("/runs?limit=200").await;
        let ended = runs["runs"].as_array().unwrap().iter();
        let ended: Vec<_> = ended.filter(|run| !run["reason"].is_null()).collect();
        assert_eq!(ended.len(), 1, "{ended:?}");
        let metrics = gateway.get("/metrics").ask().await;
        assert!(
            metrics
                .text()
                .contains("agent_runs_ended_total{reason=\"turn_cap_reached\"} 1")
        );
    });
}

#[test]
fn a_file_with_a_mistake_changes_nothing_and_the_log_names_the_place() {
    run(async {
        let (upstream, gateway, file) = start("[run]\nmax_turns = 1").await;
        let wrong = Config::new("[run]\nmax_turns = \"many\"\nidle = \"soon\"");
        file.replace(&wrong.candidates(&["m"], upstream.addr));
        reload(&gateway, "configuration not reloaded", 2).await;
        for place in ["2:13: run.max_turns", "3:8: run.idle"] {
            let log = gateway.log();
            let place = format!("{}:{place}", file.path());
            let mut lines = log.lines().filter(|line| line.contains("not reloaded"));
            assert!(lines.any(|line| line.contains(&place)), "{log}");
        }
        assert_eq!(status(&gateway, "r").await, 200);
        assert_eq!(status(&gateway, "r").await, 422);

        let drains = "[control]\ndrain = \"1s\"\n[run]\nmax_turns = 2";
        file.replace(&Config::new(drains).candidates(&["m"], upstream.addr));
        reload(&gateway, "configuration reloaded", 1).await;
        assert!(
            gateway.log().contains("until a restart"),
            "{}",
            gateway.log()
        );
        let statuses = [
            status(&gateway, "s").await,
            status(&gateway, "s").await,
            status(&gateway, "s").await,
        ];
        assert_eq!(statuses, [200, 200, 422]);
    });
}

#[test]
fn an_open_run_keeps_its_limits_and_its_candidates_and_a_new_one_has_others() {
    run(async {
        let limits = |turns: u32| format!("[run]\nmax_turns = {turns}");
        let (upstream, gateway, file) = start(&limits(2)).await;
        assert_eq!(status(&gateway, "open").await, 200);
        assert_eq!(status(&gateway, "ended").await, 200);
        let ended = gateway.post("/runs/ended/abort", "").ask().await;
        assert_eq!(ended.status, 200);

        for (count, (turns, model)) in [(1, "n"), (9, "m")].into_iter().enumerate() {
            file.replace(&Config::new(limits(turns)).candidates(&[model], upstream.addr));
            reload(&gateway, "configuration reloaded", count + 1).await;
        }

        let answer = gateway.post(CHAT, chat("m")).header("x-run-id", "open");
        let answer = answer.ask().await;
        assert_eq!(answer.header("x-served-model"), Some("m"));
        // Neither one turn nor nine.
        assert_eq!(status(&gateway, "open").await, 422);
        assert_eq!(status(&gateway, "ended").await, 499, "it is over");
        let turns = [(); 9].map(|()| status(&gateway, "new"));
        assert!(join_all(turns).await.iter().all(|status| *status == 200));
        assert_eq!(status(&gateway, "new").await, 422);
    });
}

/// An agent that sends no `x-run-id` has a run for each turn of its user.
#[test]
fn the_run_of_a_known_agent_keeps_its_limits() {
    run(async {
        let (upstream, gateway, file) = start("[run]\nmax_turns = 3").await;
        let ask = async |words: &str| {
            let body = json!({"model": "m", "messages": [{"role": "user", "content": words}]});
            let request = gateway.post(CHAT, body.to_string());
            let request = request.header("x-opencode-session", "s");
            request.ask().await.status.as_u16()
        };
        assert_eq!(ask("one").await, 200);
        file.replace(&Config::new("[run]\nmax_turns = 1").candidates(&["m"], upstream.addr));
        reload(&gateway, "configuration reloaded", 1).await;

        assert_eq!([ask("one").await, ask("one").await], [200, 200]);
        assert_eq!(ask("one").await, 422);
        assert_eq!([ask("two").await, ask("two").await], [200, 422]);
    });
}

/// A sub-agent that begins after the reload has the new caps, and the run above it keeps its own.
#[test]
fn lower_caps_of_a_new_sub_agent_do_not_end_the_open_run_above() {
    run(async {
        let settings = |tokens: u32| {
            let agents = "[[known_agents.headers]]\nsession = \"x-chat\"\nagent = \"x-agent\"";
            format!("{agents}\n[run]\nmax_total_tokens = {tokens}")
        };
        let (upstream, gateway, file) = start(&settings(1000)).await;
        let ask = async |agent: Option<&str>| {
            let body = json!({"model": "m", "user": "slow", "stream": true,
                "messages": [{"role": "user", "content": "one"}]});
            let request = gateway.post(CHAT, body.to_string()).header("x-chat", "s");
            let request = match agent {
                Some(agent) => request.header("x-agent", agent),
                None => request,
            };
            request.ask().await.status.as_u16()
        };
        // Nine tokens each.
        assert_eq!([ask(None).await, ask(None).await], [200, 200]);
        file.replace(&Config::new(settings(9)).candidates(&["m"], upstream.addr));
        reload(&gateway, "configuration reloaded", 1).await;

        assert_eq!([ask(Some("a")).await, ask(Some("a")).await], [200, 422]);
        assert_eq!(ask(None).await, 200);
        let runs = gateway.json("/runs").await;
        assert_eq!(runs["runs"].as_array().unwrap().len(), 2, "{runs}");
    });
}

/// The gateway reads its body to find the run; the run begins after that, and so after the reload.
#[test]
fn a_run_that_begins_after_a_reload_has_one_configuration() {
    run(async {
        let (upstream, gateway, file) = start("").await;
        let body = chat("ok");
        let agent = "x-opencode-session: s";
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: h\r\n{agent}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut slow = Raw::request(gateway.addr, &head).await;
        let (first, rest) = body.split_at(10);
        slow.send(first).await;
        tokio::time::sleep(Duration::from_millis(300)).await;

        file.replace(&Config::new("").candidates(&["n"], upstream.addr));
        reload(&gateway, "configuration reloaded", 1).await;
        slow.send(rest).await;
        assert_eq!(slow.answer().await.status, 200);

        let next = gateway.post(CHAT, body).header("x-opencode-session", "s");
        assert_eq!(next.ask().await.status, 200);
        assert_eq!(upstream.models(), ["n", "n"]);
    });
}

/// A reload in an outage must not begin the caps and the rests anew.
#[test]
fn cooldowns_and_the_turns_of_an_owner_outlive_a_reload() {
    run(async {
        let settings = "[auth]\nkeys_env = \"TEST_KEYS\"\nturns_per_hour = 3\n\
                        [fallback]\ncooldown = true\n[retry]\nmax_attempts_per_candidate = 1";
        let upstream = Upstream::model().await;
        let config = Config::new(settings).candidates(&["500", "ok"], upstream.addr);
        let config = config.env("TEST_KEYS", "one:sk-one");
        let (gateway, file) = config.clone().start_with_file().await;
        let ask = async || {
            let request = gateway.post(CHAT, asks("500", false));
            request.bearer_auth("sk-one").ask().await.status.as_u16()
        };
        assert_eq!(ask().await, 200);
        for count in [1, 2] {
            file.replace(&config);
            reload(&gateway, "configuration reloaded", count).await;
            assert_eq!(ask().await, 200);
        }
        assert_eq!(upstream.models(), ["500", "ok", "ok", "ok"]);
        assert_eq!(ask().await, 422);
    });
}

#[test]
fn ten_reloads_under_load_fail_no_call() {
    run(async {
        let (upstream, gateway, file) = start("[run]\nmax_turns = 1000000").await;
        let done = AtomicBool::new(false);
        let calls = async |worker: u32| {
            let mut calls = 0;
            while !done.load(Ordering::Relaxed) {
                let request = gateway.post(CHAT, chat("m"));
                let request = request.header("x-run-id", format!("worker-{worker}"));
                assert_eq!(request.ask().await.status, 200);
                calls += 1;
            }
            calls
        };
        let reloads = async {
            for count in 1..=10 {
                let next = format!("[run]\nmax_turns = {}", 1_000_000 - count);
                file.replace(&Config::new(next).candidates(&["m"], upstream.addr));
                reload(&gateway, "configuration reloaded", count).await;
            }
            done.store(true, Ordering::Relaxed);
        };
        let (calls, ()) = join(join_all((0..4).map(calls)), reloads).await;
        assert!(calls.iter().all(|calls| *calls > 0), "{calls:?}");
        assert!(!gateway.log().contains("not reloaded"), "{}", gateway.log());
    });
}

/// A reload must not open to others what the start would have refused.
#[test]
fn a_public_listener_keeps_its_keys() {
    run(async {
        let upstream = Upstream::model().await;
        let keys =
            Config::new("[auth]\nkeys_env = \"TEST_KEYS\"").candidates(&["m"], upstream.addr);
        let keys = keys.env("TEST_KEYS", "one:sk-one").listen("0.0.0.0:0");
        let (gateway, file) = keys.start_with_file().await;
        file.replace(&Config::new("").candidates(&["m"], upstream.addr));
        reload(&gateway, "configuration not reloaded", 1).await;
        assert!(
            gateway
                .log()
                .contains("without [auth] it serves loopback only")
        );
        assert_eq!(gateway.post(CHAT, chat("m")).ask().await.status, 401);
    });
}

/// To open a FIFO waits for its writer, and to read a device may have no end.
#[test]
fn a_path_that_became_a_fifo_holds_up_neither_calls_nor_the_stop() {
    run(async {
        let (_upstream, mut gateway, file) = start("").await;
        file.become_fifo();
        gateway.signal("HUP");
        gateway.signal("HUP");
        for _ in 0..3 {
            assert_eq!(status(&gateway, "r").await, 200);
        }
        let words = "configuration not reloaded";
        eventually(async || gateway.log().contains(words).then_some(())).await;
        let why = format!("{}: is a FIFO and no regular file", file.path());
        assert!(gateway.log().contains(&why), "{}", gateway.log());
        assert_eq!(status(&gateway, "r").await, 200);
        gateway.signal("TERM");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
    });
}

#[test]
fn without_a_file_there_is_nothing_to_reload() {
    run(async {
        let gateway = Gateway::embedded().await;
        reload(&gateway, "nothing to reload", 1).await;
        assert_eq!(gateway.get("/healthz").ask().await.status, 200);
    });
}

#[test]
fn keys_of_a_file_are_read_again() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        std::fs::write(&keys, "coder:the-old\n").unwrap();
        let auth = format!("[auth]\nkeys_file = \"{}\"", keys.display());
        let (_upstream, gateway, _file) = start(&auth).await;
        let status = async |key: &str| {
            let request = gateway.post(CHAT, chat("m")).header("x-api-key", key);
            request.ask().await.status.as_u16()
        };
        assert_eq!(
            (status("the-old").await, status("the-new").await),
            (200, 401)
        );

        std::fs::write(
            &keys,
            "# while it is rolled out\ncoder:the-old\ncoder:the-new\n",
        )
        .unwrap();
        reload(&gateway, "configuration reloaded", 1).await;
        assert_eq!(
            (status("the-old").await, status("the-new").await),
            (200, 200)
        );

        // A mistake changes nothing.
        std::fs::write(&keys, "coder\n").unwrap();
        reload(&gateway, "has a bad entry in line 1: it is not NAME:KEY", 1).await;
        assert_eq!(
            (status("the-old").await, status("the-new").await),
            (200, 200)
        );

        std::fs::write(&keys, "coder:the-new\n").unwrap();
        reload(&gateway, "configuration reloaded", 2).await;
        assert_eq!(
            (status("the-old").await, status("the-new").await),
            (401, 200)
        );
    });
}
