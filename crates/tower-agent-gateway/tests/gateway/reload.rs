//! A new configuration at SIGHUP.
//!
//! covers: H9

use futures_util::future::join_all;
use serde_json::json;

use crate::{
    net::{Ask, CHAT, Upstream, chat, eventually, run},
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
        let wrong = Config::new("[run]\nmax_turns = \"many\"").candidates(&["m"], upstream.addr);
        file.replace(&wrong);
        reload(&gateway, "configuration not reloaded", 1).await;
        let place = format!("{}:2:13: run.max_turns", file.path());
        assert!(gateway.log().contains(&place), "{}", gateway.log());
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

/// Each call comes under the limits of its time: a lower cap holds for open runs, too.
#[test]
fn the_next_call_of_an_open_run_comes_under_the_new_limits() {
    run(async {
        let (upstream, gateway, file) = start("[run]\nmax_turns = 9").await;
        assert_eq!(status(&gateway, "r").await, 200);
        file.replace(&Config::new("[run]\nmax_turns = 1").candidates(&["m"], upstream.addr));
        reload(&gateway, "configuration reloaded", 1).await;
        assert_eq!(status(&gateway, "r").await, 422);
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

#[test]
fn without_a_file_there_is_nothing_to_reload() {
    run(async {
        let gateway = Gateway::embedded().await;
        reload(&gateway, "nothing to reload", 1).await;
        assert_eq!(gateway.get("/healthz").ask().await.status, 200);
    });
}
