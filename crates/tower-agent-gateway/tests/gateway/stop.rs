//! A user's word ends the other runs of a session.
//!
//! covers: C5

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::{
    net::{Ask, CHAT, DIALECTS, Dialect, Upstream, eventually, run},
    support::{Config, Gateway},
};

const STOP: &str = "[stop]\nphrases = [\"/stop\"]\n";

async fn start(more: &str) -> (Upstream, Gateway) {
    let (upstream, gateway) = Config::new(format!("{STOP}{more}"))
        .start_with_model(&["m"])
        .await;
    (upstream, gateway)
}

/// What a user says, in an API's words.
fn says(gateway: &Gateway, dialect: &Dialect, word: &str, stream: bool) -> RequestBuilder {
    let said = dialect
        .asks("m", stream)
        .replace("\"hi\"", &json!(word).to_string());
    gateway.post(dialect.path, said).bearer_auth("one")
}

#[test]
fn a_word_ends_the_sessions_other_runs_in_every_dialect_without_a_call() {
    run(async {
        let (upstream, gateway) = start("").await;
        let other_owner = gateway.open_stream("two", "r-two", "s-1").await;
        let other_session = gateway.open_stream("one", "r-other", "s-2").await;
        for dialect in &DIALECTS {
            for stream in [false, true] {
                let ids = ["a", "b"].map(|id| format!("{id}{}", upstream.count()));
                let _one = gateway.open_stream("one", &ids[0], "s-1").await;
                let _two = gateway.open_stream("one", &ids[1], "s-1").await;
                let calls = upstream.count();

                let stop = says(&gateway, dialect, "STOP!", stream).header("x-session-id", "s-1");
                let answer = stop.ask().await;
                assert_eq!(answer.status, 200, "{}", dialect.path);
                let text = answer.text();
                assert!(text.contains("Stopped."), "{text}");
                if stream {
                    assert!(text.contains(dialect.terminator), "{text}");
                } else {
                    let body: Value = serde_json::from_str(text).unwrap();
                    let (name, value) = dialect.object;
                    assert_eq!(body[name], value);
                }
                for id in &ids {
                    assert_eq!(gateway.reason(id).await, "aborted");
                }
                assert_eq!(upstream.count(), calls, "no model was asked");
            }
        }
        for id in ["r-two", "r-other"] {
            assert_eq!(gateway.reason(id).await, Value::Null, "{id}");
        }
        drop((other_owner, other_session));
    });
}

#[test]
fn what_is_no_word_to_stop_goes_to_the_model() {
    run(async {
        let (upstream, gateway) = start("").await;
        let _open = gateway.open_stream("one", "r-1", "s-1").await;
        for dialect in &DIALECTS {
            let asks = |word, session: Option<&'static str>| {
                let request = says(&gateway, dialect, word, false);
                match session {
                    Some(session) => request.header("x-session-id", session).ask(),
                    None => request.ask(),
                }
            };
            for (word, session) in [
                ("please stop", Some("s-1")),
                ("hi", Some("s-1")),
                // Whose runs would that be?
                ("/stop", None),
            ] {
                let before = upstream.count();
                assert_eq!(asks(word, session).await.status, 200);
                assert_eq!(upstream.count(), before + 1, "{word}");
            }
        }
        assert_eq!(gateway.reason("r-1").await, Value::Null);
    });
}

#[test]
fn a_word_to_stop_is_no_turn() {
    run(async {
        let (upstream, gateway) = start("[run]\nmax_turns = 1\n").await;
        let of_run = |word| {
            let request = says(&gateway, &DIALECTS[0], word, false);
            let request = request.header("x-run-id", "r-1");
            request.header("x-session-id", "s-1").ask()
        };
        for (word, status) in [("/stop", 200), ("hi", 200), ("/stop", 200), ("hi", 422)] {
            assert_eq!(of_run(word).await.status, status, "{word}");
        }
        assert_eq!(upstream.count(), 1);
    });
}

/// A run that has no turn left still speaks for its session.
#[test]
fn a_run_at_its_turn_cap_can_stop_the_others_of_its_session() {
    run(async {
        let (upstream, gateway) = start("[run]\nmax_turns = 1\n").await;
        let _running = gateway.open_stream("one", "r-other", "s-1").await;
        let of_run = |word| {
            let request = says(&gateway, &DIALECTS[0], word, false);
            let request = request.header("x-run-id", "r-1");
            request.header("x-session-id", "s-1").ask()
        };
        assert_eq!(of_run("hi").await.status, 200);

        let answer = of_run("/stop").await;

        assert_eq!(answer.status, 200);
        let said = answer.text();
        assert!(said.contains("Stopped."), "{said}");
        assert_eq!(gateway.reason("r-other").await, "aborted");
        assert_eq!(gateway.reason("r-1").await, Value::Null);
        assert_eq!(of_run("hi").await.status, 422);
        assert_eq!(upstream.count(), 2);
    });
}

/// The layer that reads a request is inside of the ceilings.
#[test]
fn an_upload_that_stalls_is_not_waited_for_for_ever() {
    run(async {
        let (upstream, gateway) = start("[run]\nmax_turn_time = \"200ms\"\n").await;
        let endless = futures_util::stream::pending::<Result<bytes::Bytes, std::io::Error>>();
        let request = gateway.post(CHAT, reqwest::Body::wrap_stream(endless));
        let call = tokio::spawn(request.header("x-run-id", "r-1").ask());
        eventually(async || {
            let answer = gateway.get("/runs/r-1").ask().await;
            let known = answer.status == 200;
            (known && gateway.reason("r-1").await == "max_turn_time").then_some(())
        })
        .await;
        assert_eq!(upstream.count(), 0);
        call.abort();
    });
}

/// What runs is the reason why it is at its cap.
/// covers: T84
#[test]
fn an_owner_at_a_cap_can_stop_what_runs_and_begin_nothing() {
    run(async {
        let auth = "[auth]\nkeys_env = \"TEST_KEYS\"\nmax_open_runs = 2\nturns_per_hour = 3\n";
        let (upstream, gateway) = Config::new(format!("{STOP}{auth}"))
            .env("TEST_KEYS", "one:one")
            .start_with_model(&["m"])
            .await;
        let ask = async |word: &str, id: Option<&str>| {
            let request = says(&gateway, &DIALECTS[0], word, false);
            let request = request.header("x-session-id", "s-1");
            let request = match id {
                Some(id) => request.header("x-run-id", id),
                None => request,
            };
            let answer = request.ask().await;
            (answer.status.as_u16(), answer.text().to_owned())
        };
        let _one = gateway.open_stream("one", "r-1", "s-1").await;
        let _two = gateway.open_stream("one", "r-2", "s-1").await;
        for id in [Some("r-3"), None] {
            assert_eq!(ask("hi", id).await.0, 422);
        }
        let (status, text) = ask("/stop", Some("r-3")).await;
        assert_eq!(status, 200, "{text}");
        assert!(text.contains("Stopped."), "{text}");
        for id in ["r-1", "r-2"] {
            assert_eq!(gateway.reason(id).await, "aborted");
        }
        let unknown = gateway.get("/runs/r-3").ask().await;
        assert_eq!(unknown.status, 404, "nothing was opened");

        // The last turn of the hour.
        let _four = gateway.open_stream("one", "r-4", "s-1").await;
        for id in [Some("r-4"), None] {
            assert_eq!(ask("hi", id).await.0, 422);
        }
        assert_eq!(gateway.reason("r-4").await, Value::Null);
        assert_eq!(ask("/stop", None).await.0, 200);
        assert_eq!(gateway.reason("r-4").await, "aborted");
        assert_eq!(upstream.count(), 3);
        let records = eventually(async || {
            let records = gateway.records();
            (records.len() >= 2).then_some(records)
        })
        .await;
        let caps: Vec<_> = records.iter().map(|record| &record["cap"]).collect();
        assert_eq!(caps, ["max_open_runs", "turns_per_hour"]);
    });
}
