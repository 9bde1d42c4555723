//! The routes of runs and events over several gateways, which share a `redis-server`.

use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use crate::{
    net::{Answer, Ask, CHAT, Streaming, Upstream, chat, eventually, run, run_alone, within},
    support::{Config, Gateway, RedisServer},
};

/// What an answer may take at most whose gateways are silent.
const SILENCE: Duration = Duration::from_millis(600);

/// What it may take on a machine under load.
const LATE: Duration = Duration::from_secs(1);

/// A store, an upstream, and the configuration of the gateways that share both.
struct Shared {
    store: RedisServer,
    upstream: Upstream,
    config: Config,
}

impl Shared {
    /// `None` without a `redis-server`.
    async fn start(settings: &str) -> Option<Self> {
        let store = RedisServer::start().await?;
        let upstream = Upstream::model().await;
        let replicas = "[replicas]\nurl_env = \"STORE_URL\"\nsecret_env = \"STORE_SECRET\"\n\
                        name_env = \"GATEWAY_NAME\"\ntimeout = \"2s\"";
        let config = Config::new(format!("{settings}\n{replicas}"))
            .candidate("m", upstream.addr)
            .env("STORE_URL", &store.url())
            .env("STORE_SECRET", "the secret of several gateways")
            .env("TEST_KEYS", "one:sk-one,two:sk-two");
        Some(Self {
            store,
            upstream,
            config,
        })
    }

    async fn gateway(&self, name: &str) -> Gateway {
        self.config.clone().env("GATEWAY_NAME", name).start().await
    }

    /// Gateways of these names, each of which all others know.
    async fn gateways<const N: usize>(&self, names: [&str; N]) -> [Gateway; N] {
        let started = join_all(names.map(|name| self.gateway(name))).await;
        for gateway in &started {
            until_covers(gateway, N).await;
        }
        started.try_into().unwrap_or_else(|_| unreachable!())
    }
}

/// Waits until a list of all gateways covers so many, and none is missing.
async fn until_covers(gateway: &Gateway, many: usize) {
    eventually(async || {
        let list = gateway.json("/runs?replicas=all&limit=1").await;
        (list["replicas"] == many && list["missing"] == json!([])).then_some(())
    })
    .await;
}

/// A turn of a run, which is answered and leaves the run open.
async fn turn(gateway: &Gateway, run: &str) {
    turn_of(gateway, "sk-one", run).await;
}

async fn turn_of(gateway: &Gateway, key: &str, run: &str) {
    let request = gateway.post(CHAT, chat("ok")).header("x-run-id", run);
    assert_eq!(request.bearer_auth(key).ask().await.status, 200);
}

async fn get(gateway: &Gateway, path: &str) -> Answer {
    gateway.get(path).ask().await
}

async fn post(gateway: &Gateway, path: &str) -> Answer {
    gateway.post(path, "").ask().await
}

fn outcome(answer: &Answer) -> (u16, Value) {
    (answer.status.as_u16(), answer.json())
}

/// The names of the runs of a list, each behind that of its gateway.
fn rows(list: &Value) -> Vec<String> {
    let rows = list["runs"].as_array().unwrap().iter();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    rows.map(|row| format!("{} {}", text(row, "replica"), text(row, "run")))
        .collect()
}

/// How long an answer took.
async fn timed(answer: impl Future<Output = Answer>) -> (Answer, Duration) {
    let since = Instant::now();
    let answer = answer.await;
    (answer, since.elapsed())
}

/// Asks `redis-server`, and returns its first words.
async fn redis(store: &RedisServer, words: &[&[u8]]) -> String {
    let url = store.url();
    let address = url.strip_prefix("redis://").unwrap();
    let mut stream = within(TcpStream::connect(address)).await.unwrap();
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend(format!("${}\r\n", word.len()).into_bytes());
        command.extend(*word);
        command.extend(b"\r\n");
    }
    within(stream.write_all(&command)).await.unwrap();
    let mut answer = vec![0; 1 << 20];
    let read = within(stream.read(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// covers: H4, C4
#[test]
fn the_list_of_all_gateways_has_each_run_once_newest_first_page_by_page() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let gateways = shared.gateways(["one", "two", "three"]).await;
        let mut expected = Vec::new();
        for number in 0..10 {
            // Gateways tell each other how old a run is, which takes them some milliseconds.
            sleep(Duration::from_millis(50)).await;
            let at = [0, 1, 2, 2, 0, 1, 1, 1, 2, 0][number];
            turn(&gateways[at], &format!("r-{number}")).await;
            expected.insert(0, format!("{} r-{number}", ["one", "two", "three"][at]));
        }
        for gateway in &gateways {
            let (list, took) = timed(get(gateway, "/runs?replicas=all")).await;
            eprintln!("a list of three gateways took {took:?}");
            let list = list.json();
            assert_eq!(rows(&list), expected);
            let told = (&list["replicas"], &list["missing"], list.get("next"));
            assert_eq!(told, (&json!(3), &json!([]), None));
        }

        let (mut seen, mut path) = (Vec::new(), "/runs?replicas=all&limit=3".to_owned());
        loop {
            // A balancer may send each page's request elsewhere.
            let gateway = &gateways[seen.len() % 3];
            let page = gateway.json(&path).await;
            seen.push(rows(&page));
            // It is on no page.
            turn(gateway, &format!("later-{}", seen.len())).await;
            let Some(next) = page.get("next") else { break };
            let next = next.as_str().unwrap();
            path = format!("/runs?limit=3&after={next}&replicas=all");
        }
        assert_eq!(seen.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 3, 1]);
        assert_eq!(seen.concat(), expected);

        // The plain list is as it was.
        let own = gateways[0].json("/runs?limit=1").await;
        assert!(own["runs"][0].get("replica").is_none() && own.get("missing").is_none());
        let next = own["next"].as_str().unwrap();
        for (query, named) in [
            ("replicas=some".to_owned(), "`some`, expected `all`"),
            (format!("replicas=all&after={next}"), "with `replicas=all`"),
            ("after=a-1~7".to_owned(), "needs `replicas=all`"),
            (
                "replicas=all&after=a-1~x".to_owned(),
                "\"a-1~x\" is not a cursor",
            ),
        ] {
            let answer = get(&gateways[0], &format!("/runs?{query}")).await;
            assert_eq!(answer.status, 400, "{query}");
            let error = answer.json()["error"]["message"].to_string();
            assert!(error.contains(&named.replace('"', "\\\"")), "{error}");
        }
    });
}

/// covers: H4, C4
#[test]
fn a_frozen_gateway_is_named_and_held_up_for_half_a_second_at_most() {
    run_alone(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two, three] = shared.gateways(["one", "two", "three"]).await;
        turn(&one, "r-1").await;
        turn(&two, "r-2").await;
        turn(&three, "r-3").await;
        two.process.freeze().await;

        let mut took = Vec::new();
        for _ in 0..3 {
            let (list, time) = timed(get(&one, "/runs?replicas=all")).await;
            let list = list.json();
            assert_eq!(rows(&list), ["three r-3", "one r-1"]);
            assert_eq!(
                (&list["replicas"], &list["missing"]),
                (&json!(2), &json!(["two"]))
            );
            took.push(time);
        }
        let (found, time) = timed(get(&one, "/runs/r-3")).await;
        assert_eq!(
            (found.status.as_u16(), &found.json()["replica"]),
            (200, &json!("three"))
        );
        took.push(time);
        let (unknown, time) = timed(get(&one, "/runs/r-2")).await;
        let (status, answer) = outcome(&unknown);
        assert_eq!((status, &answer["missing"]), (404, &json!(["two"])));
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("not all other gateways answered"),
            "{message}"
        );
        took.push(time);
        eprintln!("with a frozen gateway, answers took {took:?}");
        assert!(took.iter().all(|time| *time < SILENCE + LATE), "{took:?}");

        // It is still named when nobody waits for it any more.
        eventually(async || {
            let (list, time) = timed(get(&one, "/runs?replicas=all")).await;
            assert_eq!(list.json()["missing"], json!(["two"]));
            (time < SILENCE / 2).then_some(())
        })
        .await;
        two.signal("CONT");
        until_covers(&one, 3).await;
        let list = one.json("/runs?replicas=all").await;
        assert_eq!(rows(&list), ["three r-3", "two r-2", "one r-1"]);

        // One that stops is not missed, and one that is killed is until it is back.
        two.signal("TERM");
        until_covers(&one, 2).await;
        three.process.kill().await;
        eventually(async || {
            let list = one.json("/runs?replicas=all").await;
            (list["missing"] == json!(["three"])).then_some(())
        })
        .await;
        let _again = shared.gateway("three").await;
        until_covers(&one, 2).await;
    });
}

/// Whoever has asked for it was told that nothing was done.
/// covers: H4, C6
#[test]
fn a_gateway_that_hears_of_a_question_too_late_does_nothing() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two] = shared.gateways(["one", "two"]).await;
        turn(&two, "r").await;
        for _ in 0..3 {
            two.process.freeze().await;
            let (status, answer) = outcome(&post(&one, "/runs/r/complete").await);
            // Not so long that the gateway would connect anew.
            two.signal("CONT");
            assert_eq!((status, &answer["missing"]), (404, &json!(["two"])));
            until_covers(&one, 2).await;
            assert_eq!(one.reason("r").await, Value::Null);
        }
        let (status, _) = outcome(&post(&one, "/runs/r/complete").await);
        assert_eq!((status, one.reason("r").await), (200, json!("completed")));
    });
}

/// covers: H4, C4
#[test]
fn without_its_store_a_gateway_answers_for_itself_and_says_so() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two] = shared.gateways(["one", "two"]).await;
        turn(&one, "r-1").await;
        turn(&two, "r-2").await;
        let first = one.json("/runs?replicas=all&limit=1").await;
        let next = first["next"].as_str().unwrap();
        let mut events = one.get("/events?replicas=all").open().await;
        events.until("\"replicas\":2").await;
        shared.store.signal("STOP");

        // Also before the loss is known.
        for _ in 0..5 {
            let (list, took) = timed(get(&one, "/runs?replicas=all")).await;
            let list = list.json();
            assert_eq!(rows(&list), ["one r-1"]);
            assert_eq!(
                (&list["replicas"], list.get("missing")),
                (&json!("lost"), None)
            );
            assert!(took < SILENCE + LATE, "{took:?}");
        }
        let page = one.json(&format!("/runs?replicas=all&after={next}")).await;
        assert_eq!(
            (rows(&page), page.get("next")),
            (vec!["one r-1".to_owned()], None)
        );
        assert_eq!(get(&one, "/runs/r-1").await.status, 200);
        for path in ["/runs/r-2", "/runs/r-2/wait?limit=10m"] {
            let (status, answer) = outcome(&get(&one, path).await);
            assert_eq!(
                (status, &answer["replicas"]),
                (404, &json!("lost")),
                "{path}"
            );
        }
        let unknown = outcome(&post(&one, "/runs/r-2/complete").await);
        assert_eq!((unknown.0, &unknown.1["replicas"]), (404, &json!("lost")));
        let done = outcome(&post(&one, "/runs/r-1/complete").await);
        assert_eq!(done, (200, json!({"completed": true, "replicas": "lost"})));
        events.until("\"replicas\":\"lost\"").await;

        shared.store.signal("CONT");
        until_covers(&one, 2).await;
        events.until("\"replicas\":2").await;
    });
}

/// covers: H4, C4
#[test]
fn a_run_is_shown_from_the_gateway_that_has_it() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two, three] = shared.gateways(["one", "two", "three"]).await;
        turn(&two, "r").await;
        let shown = one.json("/runs/r").await;
        let own = two.json("/runs/r").await;
        assert_eq!(
            (&shown["run"], &shown["replica"]),
            (&json!("r"), &json!("two"))
        );
        assert_eq!((&shown["turns"], own.get("replica")), (&own["turns"], None));

        // The live one wins.
        turn(&three, "r").await;
        assert_eq!(outcome(&post(&two, "/runs/r/complete").await).0, 200);
        turn(&three, "r").await;
        let shown = one.json("/runs/r").await;
        assert_eq!(
            (&shown["reason"], &shown["replica"]),
            (&Value::Null, &json!("three"))
        );

        // Of several owners each has its own.
        turn_of(&two, "sk-two", "r").await;
        let both = one.json("/runs/r").await;
        let mut both = rows(&both);
        both.sort();
        assert_eq!(both, ["three r", "two r"]);

        let unknown = get(&one, "/runs/unknown").await;
        let (status, answer) = outcome(&unknown);
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!("run_not_found"))
        );
        assert_eq!(
            (&answer["replicas"], &answer["missing"]),
            (&json!(3), &json!([]))
        );
        assert_eq!(get(&one, "/runs/a%20b").await.status, 400);
    });
}

/// covers: H4, C6
#[test]
fn whoever_waits_at_another_gateway_is_answered_at_the_end() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two, three] = shared.gateways(["one", "two", "three"]).await;
        let mut took = Vec::new();
        for number in 0..5 {
            let id = format!("r-{number}");
            turn(&two, &id).await;
            let path = format!("/runs/{id}/wait");
            let wait = tokio::spawn(one.get(&path).ask());
            let short = one.json(&format!("{path}?limit=20ms")).await;
            assert_eq!(short["ended"], json!(false));
            assert!(!wait.is_finished());

            // Where it is, where it is waited for, and where it never was.
            let since = Instant::now();
            assert!([&two, &one, &three][number % 3].abort(&id).await);
            let answer = within(wait).await.unwrap();
            took.push(since.elapsed());
            let (status, ended) = outcome(&answer);
            assert_eq!((status, &ended["reason"]), (200, &json!("aborted")));
            assert_eq!(
                (&ended["run"], &ended["replica"]),
                (&json!(id), &json!("two"))
            );
            let after = one.json(&format!("{path}?limit=0s")).await;
            assert_eq!(after["reason"], "aborted");
        }
        eprintln!("from an abort to the answer of a wait elsewhere: {took:?}");

        // What completes is told to nobody, and found all the same.
        turn(&two, "done").await;
        let wait = tokio::spawn(one.get("/runs/done/wait").ask());
        assert_eq!(outcome(&post(&two, "/runs/done/complete").await).0, 200);
        let ended = within(wait).await.unwrap().json();
        assert_eq!(ended["reason"], "completed");

        let unknown = outcome(&get(&one, "/runs/unknown/wait?limit=10m").await);
        assert_eq!((unknown.0, &unknown.1["missing"]), (404, &json!([])));

        // A request of the run comes to the gateway at which somebody waits.
        turn(&two, "moves").await;
        let wait = tokio::spawn(one.get("/runs/moves/wait").ask());
        turn(&one, "moves").await;
        assert!(one.abort("moves").await);
        assert_eq!(within(wait).await.unwrap().json()["reason"], "aborted");

        // The gateway that has the run goes.
        turn(&two, "gone").await;
        let wait = tokio::spawn(one.get("/runs/gone/wait?limit=10m").ask());
        let short = one.json("/runs/gone/wait?limit=20ms").await;
        assert_eq!(short["ended"], json!(false));
        two.signal("TERM");
        let gone = outcome(&within(wait).await.unwrap());
        let is_over = gone.0 == 404 || gone.1["reason"] == "shutdown";
        assert!(is_over, "{gone:?}");
    });
}

/// The end of a run with an id is told to all gateways, so nobody waits for the next look.
/// covers: H4, C6
#[test]
fn a_long_wait_at_another_gateway_hears_of_the_end_at_once() {
    run_alone(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two] = shared.gateways(["one", "two"]).await;
        let ids: Vec<_> = (0..9).map(|number| format!("r-{number}")).collect();
        let mut waits = Vec::new();
        for id in &ids {
            turn(&two, id).await;
            waits.push(tokio::spawn(one.get(&format!("/runs/{id}/wait")).ask()));
        }
        // By now a second passes from one look to the next.
        sleep(Duration::from_secs(3)).await;
        let mut took = Vec::new();
        for (id, wait) in ids.iter().zip(waits) {
            // At any moment between two looks.
            sleep(Duration::from_millis(137)).await;
            let since = Instant::now();
            assert!(two.abort(id).await);
            assert_eq!(within(wait).await.unwrap().json()["reason"], "aborted");
            took.push(since.elapsed());
        }
        took.sort();
        eprintln!("from an abort to the answer of a long wait elsewhere: {took:?}");
        assert!(took[4] < Duration::from_millis(250), "{took:?}");
    });
}

/// covers: H4, C6
#[test]
fn hundreds_wait_for_runs_of_another_gateway() {
    run_alone(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two] = shared.gateways(["one", "two"]).await;
        let ids: Vec<_> = (0..200).map(|number| format!("r-{number}")).collect();
        for id in &ids {
            turn(&two, id).await;
        }
        let waits: Vec<_> = ids
            .iter()
            .map(|id| {
                let wait = one.get(&format!("/runs/{id}/wait")).ask();
                tokio::spawn(async { (wait.await, Instant::now()) })
            })
            .collect();
        // All of them wait, and other questions are answered meanwhile.
        let (list, list_took) = timed(get(&one, "/runs?replicas=all&limit=1000")).await;
        assert_eq!(rows(&list.json()).len(), 200);
        let mut took = Vec::new();
        for (wait, id) in waits.into_iter().zip(&ids) {
            let since = Instant::now();
            assert!(two.abort(id).await);
            let (answer, answered) = within(wait).await.unwrap();
            took.push(answered - since);
            let ended = answer.json();
            assert_eq!(
                (&ended["run"], &ended["reason"]),
                (&json!(id), &json!("aborted"))
            );
        }
        took.sort();
        eprintln!(
            "200 waits: a list beside them took {list_took:?}; from the abort to the answer p50 {:?}, \
             longest {:?}",
            took[100], took[199]
        );
        until_covers(&one, 2).await;
    });
}

/// A connection of which nobody reads any more would be a file that stays open.
/// covers: H4, C6
#[cfg(target_os = "linux")]
#[test]
fn a_client_that_leaves_waits_no_longer_for_another_gateway() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two] = shared.gateways(["one", "two"]).await;
        turn(&two, "r").await;
        let before = one.process.open_files();
        let waits: Vec<_> = (0..20)
            .map(|_| tokio::spawn(one.get("/runs/r/wait?limit=10m").ask()))
            .collect();
        eventually(async || (one.process.open_files() >= before + 20).then_some(())).await;
        for wait in waits {
            wait.abort();
        }
        eventually(async || (one.process.open_files() <= before).then_some(())).await;
        assert_eq!(one.json("/runs/r").await["reason"], Value::Null);
    });
}

/// covers: H4, C6
#[test]
fn a_run_is_completed_at_all_gateways_that_have_it() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two, three] = shared.gateways(["one", "two", "three"]).await;
        let completed = json!({"completed": true, "replicas": 3, "missing": []});
        turn(&two, "r").await;
        turn(&three, "r").await;
        for gateway in [&one, &two, &three] {
            let done = outcome(&post(gateway, "/runs/r/complete").await);
            assert_eq!(done, (200, completed.clone()));
        }
        for gateway in [&two, &three] {
            assert_eq!(gateway.reason("r").await, "completed");
        }

        let held = two.post(CHAT, chat("held")).header("x-run-id", "busy");
        let held = tokio::spawn(held.ask());
        shared.upstream.until_open(1).await;
        let work = outcome(&post(&one, "/runs/busy/complete").await);
        let in_flight = work.1["in_flight"].as_u64().unwrap();
        assert_eq!((work.0, &work.1["completed"]), (202, &json!(false)));
        assert!(in_flight > 0);
        let wait = tokio::spawn(one.get("/runs/busy/wait").ask());
        shared.upstream.resume();
        assert_eq!(within(held).await.unwrap().status, 200);
        assert_eq!(within(wait).await.unwrap().json()["reason"], "completed");

        turn(&two, "over").await;
        assert!(two.abort("over").await);
        let over = outcome(&post(&one, "/runs/over/complete").await);
        assert_eq!((over.0, &over.1["reason"]), (200, &json!("aborted")));
        let unknown = outcome(&post(&one, "/runs/unknown/complete").await);
        assert_eq!((unknown.0, &unknown.1["replicas"]), (404, &json!(3)));
    });
}

/// covers: H4, C4
#[test]
fn a_caller_sees_and_completes_its_own_runs_at_all_gateways_and_no_others() {
    run(async {
        let settings = "[auth]\nkeys_env = \"TEST_KEYS\"";
        let Some(shared) = Shared::start(settings).await else {
            return;
        };
        let [one, two] = shared.gateways(["one", "two"]).await;
        turn_of(&two, "sk-one", "r").await;
        turn_of(&two, "sk-two", "others").await;
        let own = async |path: &str, key: &str, is_post: bool| {
            let request = match is_post {
                true => one.post(path, ""),
                false => one.get(path),
            };
            outcome(&request.bearer_auth(key).ask().await)
        };
        let (status, shown) = own("/v1/runs/r", "sk-one", false).await;
        assert_eq!((status, &shown["run"]), (200, &json!("r")));
        assert_eq!(shown.get("replica"), None, "gateways are the operator's");

        for (path, is_post) in [("/v1/runs/r", false), ("/v1/runs/r/complete", true)] {
            let (status, answer) = own(path, "sk-two", is_post).await;
            assert_eq!(
                (status, &answer["error"]["code"]),
                (404, &json!("run_not_found"))
            );
            assert_eq!(
                (&answer["replicas"], answer.get("missing")),
                (&json!(2), None)
            );
        }
        assert_eq!(two.reason("r").await, Value::Null);
        let done = own("/v1/runs/r/complete", "sk-one", true).await;
        assert_eq!(done, (200, json!({"completed": true, "replicas": 2})));
        assert_eq!(two.reason("r").await, "completed");
        // The operator sees both.
        assert_eq!(one.json("/runs/others").await["replica"], "two");
    });
}

/// The events of a stream so far: the id, the name and the data of each.
async fn events(stream: &mut Streaming, many: usize) -> Vec<(Option<String>, String, Value)> {
    let text = stream
        .read(|text| text.matches("\n\n").count() >= many)
        .await;
    let line = |event: &str, name: &str| {
        let mut lines = event.lines();
        lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
    };
    text.split_terminator("\n\n")
        .map(|event| {
            let data = line(event, "data: ").unwrap_or_else(|| panic!("{event}"));
            let data = serde_json::from_str(&data).unwrap();
            (line(event, "id: "), line(event, "event: ").unwrap(), data)
        })
        .collect()
}

/// An event in short: its gateway, its run, and what happened.
fn short((_, name, data): &(Option<String>, String, Value)) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let what = match name.as_str() {
        "ended" => text(&data["reason"]),
        "notice" => text(&data["notice"]["kind"]),
        "replicas" => return format!("{} of which {}", data["replicas"], data["missing"]),
        _ => data["events"].to_string(),
    };
    format!("{} {} {what}", text(&data["replica"]), text(&data["run"]))
}

/// covers: H4, C8
#[test]
fn an_observer_is_told_the_events_of_all_gateways_also_when_it_comes_back_elsewhere() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [one, two] = shared.gateways(["one", "two"]).await;
        turn(&two, "before").await;
        let mut observer = one.get("/events?replicas=all").open().await;
        assert_eq!(observer.headers["content-type"], "text/event-stream");
        turn(&two, "a").await;
        let mut told = events(&mut observer, 2).await;
        turn(&one, "b").await;
        told.extend(events(&mut observer, 1).await);
        assert_eq!(outcome(&post(&one, "/runs/a/complete").await).0, 200);
        told.extend(events(&mut observer, 1).await);
        assert!(two.abort("b").await);
        told.extend(events(&mut observer, 1).await);
        let expected = [
            "2 of which []",
            "two a opened",
            "one b opened",
            "two a completed",
            "one b aborted",
        ];
        assert_eq!(told.iter().map(short).collect::<Vec<_>>(), expected);
        let ended = &told[3].2;
        assert_eq!(ended["snapshot"]["reason"], "completed");
        assert!(ended["registry_sequence"].as_u64().unwrap() > 1, "{ended}");
        assert_eq!(told[0].0, None);

        // Nothing is missed meanwhile, and nothing comes twice.
        drop(observer);
        turn(&one, "c").await;
        turn(&two, "d").await;
        let id = told[2].0.as_deref().unwrap();
        let back = two.get("/events?replicas=all").header("last-event-id", id);
        let mut back = back.open().await;
        let mut told = events(&mut back, 5).await;
        told.sort_by_key(short);
        let mut expected = [
            "2 of which []",
            "two a completed",
            "one b aborted",
            "one c opened",
            "two d opened",
        ];
        expected.sort_unstable();
        assert_eq!(told.iter().map(short).collect::<Vec<_>>(), expected);

        // A gateway that comes is told from its first event on.
        let three = shared.gateway("three").await;
        turn(&three, "e").await;
        let told = events(&mut back, 2).await;
        let told: Vec<_> = told.iter().map(short).collect();
        assert!(told.contains(&"three e opened".to_owned()), "{told:?}");
        assert!(told.contains(&"3 of which []".to_owned()), "{told:?}");
        // One that is frozen is named, and tells later what happened before.
        turn(&three, "f").await;
        three.process.freeze().await;
        let named = back.until("\"missing\":[\"three\"]").await;
        three.signal("CONT");
        let is_told = |text: &str| format!("{named}{text}").contains("\"run\":\"f\"");
        let text = back
            .read(|text| text.contains("\"replicas\":3") && is_told(text))
            .await;
        assert_eq!(format!("{named}{text}").matches("\"run\":\"f\"").count(), 1);

        for (path, id) in [
            ("/events?replicas=all", "7"),
            ("/events", "a-1~7"),
            ("/events?replicas=two", ""),
            ("/events?replica=all", ""),
        ] {
            let answer = one.get(path).header("last-event-id", id).ask().await;
            assert_eq!(answer.status, 400, "{path} {id}");
        }
    });
}

/// covers: H4, C10
#[test]
fn the_stream_of_all_events_ends_with_its_gateway_and_tells_the_ends_of_that() {
    run(async {
        let Some(shared) = Shared::start("").await else {
            return;
        };
        let [mut one, _two] = shared.gateways(["one", "two"]).await;
        let mut observer = one.get("/events?replicas=all").open().await;
        turn(&one, "r").await;
        one.signal("TERM");
        let told = events(&mut observer, usize::MAX).await;
        let told: Vec<_> = told.iter().map(short).collect();
        assert_eq!(told, ["2 of which []", "one r opened", "one r shutdown"]);
        assert_eq!(one.exit_status().await.code(), Some(0));
    });
}

/// Whoever can write to the store can ask what gateways ask each other, and nothing more.
/// covers: H4, C4
#[test]
fn what_another_program_asks_by_the_store_is_answered_as_far_as_gateways_ask_it() {
    run(async {
        let settings = "[run]\npartial = 1000";
        let Some(shared) = Shared::start(settings).await else {
            return;
        };
        let [one, two] = shared.gateways(["one", "two"]).await;
        let stream = one.post(CHAT, chat("stall")).header("x-run-id", "live");
        let mut stream = stream.open().await;
        stream.until("data:").await;
        let cut = one.post(CHAT, chat("stall")).header("x-run-id", "cut");
        let mut cut = cut.open().await;
        cut.until("data:").await;
        assert!(one.abort("cut").await);
        let text = one.json("/runs/cut").await["text"].clone();
        assert!(text.as_str().is_some_and(|text| !text.is_empty()), "{text}");

        let store = &shared.store;
        let ask = async |nonce: &str, question: &[u8]| {
            let fields: [&[u8]; 8] = [
                b"r",
                b"x-00000000000000ff",
                b"n",
                nonce.as_bytes(),
                b"w",
                b"5000",
                b"q",
                question,
            ];
            let words: [&[u8]; 3] = [b"XADD", b"ta1:{00}:ask", b"*"];
            let added = redis(store, &[&words[..], &fields[..]].concat()).await;
            assert!(added.starts_with('$'), "{added}");
        };
        // The answers of both gateways.
        let answers = async |nonce: &str, question: &[u8]| {
            ask(nonce, question).await;
            let key = format!("ta1:{{00}}:re:{nonce}");
            eventually(async || {
                let length = redis(store, &[b"LLEN", key.as_bytes()]).await;
                (length == ":2\r\n").then_some(())
            })
            .await;
            redis(store, &[b"LRANGE", key.as_bytes(), b"0", b"-1"]).await
        };
        let unknown = "{\"v\":1,\"it\":\"unknown\"}";
        let long = "x".repeat(16 * 1024);
        for (at, question) in [
            "",
            "not JSON",
            "POST /runs/live/abort",
            r#"{"method":"POST","path":"/runs/live/abort"}"#,
            r#"{"v":1,"it":{"abort":{"run":"live","owner":null}}}"#,
            r#"{"v":2,"it":{"complete":{"run":"live","owner":null}}}"#,
            r#"{"v":1,"it":{"complete":{"run":"live","owner":null,"all":true}}}"#,
            r#"{"v":1,"it":{"complete":{"run":"a b","owner":null}}}"#,
            r#"{"v":1,"it":{"complete":{"run":"live","owner":"sk-one"}}}"#,
            r#"{"v":1,"it":{"metrics":{}}}"#,
            &long,
        ]
        .into_iter()
        .enumerate()
        {
            let answers = answers(&format!("00000000000000{at:02x}"), question.as_bytes()).await;
            assert_eq!(
                answers.matches(unknown).count(),
                2,
                "{question:.80}: {answers}"
            );
        }
        // Those that are too long, or that cannot be read at all, are not answered.
        let huge = vec![b'['; 8 << 20];
        for question in [&huge[..], b"\xff\xfe", format!("{long}x").as_bytes()] {
            ask("00000000000000ee", question).await;
        }
        redis(store, &[b"XADD", b"ta1:{00}:ask", b"*", b"q", b"{}"]).await;

        // What was said stays where it was said.
        let show = br#"{"v":1,"it":{"show":{"run":"cut","owner":null}}}"#;
        let shown = answers("00000000000000aa", show).await;
        assert!(
            shown.contains("aborted") && !shown.contains("\"text\""),
            "{shown}"
        );
        let told = br#"{"v":1,"it":{"events":{"after":{},"since_ms":null}}}"#;
        let told = answers("00000000000000bb", told).await;
        assert!(told.contains("aborted"), "{told}");
        for texts in ["\"text\"", "\"partial\""] {
            assert!(!told.contains(texts), "{texts} is in {told}");
        }
        let elsewhere = two.json("/runs/cut").await;
        assert_eq!(
            (&elsewhere["reason"], elsewhere.get("text")),
            (&json!("aborted"), None)
        );

        assert_eq!(one.json("/runs/live").await["reason"], Value::Null);
        let none = redis(store, &[b"EXISTS", b"ta1:{00}:re:00000000000000ee"]).await;
        assert_eq!(none, ":0\r\n");
        until_covers(&one, 2).await;
    });
}

/// covers: C4
#[test]
fn without_other_gateways_all_of_them_are_this_one() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        turn(&gateway, "r-1").await;
        turn(&gateway, "r-2").await;
        let all = gateway.json("/runs?replicas=all&limit=1").await;
        let own = gateway.json("/runs?limit=1").await;
        assert_eq!(all["next"], own["next"]);
        assert_eq!((all.get("replicas"), all.get("missing")), (None, None));
        assert!(all["runs"][0].get("replica").is_none());
        let mut observer = gateway.get("/events?replicas=all").open().await;
        turn(&gateway, "r-3").await;
        let told = observer.until("opened").await;
        assert!(!told.contains("replica"), "{told}");
        assert!(told.ends_with("\nid: 3\n\n"), "{told}");
    });
}

/// covers: H4
#[test]
fn a_gateway_without_a_name_has_that_of_its_host() {
    run(async {
        let Some(store) = RedisServer::start().await else {
            return;
        };
        let upstream = Upstream::model().await;
        let replicas = "[replicas]\nurl_env = \"STORE_URL\"\nsecret_env = \"STORE_SECRET\"";
        let config = Config::new(replicas).candidate("m", upstream.addr);
        let config = config.env("STORE_URL", &store.url());
        let config = config.env("STORE_SECRET", "the secret of several gateways");
        let config = config.env("HOSTNAME", "web 1.example");
        let gateway = config.start().await;
        turn(&gateway, "r").await;
        let list = gateway.json("/runs?replicas=all").await;
        assert_eq!(rows(&list), ["web-1.example r"]);
    });
}

/// covers: H4, H11
#[test]
fn an_abort_of_many_and_a_freeze_reach_all_gateways_and_the_freeze_outlives_a_kill() {
    run(async {
        let Some(shared) = Shared::start("[auth]\nkeys_env = \"TEST_KEYS\"").await else {
            return;
        };
        let [one, two] = shared.gateways(["r1", "r2"]).await;
        let hang = async |gateway: &Gateway, key: &str, run: &str| {
            let request = gateway.post(CHAT, chat("stall")).bearer_auth(key);
            request.header("x-run-id", run).open().await
        };
        let mut open = [
            hang(&one, "sk-one", "a").await,
            hang(&two, "sk-one", "b").await,
            hang(&two, "sk-two", "c").await,
        ];
        let filtered = one.json("/runs?replicas=all&owner=one&sort=silent").await;
        let rows = filtered["runs"].as_array().unwrap();
        assert_eq!(rows.len(), 2, "{filtered}");
        assert!(rows.iter().all(|row| row["owner"] == "one"), "{filtered}");
        let abort = async |body: Value| one.post("/abort", body.to_string()).ask().await.json();
        let would = abort(json!({"owner": "one", "dry_run": true})).await;
        assert_eq!(
            (&would["count"], &would["replicas"]),
            (&json!(2), &json!(2))
        );
        let done = abort(json!({"owner": "one"})).await;
        assert_eq!((&done["count"], &done["missing"]), (&json!(2), &json!([])));
        for stream in &mut open[..2] {
            assert!(stream.rest().await.contains("aborted"));
        }

        let ask = async |gateway: &Gateway, key: &str, run: &str| {
            let request = gateway.post(CHAT, chat("ok")).bearer_auth(key);
            request.header("x-run-id", run).ask().await.status.as_u16()
        };
        let frozen = one.request(reqwest::Method::PUT, "/freeze/one").ask().await;
        assert_eq!(frozen.json()["owners"], json!(["one"]));
        eventually(async || (two.json("/freeze").await["owners"] == json!(["one"])).then_some(()))
            .await;
        assert_eq!(ask(&two, "sk-one", "new").await, 503);
        assert_eq!(ask(&two, "sk-two", "new").await, 200);
        two.process.kill().await;
        let again = shared.gateway("r2").await;
        eventually(async || (ask(&again, "sk-one", "newer").await == 503).then_some(())).await;
        let thawed = again
            .request(reqwest::Method::DELETE, "/freeze/one")
            .ask()
            .await;
        assert_eq!(thawed.json()["owners"], json!([]));
        eventually(async || (ask(&one, "sk-one", "newest").await == 200).then_some(())).await;
        drop(open);
    });
}

/// A gateway that has a turn of the run meanwhile gets the extension from the store, too.
/// covers: H4, H12
#[test]
fn an_extension_counts_once_wherever_it_is_asked_for_and_who_has_a_turn_meanwhile() {
    run(async {
        let settings = "[auth]\nkeys_env = \"TEST_KEYS\"\n[run]\nmax_turns = 3";
        let Some(shared) = Shared::start(settings).await else {
            return;
        };
        let [one, two, three] = shared.gateways(["one", "two", "three"]).await;
        for number in 0..30 {
            let run = format!("r-{number}");
            turn(&one, &run).await;
            // Every third run is extended at a gateway that does not have it.
            let at = [&one, &two, &three][number % 3];
            let path = format!("/runs/{run}/extend");
            let extended = at.post(&path, "{\"turns\":2}").ask();
            let (extended, ()) = join(extended, turn(&two, &run)).await;
            let (status, body) = outcome(&extended);
            assert_eq!((status, &body["extended"]), (200, &json!(true)), "{body}");
            // All have learned of it at their next turn.
            for gateway in [&one, &two, &three] {
                turn(gateway, &run).await;
                let shown = gateway.json(&format!("/runs/{run}")).await;
                assert_eq!(shown["max_turns"], 5, "{run}");
            }
            let request = one.post(CHAT, chat("ok")).bearer_auth("sk-one");
            let over = request.header("x-run-id", run).ask().await;
            assert_eq!(over.status, 422, "{over:?}");
        }
    });
}
