//! The operator's hand: what runs, why it ended, stop it, keep it out.
//!
//! covers: H11

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    net::{Answer, Ask, CHAT, Streaming, Upstream, asks, chat, eventually, run},
    support::{Config, Gateway},
};

const KEYS: &str = "[auth]\nkeys_env = \"TEST_KEYS\"\n";

async fn start(settings: &str, models: &[&str]) -> (Upstream, Gateway) {
    Config::new(settings)
        .env("TEST_KEYS", "coder:sk-one,tester:sk-two")
        .start_with_model(models)
        .await
}

/// A stream that hangs, in this run.
async fn hang(gateway: &Gateway, key: &str, run: &str) -> Streaming {
    let request = gateway.post(CHAT, chat("stall")).bearer_auth(key);
    request.header("x-run-id", run).open().await
}

async fn list(gateway: &Gateway, query: &str) -> Vec<Value> {
    let list = gateway.json(&format!("/runs?{query}")).await;
    list["runs"].as_array().unwrap().clone()
}

async fn ids(gateway: &Gateway, query: &str) -> Vec<String> {
    let rows = list(gateway, query).await;
    let mut ids: Vec<_> = rows
        .iter()
        .map(|row| row["run"].as_str().unwrap().to_owned())
        .collect();
    ids.sort_unstable();
    ids
}

async fn send(gateway: &Gateway, method: Method, path: &str, body: &str) -> Answer {
    gateway
        .request(method, path)
        .body(body.to_owned())
        .ask()
        .await
}

/// Two requests: find, and end.
#[test]
fn the_hung_run_among_130_others_is_found_and_ended() {
    run(async {
        let (_upstream, gateway) = start(KEYS, &["m"]).await;
        let mut hung = hang(&gateway, "sk-one", "hung").await;
        let done = (0..130).map(|number| {
            let request = gateway.post(CHAT, chat("ok")).bearer_auth("sk-two");
            request.header("x-run-id", format!("r-{number}")).ask()
        });
        for answer in join_all(done).await {
            assert_eq!(answer.status, 200);
        }
        let newest = list(&gateway, "").await;
        assert!(
            newest.iter().all(|row| row["run"] != "hung"),
            "a page is of the newest"
        );
        let found = list(&gateway, "state=open&sort=silent&limit=1").await;
        let row = &found[0];
        assert_eq!(row["run"], "hung");
        assert_eq!(row["owner"], "coder");
        assert_eq!(
            (&row["candidate"], &row["attempts"]),
            (&json!("m"), &json!(1))
        );
        assert_eq!(row["turns"], 1);
        assert!(row["in_flight"].as_u64().unwrap() > 0);
        assert!(gateway.abort("hung").await);
        let end = hung.rest().await;
        assert!(end.contains("aborted"), "{end}");
    });
}

#[test]
fn a_list_shows_what_is_asked_for_page_by_page() {
    run(async {
        let (_upstream, gateway) = start(KEYS, &["m"]).await;
        let mut open = Vec::new();
        for (key, run) in [
            ("sk-one", "a"),
            ("sk-two", "b"),
            ("sk-one", "c"),
            ("sk-two", "d"),
        ] {
            open.push(hang(&gateway, key, run).await);
        }
        let session = gateway.post(CHAT, chat("ok")).bearer_auth("sk-one");
        let session = session
            .header("x-run-id", "e")
            .header("x-session-id", "s-1");
        assert_eq!(session.ask().await.status, 200);
        assert!(gateway.abort("d").await);

        for (query, expected) in [
            ("", "abcde"),
            ("state=open", "abce"),
            ("state=ended", "d"),
            ("reason=aborted", "d"),
            ("reason=completed", ""),
            ("owner=coder", "ace"),
            ("owner=coder&state=open&candidate=m", "ac"),
            ("owner=nobody", ""),
            ("session=s-1", "e"),
            ("session=s-2", ""),
            ("sort=turns&owner=tester", "bd"),
        ] {
            assert_eq!(ids(&gateway, query).await.concat(), expected, "{query}");
        }
        // What the log prints of an owner names it, too.
        let text = gateway.log();
        let printed = text.split("name=coder owner=").nth(1).unwrap();
        let printed = printed.split_whitespace().next().unwrap();
        assert_eq!(
            ids(&gateway, &format!("owner={printed}")).await.concat(),
            "ace"
        );

        let page = gateway.json("/runs?owner=coder&limit=2").await;
        let rows = page["runs"].as_array().unwrap();
        assert_eq!(
            (&rows[0]["run"], &rows[1]["run"]),
            (&json!("e"), &json!("c"))
        );
        let next = page["next"].as_str().unwrap();
        let rest = gateway
            .json(&format!("/runs?owner=coder&limit=2&after={next}"))
            .await;
        assert_eq!(rest["runs"][0]["run"], "a");
        assert_eq!(
            (rest["runs"].as_array().unwrap().len(), &rest["next"]),
            (1, &Value::Null)
        );
        let whole = gateway.json("/runs?owner=coder&limit=3").await;
        assert_eq!(whole["next"], Value::Null, "no page would follow");
        assert!(whole["registry_sequence"].as_u64().unwrap() >= 5);

        for query in [
            "state=running",
            "sort=age",
            &format!("sort=spent&after={next}"),
            "ownr=coder",
        ] {
            let answer = send(&gateway, Method::GET, &format!("/runs?{query}"), "").await;
            assert_eq!(answer.status, 400, "{query}");
        }
    });
}

#[test]
fn a_run_shows_its_attempts_and_its_work_in_flight() {
    run(async {
        let (_upstream, gateway) = start(KEYS, &["500", "ok"]).await;
        let asked = gateway.post(CHAT, asks("500", false)).bearer_auth("sk-one");
        assert_eq!(asked.header("x-run-id", "r").ask().await.status, 200);
        let shown = gateway.json("/runs/r").await;
        assert_eq!(shown["owner"], "coder");
        assert_eq!(shown["work"], json!([]));
        let attempts = shown["attempts_of_late"].as_array().unwrap();
        let of = |at: usize, key: &str| attempts[at][key].clone();
        assert!(attempts.len() >= 2, "{attempts:?}");
        assert_eq!(
            (of(0, "candidate"), of(0, "class")),
            (json!("500"), json!("server"))
        );
        assert_eq!(of(0, "status"), 500);
        let last = attempts.len() - 1;
        assert_eq!(
            (of(last, "candidate"), of(last, "reason")),
            (json!("ok"), json!("completed"))
        );
        assert!(of(last, "served_after_ms").is_u64());
        assert!(of(last, "began_unix_ms").as_u64() >= of(0, "began_unix_ms").as_u64());

        let hung = gateway.post(CHAT, chat("stall")).bearer_auth("sk-two");
        let hung = hung.header("x-run-id", "hung").open().await;
        let shown = gateway.json("/runs/hung").await;
        let work = shown["work"].as_array().unwrap();
        assert_eq!(work[0]["kind"], "call");
        assert!(work.iter().any(|it| it["kind"] == "attempt"), "{work:?}");
        assert_eq!(work.last().unwrap()["owner"], "tester");
        drop(hung);
    });
}

#[test]
fn an_abort_of_many_says_first_how_many_and_a_typo_never_means_all() {
    run(async {
        let (_upstream, gateway) = start(KEYS, &["m"]).await;
        let mut open = Vec::new();
        for (key, run) in [("sk-one", "a"), ("sk-two", "b"), ("sk-one", "c")] {
            open.push(hang(&gateway, key, run).await);
        }
        for (body, why) in [
            ("", "EOF"),
            ("{}", "name what to abort"),
            ("{\"dry_run\":true}", "name what to abort"),
            ("{\"all\":false}", "selects nothing"),
            ("{\"owner\":\"\"}", "an empty text selects nothing"),
            ("{\"onwer\":\"coder\"}", "unknown field `onwer`"),
            ("{\"all\":\"yes\"}", "invalid type"),
            ("{\"older_than\":\"an hour\"}", "older_than: not a duration"),
            ("all", "expected value"),
        ] {
            let answer = send(&gateway, Method::POST, "/abort", body).await;
            assert_eq!(answer.status, 400, "{body}");
            assert!(answer.text().contains(why), "{body}: {answer:?}");
        }
        assert_eq!(ids(&gateway, "state=open").await.concat(), "abc");

        let abort = async |body: Value| {
            let answer = send(&gateway, Method::POST, "/abort", &body.to_string()).await;
            assert_eq!(answer.status, 200, "{body}");
            answer.json()
        };
        let none = abort(json!({"older_than": "1h"})).await;
        assert_eq!(none, json!({"count": 0, "dry_run": false, "runs": []}));
        let both = json!({"owner": "coder", "candidate": "m"});
        let mut dry = both.clone();
        dry["dry_run"] = json!(true);
        let would = abort(dry).await;
        assert_eq!(
            (&would["count"], &would["dry_run"]),
            (&json!(2), &json!(true))
        );
        assert_eq!(would["runs"][0]["owner"], "coder");
        assert_eq!(
            ids(&gateway, "state=open").await.concat(),
            "abc",
            "it was dry"
        );
        assert_eq!(abort(both).await["count"], 2);
        assert_eq!(ids(&gateway, "state=open").await.concat(), "b");
        assert_eq!(abort(json!({"all": true})).await["runs"][0]["run"], "b");
        assert_eq!(ids(&gateway, "reason=aborted").await.concat(), "abc");
        for mut stream in open {
            assert!(stream.rest().await.contains("aborted"));
        }
    });
}

#[test]
fn new_runs_stay_out_until_the_operator_lets_them_in() {
    run(async {
        let (upstream, gateway) = start(KEYS, &["m"]).await;
        let ask = async |key: &str, run: &str| {
            let request = gateway.post(CHAT, chat("ok")).bearer_auth(key);
            request.header("x-run-id", run).ask().await
        };
        assert_eq!(ask("sk-one", "open").await.status, 200);
        let frozen = send(&gateway, Method::PUT, "/freeze", "").await.json();
        assert_eq!(frozen, json!({"all": true, "owners": []}));
        let refused = ask("sk-one", "new").await;
        assert_eq!(refused.status, 503);
        assert_eq!(refused.headers["retry-after"], "30");
        assert_eq!(refused.reason(), None);
        assert_eq!(refused.json()["error"]["code"], "frozen");
        assert_eq!(ask("sk-one", "open").await.status, 200);
        let health = gateway.get("/healthz").header("accept", "application/json");
        assert_eq!(
            health.ask().await.json(),
            json!({"status": "ok", "frozen": true})
        );
        send(&gateway, Method::DELETE, "/freeze", "").await;
        assert_eq!(ask("sk-one", "new").await.status, 200);

        let one = send(&gateway, Method::PUT, "/freeze/coder", "")
            .await
            .json();
        assert_eq!(one, json!({"all": false, "owners": ["coder"]}));
        assert_eq!(ask("sk-one", "newer").await.status, 503);
        assert_eq!(ask("sk-two", "newer").await.status, 200);
        assert_eq!(gateway.json("/freeze").await, one);
        let nobody = send(&gateway, Method::PUT, "/freeze/nobody", "").await;
        assert_eq!(nobody.status, 404);
        let none = send(&gateway, Method::DELETE, "/freeze/coder", "")
            .await
            .json();
        assert_eq!(none, json!({"all": false, "owners": []}));
        assert_eq!(ask("sk-one", "newer").await.status, 200);
        assert_eq!(upstream.count(), 5);
        let log = gateway.log();
        assert!(log.contains("new runs frozen by the operator"), "{log}");
    });
}

#[test]
fn ends_and_candidates_say_whether_it_is_us_or_an_upstream() {
    run(async {
        let settings = format!("{KEYS}[fallback]\ncooldown = true");
        let (_upstream, gateway) = start(&settings, &["500", "ok"]).await;
        for key in ["sk-one", "sk-one", "sk-two"] {
            let asked = gateway.post(CHAT, asks("500", false)).bearer_auth(key);
            assert_eq!(asked.ask().await.status, 200);
        }
        let total = async |by: &str, name: &str| {
            let ends = gateway
                .json(&format!("/ends?by={by}&per=minute&last=5m"))
                .await;
            let minutes = ends["minutes"].as_array().unwrap().iter();
            minutes
                .filter_map(|it| it["ends"][name].as_u64())
                .sum::<u64>()
        };
        eventually(async || (total("reason", "completed").await == 3).then_some(())).await;
        assert_eq!(total("candidate", "ok").await, 3);
        assert_eq!(
            (
                total("owner", "coder").await,
                total("owner", "tester").await
            ),
            (2, 1)
        );
        for query in ["by=model", "per=hour", "last=soon", "lst=5m"] {
            let answer = send(&gateway, Method::GET, &format!("/ends?{query}"), "").await;
            assert_eq!(answer.status, 400, "{query}");
        }
        let candidates = gateway.json("/candidates").await;
        let [failed, healthy] = [0, 1].map(|at| candidates["candidates"][at].clone());
        assert_eq!(
            (&failed["candidate"], &healthy["candidate"]),
            (&json!("500"), &json!("ok"))
        );
        assert_eq!(
            (&failed["state"], &failed["class"]),
            (&json!("resting"), &json!("server"))
        );
        assert!(failed["left_ms"].as_u64().unwrap() > 0);
        assert!(failed["failures_by_class"]["server"].as_u64().unwrap() >= 1);
        assert_eq!(failed["failures"], failed["attempts"]);
        assert_eq!(
            (&healthy["state"], &healthy["failures"]),
            (&json!("up"), &json!(0))
        );
        assert!(healthy["first_content_p50_ms"].is_u64());
    });
}

/// In both directions: a method on one side alone fails here, a path also in the routes' own test.
#[test]
fn the_description_has_the_methods_that_the_routes_answer() {
    run(async {
        let (_upstream, gateway) = start(KEYS, &["m"]).await;
        let described = gateway.json("/openapi.json").await;
        let paths = described["paths"].as_object().unwrap();
        assert!(paths.len() >= 20);
        for (path, item) in paths {
            let asked = path.replace("{id}", "x").replace("{owner}", "coder");
            let asked = asked.replace("{candidate}", "m");
            for method in [Method::GET, Method::POST, Method::PUT, Method::DELETE] {
                let name = method.as_str().to_lowercase();
                let request = gateway.request(method.clone(), &asked).body("{}");
                let request = request.bearer_auth("sk-one");
                let status = request.open().await.status;
                let is_described = item.get(&name).is_some();
                assert_eq!(is_described, status != 405, "{method} {path}: {status}");
            }
        }
    });
}

/// A client that was made from the description reads what a refused request gets.
#[test]
fn the_description_has_what_a_request_without_a_token_or_a_key_gets() {
    run(async {
        let upstream = Upstream::model().await;
        let config = "[auth]\nkeys_env = \"KEYS\"\n[control]\ntoken_env = \"TOKEN\"";
        let config = Config::new(config)
            .env("KEYS", "coder:sk-one")
            .env("TOKEN", "t0ken");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let described: Value = gateway
            .get("/openapi.json")
            .bearer_auth("t0ken")
            .ask()
            .await
            .json();
        let mut refused = 0;
        for (path, item) in described["paths"].as_object().unwrap() {
            let asked = path.replace("{id}", "x").replace("{owner}", "coder");
            let asked = asked.replace("{candidate}", "m");
            for (name, operation) in item.as_object().unwrap() {
                let method: Method = name.to_uppercase().parse().unwrap();
                let answer = gateway.request(method, &asked).body("{}").ask().await;
                let response = &operation["responses"][answer.status.as_str()];
                let kind = answer.headers["content-type"].to_str().unwrap();
                let kind = kind.split(';').next().unwrap();
                let is_described = response["content"].get(kind).is_some();
                assert!(is_described, "{name} {path}: {} {kind}", answer.status);
                refused += u32::from(answer.status.is_client_error());
            }
        }
        assert!(refused > 20, "{refused}");
    });
}

/// What a command prints on stdout, which must succeed.
async fn command(gateway: &Gateway, words: &str) -> String {
    let (status, [said, told]) = tried(gateway, words).await;
    assert_eq!(status, Some(0), "{words}: {told}");
    said
}

async fn tried(gateway: &Gateway, words: &str) -> (Option<i32>, [String; 2]) {
    let url = format!("http://{}", gateway.addr);
    let words = words.split(' ').chain(["--url", &url]);
    Gateway::printed(&words.collect::<Vec<_>>(), &[]).await
}

/// Two commands: find, and end.
#[test]
fn the_command_line_finds_the_hung_run_and_ends_it() {
    run(async {
        let (_upstream, gateway) = start(KEYS, &["m"]).await;
        let mut hung = hang(&gateway, "sk-one", "hung").await;
        let done = (0..130).map(|number| {
            let request = gateway.post(CHAT, chat("ok")).bearer_auth("sk-two");
            request.header("x-run-id", format!("r-{number}")).ask()
        });
        join_all(done).await;
        let listed = command(&gateway, "runs --limit 1").await;
        let lines: Vec<_> = listed.lines().collect();
        assert!(lines[0].starts_with("RUN   OWNER  STATE"), "{listed}");
        assert!(lines[1].starts_with("hung  coder  working  m "), "{listed}");
        assert_eq!(command(&gateway, "abort hung").await, "aborted\n");
        assert!(hung.rest().await.contains("aborted"));
        assert_eq!(
            command(&gateway, "abort hung").await,
            "it was over already\n"
        );
        let shown = command(&gateway, "run hung").await;
        assert!(
            shown.contains("message: The run was stopped after"),
            "{shown}"
        );
        assert!(shown.contains("ATTEMPT  RESULT"), "{shown}");
        let ended = command(&gateway, "runs --state ended --reason aborted --json").await;
        let ended: Value = serde_json::from_str(&ended).unwrap();
        assert_eq!(ended["runs"][0]["run"], "hung");
    });
}

#[test]
fn the_command_line_says_how_many_before_it_ends_them_and_keeps_new_ones_out() {
    run(async {
        let (_upstream, gateway) = start(KEYS, &["m"]).await;
        let mut open = Vec::new();
        for (key, run) in [("sk-one", "a"), ("sk-two", "b"), ("sk-one", "c")] {
            open.push(hang(&gateway, key, run).await);
        }
        let would = command(&gateway, "abort --owner coder").await;
        assert!(
            would.ends_with("2 would be aborted: add --yes\n"),
            "{would}"
        );
        assert_eq!(ids(&gateway, "state=open").await.concat(), "abc");
        let done = command(&gateway, "abort --owner coder --yes").await;
        assert!(done.ends_with("2 aborted\n"), "{done}");
        let none = command(&gateway, "abort --older-than 1h --yes").await;
        assert_eq!(none, "no open run fits\n");

        let frozen = command(&gateway, "freeze tester").await;
        assert_eq!(frozen, "new runs of tester are refused\n");
        let all = command(&gateway, "freeze").await;
        assert!(
            all.starts_with("new runs of everybody are refused"),
            "{all}"
        );
        command(&gateway, "thaw tester").await;
        assert_eq!(command(&gateway, "thaw").await, "new runs are admitted\n");
        let candidates = command(&gateway, "candidates").await;
        assert!(
            candidates.lines().nth(1).unwrap().starts_with("m "),
            "{candidates}"
        );

        for (words, why) in [
            ("run nobody", "404 Not Found: no run nobody is known"),
            ("freeze nobody", "no owner nobody is known"),
            ("abort", "name what to abort"),
            ("abort --older-than soon", "older_than: not a duration"),
            (
                "runs --token-env NOT_SET",
                "the environment variable NOT_SET is not set",
            ),
        ] {
            let (status, [said, told]) = tried(&gateway, words).await;
            assert_eq!((status, &*said), (Some(1), ""), "{words}");
            assert!(told.contains(why), "{words}: {told}");
        }
        let nobody = ["runs", "--url", "http://127.0.0.1:9"];
        let (status, [_, told]) = Gateway::printed(&nobody, &[]).await;
        assert_eq!(status, Some(1));
        assert!(told.contains("gateway: http://127.0.0.1:9: "), "{told}");
        for (words, why) in [
            ("abort a --all", "cannot be used with"),
            ("runs --sort age", "invalid value"),
        ] {
            let (status, [_, told]) = tried(&gateway, words).await;
            assert_eq!(status, Some(2), "{words}");
            assert!(told.contains(why), "{words}: {told}");
        }
        drop(open);
    });
}

/// A gateway whose runs pause after so many turns, which wait for so long.
async fn pausing(turns: u32, wait: &str) -> (Upstream, Gateway) {
    let run = format!("max_turns = {turns}\nat_cap = \"pause\"\npause_wait = \"{wait}\"");
    start(&format!("{KEYS}[run]\n{run}"), &["m"]).await
}

/// A turn of the run `r`.
async fn ask_in_r(gateway: &Gateway) -> Answer {
    let request = gateway.post(CHAT, chat("ok")).bearer_auth("sk-one");
    request.header("x-run-id", "r").ask().await
}

/// A run that has used up its turns waits for the operator, and goes on in the same run.
/// covers: H12
#[test]
fn a_run_at_its_cap_is_extended_while_its_turn_waits() {
    run(async {
        let (upstream, gateway) = pausing(2, "30s").await;
        let ask = || ask_in_r(&gateway);
        for _ in 0..2 {
            assert_eq!(ask().await.status, 200);
        }
        let held = ask();
        let operate = async {
            eventually(async || {
                let shown = gateway.json("/runs/r").await;
                (shown["paused"]["held"] == 1).then_some(())
            })
            .await;
            assert_eq!(upstream.count(), 2);
            let said = command(&gateway, "extend r --turns 1 --why nearly-done").await;
            assert_eq!(said, "extended\n");
        };
        let (answer, ()) = futures_util::future::join(held, operate).await;
        assert_eq!(answer.status, 200);
        let shown = gateway.json("/runs/r").await;
        assert_eq!(
            (&shown["turns"], &shown["max_turns"]),
            (&json!(3), &json!(3))
        );
        assert_eq!(shown["reason"], Value::Null);

        for (body, why) in [
            ("{}", "name what to add"),
            ("{\"turns\":0}", "name what to add"),
            ("{\"cost\":-1}", "cost: not a number above 0"),
            ("{\"time\":\"soon\"}", "time: not a duration"),
            ("{\"turn\":1}", "unknown field `turn`"),
        ] {
            let answer = send(&gateway, Method::POST, "/runs/r/extend", body).await;
            assert_eq!(answer.status, 400, "{body}");
            assert!(answer.text().contains(why), "{body}: {answer:?}");
        }
        let nobody = send(&gateway, Method::POST, "/runs/x/extend", "{\"turns\":1}").await;
        assert_eq!(nobody.status, 404);
    });
}

/// covers: H12
#[test]
fn a_run_that_is_paused_by_hand_refuses_turns_until_it_is_resumed() {
    run(async {
        let (upstream, gateway) = pausing(9, "100ms").await;
        let ask = || ask_in_r(&gateway);
        assert_eq!(ask().await.status, 200);
        let paused = send(&gateway, Method::POST, "/runs/r/pause", "").await;
        assert_eq!(paused.json(), json!({"paused": true}));
        let refused = ask().await;
        assert_eq!(refused.status, 503, "{refused:?}");
        assert_eq!(refused.headers["retry-after"], "30");
        assert_eq!(refused.headers["x-should-retry"], "true");
        assert_eq!(refused.reason(), None);
        assert_eq!(refused.json()["error"]["code"], "run_paused");
        assert_eq!(upstream.count(), 1);
        let resumed = send(&gateway, Method::POST, "/runs/r/resume", "").await;
        assert_eq!(resumed.json(), json!({"resumed": true}));
        assert_eq!(ask().await.status, 200);
        assert_eq!(
            gateway.json("/runs/r").await["turns"],
            2,
            "the refused one is none"
        );
    });
}

/// By a flag or by the variable that stands for it, so that each command needs no flag.
#[test]
fn the_command_line_takes_the_token_from_a_variable_or_a_file() {
    run(async {
        let (_upstream, gateway) = Config::new("[control]\ntoken_env = \"TEST_TOKEN\"")
            .env("TEST_TOKEN", "t0ken")
            .start_with_model(&["m"])
            .await;
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (right, empty) = (file("right", "t0ken\n"), file("empty", "\n"));
        let url = format!("http://{}", gateway.addr);
        let tried = async |flags: &[&str], env: &[(&str, &str)]| {
            let args = [&["runs", "--url", &url], flags].concat();
            let env = env.iter();
            let env: Vec<_> = env
                .map(|(it, value)| ((*it).into(), (*value).into()))
                .collect();
            let (status, [said, told]) = Gateway::printed(&args, &env).await;
            (status, said + &told)
        };
        let variable = [("TOWER_AGENT_TOKEN", "t0ken")];
        for (flags, env) in [
            (&[][..], &variable[..]),
            (&["--token-file", &right], &[]),
            (&["--token-env", "MINE"], &[("MINE", "t0ken")]),
            // A flag counts before the variable.
            (&["--token-file", &right], &[("TOWER_AGENT_TOKEN", "other")]),
        ] {
            let (status, said) = tried(flags, env).await;
            assert_eq!((status, &*said), (Some(0), "no runs\n"), "{flags:?}");
        }
        let needs = "403 Forbidden: this route needs the control token";
        for (flags, env, says) in [
            (
                &[][..],
                &[("TOWER_AGENT_TOKEN", "")][..],
                &*format!("{needs}; --token-env, --token-file or TOWER_AGENT_TOKEN gives it\n"),
            ),
            (
                &[],
                &[("TOWER_AGENT_TOKEN", "other")],
                &*format!("{needs}\n"),
            ),
            (
                &[],
                &[("TOWER_AGENT_TOKEN", "a\nb")],
                "the environment variable TOWER_AGENT_TOKEN holds no token\n",
            ),
            (
                &["--token-file", &empty],
                &variable,
                &*format!("--token-file: {empty}: is empty\n"),
            ),
            (
                &["--token-file", "/no/such"],
                &variable,
                "No such file or directory (os error 2)\n",
            ),
            (
                &["--token-env", "NOT_SET"],
                &variable,
                "--token-env: the environment variable NOT_SET is not set\n",
            ),
        ] {
            let (status, told) = tried(flags, env).await;
            assert_eq!(status, Some(1), "{flags:?}");
            assert!(told.ends_with(says), "{flags:?} {env:?}: {told}");
            assert!(!told.contains("t0ken"), "{told}");
        }
        let both = ["--token-file", &*right, "--token-env", "MINE"];
        assert_eq!(tried(&both, &[]).await.0, Some(2));
    });
}

/// As in `runs --watch | head -1`.
#[test]
fn a_list_that_nobody_reads_ends() {
    run(async {
        let (_upstream, gateway) = start("", &["m"]).await;
        let url = format!("http://{}", gateway.addr);
        for flags in [&["runs"][..], &["runs", "--watch"], &["runs", "--json"]] {
            let (gone, output) = std::os::unix::net::UnixStream::pair().unwrap();
            drop(gone);
            let mut command =
                tokio::process::Command::new(env!("CARGO_BIN_EXE_tower-agent-gateway"));
            command.args(flags).args(["--url", &url]).kill_on_drop(true);
            command.stdout(std::os::fd::OwnedFd::from(output));
            command.stderr(std::process::Stdio::piped());
            let ended = command.spawn().unwrap().wait_with_output();
            let ended = tokio::time::timeout(std::time::Duration::from_secs(20), ended).await;
            let ended = ended.unwrap().unwrap();
            let told = String::from_utf8(ended.stderr).unwrap();
            assert_eq!((ended.status.code(), &*told), (Some(0), ""), "{flags:?}");
        }
    });
}
