//! The runs of several callers at a reload: one caller's run decides nothing for another.
//!
//! covers: H9, D6

use serde_json::json;

use super::reload;
use crate::{
    net::{Ask, CHAT, Upstream, chat, run},
    support::{Config, File, Gateway},
};

const KEYS: &str = "[auth]\nkeys_env = \"TEST_KEYS\"\n";

fn config(settings: &str, upstream: &Upstream) -> Config {
    let config = Config::new(settings).candidates(&["m"], upstream.addr);
    config.env("TEST_KEYS", "one:sk-one,two:sk-two")
}

async fn start(settings: &str) -> (Upstream, Gateway, File) {
    let upstream = Upstream::model().await;
    let (gateway, file) = config(settings, &upstream).start_with_file().await;
    (upstream, gateway, file)
}

/// The status of a turn of the run, asked with this key.
async fn turn(gateway: &Gateway, key: &str, run: &str) -> u16 {
    let request = gateway.post(CHAT, chat("m")).header("x-run-id", run);
    request.bearer_auth(key).ask().await.status.as_u16()
}

async fn two_turns(gateway: &Gateway, key: &str, run: &str) -> [u16; 2] {
    [turn(gateway, key, run).await, turn(gateway, key, run).await]
}

#[test]
fn a_new_run_under_the_id_of_another_callers_open_run_has_the_new_caps() {
    run(async {
        let (upstream, gateway, file) = start(&format!("{KEYS}[run]\nmax_turns = 3")).await;
        assert_eq!(turn(&gateway, "sk-one", "r").await, 200);
        file.replace(&config(&format!("{KEYS}[run]\nmax_turns = 1"), &upstream));
        reload(&gateway, "configuration reloaded", 1).await;

        assert_eq!(two_turns(&gateway, "sk-two", "r").await, [200, 422]);
        // The open run keeps its own caps, also after the end of the other caller's.
        assert_eq!(two_turns(&gateway, "sk-one", "r").await, [200, 200]);
        assert_eq!(turn(&gateway, "sk-one", "r").await, 422);
    });
}

/// The session and the words of the user make the same id for both callers.
#[test]
fn a_known_agents_run_of_another_caller_has_the_new_caps() {
    run(async {
        let (upstream, gateway, file) = start(&format!("{KEYS}[run]\nmax_turns = 3")).await;
        let ask = async |key: &str| {
            let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
            let request = gateway.post(CHAT, body.to_string()).bearer_auth(key);
            let request = request.header("x-opencode-session", "s");
            request.ask().await.status.as_u16()
        };
        assert_eq!(ask("sk-one").await, 200);
        file.replace(&config(&format!("{KEYS}[run]\nmax_turns = 1"), &upstream));
        reload(&gateway, "configuration reloaded", 1).await;

        assert_eq!([ask("sk-two").await, ask("sk-two").await], [200, 422]);
        assert_eq!([ask("sk-one").await, ask("sk-one").await], [200, 200]);
    });
}

#[test]
fn keys_that_a_reload_adds_are_owners_of_their_own() {
    run(async {
        let (upstream, gateway, file) = start("[run]\nmax_turns = 1").await;
        assert_eq!(turn(&gateway, "sk-one", "r").await, 200);
        file.replace(&config(&format!("{KEYS}[run]\nmax_turns = 2"), &upstream));
        reload(&gateway, "configuration reloaded", 1).await;

        for key in ["sk-one", "sk-two"] {
            assert_eq!(two_turns(&gateway, key, "r").await, [200, 200], "{key}");
            assert_eq!(turn(&gateway, key, "r").await, 422, "{key}");
        }
        let runs = gateway.json("/runs/r").await["runs"].clone();
        assert_eq!(runs.as_array().unwrap().len(), 3, "{runs}");
    });
}

#[test]
fn a_phrase_to_stop_after_keys_came_ends_no_other_callers_run() {
    run(async {
        let stop = "[stop]\nphrases = [\"/stop\"]";
        let (upstream, gateway, file) = start(stop).await;
        for id in ["a", "b"] {
            assert_eq!(turn(&gateway, "sk-one", id).await, 200);
        }
        file.replace(&config(&format!("{KEYS}{stop}"), &upstream));
        reload(&gateway, "configuration reloaded", 1).await;

        let mut others = gateway.open_stream("sk-two", "a", "s").await;
        others.until("data:").await;
        let body = json!({"model": "m", "messages": [{"role": "user", "content": "/stop"}]});
        let request = gateway.post(CHAT, body.to_string()).bearer_auth("sk-one");
        let request = request.header("x-run-id", "b").header("x-session-id", "s");
        assert_eq!(request.ask().await.status, 200);

        let aborted = gateway.post("/v1/runs/a/abort", "").bearer_auth("sk-two");
        assert_eq!(aborted.ask().await.json()["aborted"], true, "it was open");
    });
}

#[test]
fn keys_that_a_reload_removes_leave_no_caps_behind() {
    run(async {
        let (upstream, gateway, file) = start(&format!("{KEYS}[run]\nmax_turns = 1")).await;
        assert_eq!(turn(&gateway, "sk-one", "r").await, 200);
        file.replace(&config("[run]\nmax_turns = 2", &upstream));
        reload(&gateway, "configuration reloaded", 1).await;

        assert_eq!(two_turns(&gateway, "anything", "r").await, [200, 200]);
        assert_eq!(turn(&gateway, "anything", "r").await, 422);
    });
}

/// Without `[auth]` a caller chooses its credential, and so could choose the name of a key.
#[test]
fn a_credential_that_reads_like_a_name_is_not_the_owner_of_that_name() {
    run(async {
        let (upstream, gateway, file) = start("").await;
        assert_eq!(turn(&gateway, "one", "r").await, 200);
        file.replace(&config(KEYS, &upstream));
        reload(&gateway, "configuration reloaded", 1).await;

        let own = gateway.get("/v1/runs/r").bearer_auth("sk-one");
        assert_eq!(own.ask().await.status, 404);
    });
}
