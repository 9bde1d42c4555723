//! Webhooks of a gateway as a process, to receivers on real sockets.
//!
//! With `WEBHOOKS_DOWN` in the environment the receiver of the burst is down for so many seconds.
//!
//! covers: H12

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt, future::join_all, stream};
use reqwest::Method;
use ring::hmac;
use serde_json::{Value, json};
use tokio::{net::TcpSocket, time::sleep};

use crate::{
    net::{Ask, CHAT, ClosedPort, Upstream, asks, assert_no_secrets, eventually, run, run_alone},
    replicas::Cluster,
    support::{Config, Gateway},
};

const KEY: &[u8; 24] = b"0123456789abcdefghijklmn";
const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u";

/// What a receiver does with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Manner {
    Status(u16),
    /// It never answers.
    Hangs,
    /// It sends the head of a success, and a body without an end.
    Endless,
    /// It sends the caller to this address.
    Redirects(SocketAddr),
}

/// A receiver of webhooks, which checks each signature.
#[derive(Clone)]
struct Receiver {
    addr: SocketAddr,
    manner: Arc<Mutex<Manner>>,
    posts: Arc<Mutex<Vec<Post>>>,
    open: Arc<AtomicUsize>,
}

#[derive(Clone, Debug)]
struct Post {
    id: String,
    text: String,
    body: Value,
    taken: bool,
}

impl Receiver {
    async fn start(manner: Manner) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        Self::listen(socket, manner)
    }

    fn listen(socket: TcpSocket, manner: Manner) -> Self {
        let listener = socket.listen(1024).unwrap();
        let receiver = Self {
            addr: listener.local_addr().unwrap(),
            manner: Arc::new(Mutex::new(manner)),
            posts: Arc::default(),
            open: Arc::default(),
        };
        let hears = receiver.clone();
        let app = Router::new().fallback(async move |headers: HeaderMap, body: Bytes| {
            hears.clone().hear(&headers, &body).await
        });
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        receiver
    }

    async fn hear(self, headers: &HeaderMap, body: &[u8]) -> Response {
        let header = |name: &str| headers[name].to_str().unwrap().to_owned();
        let (id, at) = (header("webhook-id"), header("webhook-timestamp"));
        let signed = [format!("{id}.{at}.").as_bytes(), body].concat();
        let signature = header("webhook-signature");
        let signature = base64(signature.strip_prefix("v1,").unwrap());
        let key = hmac::Key::new(hmac::HMAC_SHA256, KEY);
        hmac::verify(&key, &signed, &signature).expect("a right signature");
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        assert!(now.unwrap().as_secs().abs_diff(at.parse().unwrap()) <= 5);
        assert_eq!(headers["content-type"], "application/json");

        let manner = *self.manner.lock().unwrap();
        self.posts.lock().unwrap().push(Post {
            id,
            text: String::from_utf8(body.to_vec()).unwrap(),
            body: serde_json::from_slice(body).unwrap(),
            taken: matches!(manner, Manner::Status(200..=299) | Manner::Endless),
        });
        self.open.fetch_add(1, Ordering::Relaxed);
        match manner {
            Manner::Status(status) => StatusCode::from_u16(status).unwrap().into_response(),
            Manner::Hangs => std::future::pending().await,
            Manner::Endless => {
                let endless = stream::repeat(Bytes::from_static(&[b'x'; 65_536]));
                Response::new(Body::from_stream(endless.map(Ok::<_, std::io::Error>)))
            }
            Manner::Redirects(to) => (
                StatusCode::TEMPORARY_REDIRECT,
                [("location", format!("http://{to}/"))],
            )
                .into_response(),
        }
    }

    fn be(&self, manner: Manner) {
        *self.manner.lock().unwrap() = manner;
    }

    fn posts(&self) -> Vec<Post> {
        self.posts.lock().unwrap().clone()
    }

    /// The messages of this type.
    fn of(&self, kind: &str) -> Vec<Value> {
        let posts = self.posts();
        let of_kind = posts.into_iter().filter(|post| post.body["type"] == kind);
        of_kind.map(|post| post.body).collect()
    }

    /// Waits for the first message of this type.
    async fn first(&self, kind: &str) -> Value {
        eventually(async || self.of(kind).into_iter().next()).await
    }

    /// The table of this receiver.
    fn table(&self, keys: &str) -> String {
        table(self.addr, keys)
    }
}

fn table(addr: SocketAddr, keys: &str) -> String {
    format!("[[webhooks]]\nurl = \"http://{addr}/a-path\"\nsecret_env = \"HOOK\"\n{keys}\n")
}

/// Decodes base64 without the library that encoded it.
fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.bytes().filter(|byte| *byte != b'=');
    let digits = digits.map(|byte| DIGITS.iter().position(|it| *it == byte).unwrap() as u32);
    let digits: Vec<_> = digits.collect();
    let bytes = digits.chunks(4).flat_map(|part| {
        let bits = part.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - part.len()));
        bits.to_be_bytes()[1..part.len()].to_vec()
    });
    bytes.collect()
}

fn config(settings: &str) -> Config {
    Config::new(settings).env("HOOK", SECRET)
}

async fn ask(gateway: &Gateway, id: &str, model: &str) -> u16 {
    let call = gateway.post(CHAT, asks(model, false));
    call.header("x-run-id", id).ask().await.status.as_u16()
}

/// The samples of a metric in the text, by its labels.
fn metric(text: &str, name: &str) -> HashMap<String, u64> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let lines = lines.filter_map(|rest| rest.rsplit_once(' '));
    lines
        .map(|(labels, value)| (labels.to_owned(), value.parse().unwrap()))
        .collect()
}

async fn outcomes(gateway: &Gateway) -> (HashMap<String, u64>, u64) {
    let metrics = gateway.get("/metrics").ask().await;
    let total = metric(metrics.text(), "agent_webhooks_total");
    let waiting = metric(metrics.text(), "agent_webhooks_waiting");
    let outcome =
        |(labels, value): (String, u64)| (labels.split('"').nth(1).unwrap().to_owned(), value);
    (total.into_iter().map(outcome).collect(), waiting[""])
}

#[test]
fn each_kind_is_told_with_what_a_person_asks_first_and_without_texts() {
    run(async {
        let receiver = Receiver::start(Manner::Status(204)).await;
        let settings = format!(
            "{}[auth]\nkeys_env = \"KEYS\"\n[control]\ntoken_env = \"TOKEN\"\n[loops]\n\
             [run]\nmax_output_tokens = 20\nnear_at = 0.1\n[retry]\nmax_attempts_per_candidate = 1\n[fallback]\ncooldown = true",
            receiver.table("")
        );
        let (upstream, gateway) = config(&settings)
            .env("KEYS", "coder:sk-coder")
            .env("TOKEN", "t0ken")
            .start_with_model(&["429", "ok"])
            .await;
        let text = "a prompt that nobody else may read";
        let body = json!({"model": "429", "stream": true, "messages": [{"role": "user", "content": text}]});
        let call = gateway.post(CHAT, body.to_string()).bearer_auth("sk-coder");
        let call = call.header("x-run-id", "near").header("x-session-id", "s");
        assert_eq!(call.ask().await.status, 200);
        let operator = |method, path: &str| gateway.request(method, path).bearer_auth("t0ken");
        for times in 0..6 {
            let call = crate::loops::turn(&gateway, times).bearer_auth("sk-coder");
            call.ask().await;
        }
        assert_eq!(
            operator(Method::PUT, "/freeze/coder").ask().await.status,
            200
        );
        assert_eq!(
            operator(Method::PUT, "/freeze/coder").ask().await.status,
            200
        );
        assert_eq!(operator(Method::PUT, "/freeze").ask().await.status, 200);
        for action in ["pause", "abort"] {
            let path = format!("/runs/near/{action}");
            assert_eq!(operator(Method::POST, &path).ask().await.status, 200);
        }

        let down = receiver.first("candidate.down").await["data"].clone();
        assert_eq!(down["candidate"], "429");
        assert_eq!(down["class"], "rate_limit");
        let left = down["left_ms"].as_u64().unwrap();
        assert!((1..=30_000).contains(&left), "{down}");
        let near = receiver.first("run.near_cap").await["data"].clone();
        assert_eq!(
            (&near["run"], &near["owner"]),
            (&json!("near"), &json!("coder"))
        );
        assert!(near["message"].as_str().unwrap().contains("20"), "{near}");
        assert_eq!(near["cap"], "output_tokens");
        let paused = receiver.first("run.paused").await["data"].clone();
        assert_eq!(
            (&paused["run"], &paused["cap"]),
            (&json!("near"), &json!(null))
        );
        let says = "The run waits for its operator: the operator has suspended it.";
        assert_eq!(paused["message"], says);
        let stuck = receiver.first("run.stuck").await["data"].clone();
        assert_eq!(
            (&stuck["run"], &stuck["owner"]),
            (&json!("r-1"), &json!("coder"))
        );
        let ended = eventually(async || {
            let ended = receiver.of("run.ended").into_iter();
            ended
                .map(|it| it["data"].clone())
                .find(|it| it["run"] == "near")
        })
        .await;
        assert_eq!(ended["reason"], "aborted");
        assert!(
            ended["message"].as_str().unwrap().contains("aborted"),
            "{ended}"
        );
        assert_eq!(
            (&ended["session"], &ended["turns"]),
            (&json!("s"), &json!(1))
        );
        assert_eq!(ended["candidate"], "ok");
        assert!(
            ended["spent"]["output_tokens"].as_u64().unwrap() > 0,
            "{ended}"
        );
        let frozen = eventually(async || {
            let frozen = receiver.of("gateway.frozen");
            (frozen.len() == 2).then_some(frozen)
        })
        .await;
        assert_eq!(frozen[0]["data"]["owner"], "coder");
        assert_eq!(frozen[1]["data"]["all"], true);
        let posts = receiver.posts();
        for post in &posts {
            let at = post.body["timestamp"].as_str().unwrap();
            assert!(
                at.parse::<jiff::Timestamp>().is_ok() && at.ends_with('Z'),
                "{at}"
            );
            let texts = [
                text,
                "is the job done?",
                "{\\\"job\\\":7}",
                SECRET,
                "sk-coder",
                "t0ken",
            ];
            assert_no_secrets(&post.text, &texts);
        }
        let ids: HashSet<_> = posts.iter().map(|post| &post.id).collect();
        assert_eq!(ids.len(), posts.len());
        assert_no_secrets(&gateway.log(), &[SECRET, &SECRET[6..], "a-path"]);
        drop(upstream);
    });
}

/// A receiver of near caps needs no `near_at`: it is 0.8 then.
#[test]
fn a_run_that_nears_its_cap_and_waits_there_is_told_once_each_time() {
    run(async {
        let receiver = Receiver::start(Manner::Status(200)).await;
        let settings = format!(
            "{}[run]\nmax_turns = 5\nat_cap = \"pause\"\npause_wait = 0",
            receiver.table("on = [\"near_cap\", \"paused\"]")
        );
        let (_upstream, gateway) = config(&settings).start_with_model(&["m"]).await;
        let turns = async |statuses: &[u16]| {
            for status in statuses {
                assert_eq!(ask(&gateway, "r", "m").await, *status);
            }
        };
        let operate = async |path: &str, body: &'static str| {
            let answer = gateway.post(&format!("/runs/r/{path}"), body).ask().await;
            assert_eq!(answer.status, 200, "{answer:?}");
        };
        turns(&[200, 200, 200]).await;
        assert!(receiver.posts().is_empty());
        turns(&[200, 200, 503, 503]).await;
        operate("extend", "{\"turns\":5}").await;
        turns(&[200, 200, 200, 200, 200, 503]).await;
        operate("pause", "").await;
        operate("resume", "").await;
        operate("pause", "").await;
        let posts = eventually(async || {
            let posts = receiver.posts();
            (posts.len() == 6).then_some(posts)
        })
        .await;
        let of = |kind: &str| {
            let posts = posts.iter().filter(|post| post.body["type"] == kind);
            let said = posts.map(|post| {
                let data = &post.body["data"];
                (
                    data["cap"].as_str().unwrap_or_default(),
                    data["message"].as_str().unwrap(),
                )
            });
            said.collect::<HashSet<_>>()
        };
        assert_eq!(
            of("run.near_cap"),
            HashSet::from([
                (
                    "turns",
                    "The run is near a cap: it has taken 4 of its 5 turns."
                ),
                (
                    "turns",
                    "The run is near a cap: it has taken 8 of its 10 turns."
                ),
            ])
        );
        let waits = |why: &str| format!("The run waits for its operator: {why}.");
        assert_eq!(
            of("run.paused"),
            HashSet::from([
                ("turns", &*waits("it is paused at its cap of 5 turns")),
                ("turns", &*waits("it is paused at its cap of 10 turns")),
                ("", &*waits("the operator has suspended it")),
            ])
        );
        let ids: HashSet<_> = posts.iter().map(|post| &post.id).collect();
        assert_eq!(
            ids.len(),
            6,
            "the second pause by hand has an id of its own"
        );
    });
}

#[test]
fn an_end_is_told_for_the_reasons_that_the_receiver_wants() {
    run(async {
        let aborted = Receiver::start(Manner::Status(200)).await;
        let completed = Receiver::start(Manner::Status(200)).await;
        let settings = aborted.table("reasons = [\"aborted\", \"shutdown\"]")
            + &completed.table("on = [\"ended\"]\nreasons = [\"completed\"]");
        let (_upstream, mut gateway) = config(&settings).start_with_model(&["m"]).await;
        assert_eq!(gateway.post(CHAT, asks("m", false)).ask().await.status, 200);
        assert_eq!(ask(&gateway, "a", "m").await, 200);
        assert!(gateway.abort("a").await);
        assert_eq!(ask(&gateway, "b", "m").await, 200);
        completed.first("run.ended").await;
        aborted.first("run.ended").await;
        // What the shutdown ends is told, too, before the process ends.
        gateway.signal("TERM");
        assert!(gateway.exit_status().await.success());
        let reasons = |receiver: &Receiver| {
            let ended = receiver.of("run.ended").into_iter();
            ended
                .map(|it| it["data"]["reason"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(reasons(&aborted), ["aborted", "shutdown"]);
        assert_eq!(reasons(&completed), ["completed"]);
    });
}

#[test]
fn a_receiver_that_fails_and_is_back_gets_each_event_once() {
    run(async {
        let receiver = Receiver::start(Manner::Status(503)).await;
        let (_upstream, gateway) = config(&receiver.table("on = [\"ended\"]"))
            .start_with_model(&["m"])
            .await;
        for number in 0..20 {
            let id = format!("r-{number}");
            assert_eq!(ask(&gateway, &id, "m").await, 200);
            assert!(gateway.abort(&id).await);
        }
        eventually(async || (receiver.posts().len() >= 20).then_some(())).await;
        receiver.be(Manner::Status(200));
        eventually(async || (outcomes(&gateway).await.1 == 0).then_some(())).await;
        let posts = receiver.posts();
        let taken: Vec<_> = posts.iter().filter(|post| post.taken).collect();
        let ids: HashSet<_> = posts.iter().map(|post| &post.id).collect();
        let runs: HashSet<_> = taken
            .iter()
            .map(|it| it.body["data"]["run"].as_str())
            .collect();
        assert_eq!((taken.len(), ids.len(), runs.len()), (20, 20, 20));
        assert_eq!(
            outcomes(&gateway).await.0,
            HashMap::from([("delivered".into(), 20)])
        );
    });
}

/// None of them keeps another receiver, or a call, from what it wants.
#[test]
fn hostile_receivers_hold_up_nobody_else() {
    run(async {
        let elsewhere = Receiver::start(Manner::Status(200)).await;
        let good = Receiver::start(Manner::Status(200)).await;
        let hangs = Receiver::start(Manner::Hangs).await;
        let endless = Receiver::start(Manner::Endless).await;
        let redirects = Receiver::start(Manner::Redirects(elsewhere.addr)).await;
        let closed = ClosedPort::new();
        let all = [&good, &hangs, &endless, &redirects].map(|it| it.table("on = [\"ended\"]"));
        let settings = all.concat() + &table(closed.addr, "");
        let (_upstream, gateway) = config(&settings).start_with_model(&["m"]).await;
        let start = Instant::now();
        for number in 0..40 {
            let id = format!("r-{number}");
            assert_eq!(ask(&gateway, &id, "m").await, 200);
            assert!(gateway.abort(&id).await);
        }
        eventually(async || (good.posts().len() == 40).then_some(())).await;
        assert!(
            start.elapsed() < Duration::from_secs(8),
            "{:?}",
            start.elapsed()
        );
        // A head is a success, whatever comes behind it.
        eventually(async || (endless.posts().len() == 40).then_some(())).await;
        eventually(async || (outcomes(&gateway).await.0["delivered"] == 80).then_some(())).await;
        // A redirect is a failure, so that the message is sent again, and not elsewhere.
        eventually(async || (redirects.posts().len() > 40).then_some(())).await;
        assert!(elsewhere.posts().is_empty());
        assert_eq!(hangs.open.load(Ordering::Relaxed), 16);
    });
}

#[test]
fn a_reload_replaces_the_receivers() {
    run(async {
        let (one, two) = (
            Receiver::start(Manner::Status(200)).await,
            Receiver::start(Manner::Status(200)).await,
        );
        let upstream = Upstream::model().await;
        let to = |receivers: &str| config(receivers).candidates(&["m"], upstream.addr);
        let (gateway, file) = to("").start_with_file().await;
        let aborted = async |id: &str| {
            assert_eq!(ask(&gateway, id, "m").await, 200);
            assert!(gateway.abort(id).await);
        };
        let reload = async |receivers: &str, count: usize| {
            file.replace(&to(receivers));
            gateway.signal("HUP");
            let reloaded = || gateway.log().matches("configuration reloaded").count();
            eventually(async || (reloaded() == count).then_some(())).await;
        };
        aborted("before").await;
        reload(&one.table(""), 1).await;
        aborted("a").await;
        one.first("run.ended").await;
        reload(&two.table(""), 2).await;
        aborted("b").await;
        two.first("run.ended").await;
        let runs = |receiver: &Receiver| {
            let ended = receiver.of("run.ended").into_iter();
            ended
                .map(|it| it["data"]["run"].clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (runs(&one), runs(&two)),
            (vec![json!("a")], vec![json!("b")])
        );
    });
}

/// Each gateway has a part of the run, and tells of its end.
#[test]
fn gateways_that_share_a_store_tell_an_end_by_one_id() {
    run(async {
        let receiver = Receiver::start(Manner::Status(200)).await;
        let settings = receiver.table("on = [\"ended\"]");
        let Some(cluster) = Cluster::start(&settings, "timeout = \"2s\"").await else {
            return;
        };
        let cluster = cluster.with_env("HOOK", SECRET);
        let [one, two] = cluster.gateways().await;
        for turn in 0..2 {
            for gateway in [&one, &two] {
                assert_eq!(ask(gateway, "shared", "sim-healthy").await, 200, "{turn}");
            }
        }
        assert!(one.abort("shared").await);
        eventually(async || (receiver.posts().len() == 2).then_some(())).await;
        let posts = receiver.posts();
        assert_eq!(posts[0].id, posts[1].id);
        assert_eq!(posts[0].body["data"]["run"], "shared");
    });
}

/// How long calls took: the median, the 99th percentile, and the longest.
fn quantiles(mut times: Vec<Duration>) -> [Duration; 3] {
    times.sort_unstable();
    [times.len() / 2, times.len() * 99 / 100, times.len() - 1].map(|at| times[at])
}

/// Calls in a few lanes, each a run that completes: how long each took.
async fn calls(gateway: &Gateway, count: usize) -> Vec<Duration> {
    const LANES: usize = 4;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}{CHAT}", gateway.addr);
    let lane = || async {
        let mut times = Vec::with_capacity(count / LANES);
        for _ in 0..count / LANES {
            let start = Instant::now();
            let call = client.post(&url).body(asks("m", false));
            let answer = call.header("content-type", "application/json").send().await;
            let answer = answer.unwrap();
            assert_eq!(answer.status(), 200);
            answer.bytes().await.unwrap();
            times.push(start.elapsed());
        }
        times
    };
    join_all((0..LANES).map(|_| lane())).await.concat()
}

#[test]
fn a_burst_of_ends_with_receivers_that_are_down_delays_no_call() {
    run_alone(async {
        const ENDS: usize = 10_000;
        let down = std::env::var("WEBHOOKS_DOWN").map_or(10, |it| it.parse().unwrap());
        let down = Duration::from_secs(down);
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let (back, never) = (socket.local_addr().unwrap(), ClosedPort::new());
        let on = "on = [\"ended\"]";
        let settings = table(back, on) + &table(never.addr, on);
        let upstream = Upstream::model().await;
        let plain = Config::new("")
            .candidates(&["m"], upstream.addr)
            .start()
            .await;
        let gateway = config(&settings)
            .candidates(&["m"], upstream.addr)
            .start()
            .await;

        let without = quantiles(calls(&plain, 2_000).await);
        let started = Instant::now();
        let comes = tokio::spawn(async move {
            sleep(down).await;
            Receiver::listen(socket, Manner::Status(200))
        });
        let with = quantiles(calls(&gateway, ENDS).await);
        println!(
            "p50, p99 and longest without webhooks {without:?}, with {with:?}; {:?} for {ENDS} ends",
            started.elapsed()
        );
        // A call that waited for a receiver would take seconds; a busy machine delays one by less.
        let spares = [5, 50, 1_000].map(Duration::from_millis);
        for ((without, with), spare) in without.into_iter().zip(with).zip(spares) {
            let most = without * 3 + spare;
            assert!(with < most, "{without:?}, then {with:?}");
        }

        let counted = async || {
            let (outcomes, waiting) = outcomes(&gateway).await;
            assert!(waiting <= 10_000, "{waiting}");
            (outcomes.values().sum::<u64>() + waiting, outcomes, waiting)
        };
        // Each end is a message for each receiver, which waits, is delivered or is counted as lost.
        let all = 2 * ENDS as u64;
        eventually(async || (counted().await.0 >= all).then_some(())).await;
        let receiver = comes.await.unwrap();
        let limit = Instant::now() + Duration::from_secs(80);
        let delivered = loop {
            let (sum, outcomes, waiting) = counted().await;
            // One that is counted may still have its place in the queue.
            assert!(
                (all..=all + 32).contains(&sum),
                "{outcomes:?}, {waiting} wait"
            );
            let delivered = outcomes.get("delivered").copied().unwrap_or_default();
            let lost = outcomes.get("no_room").copied().unwrap_or_default();
            // Half of the room is the other receiver's: 5,000 wait there, or were given up.
            if delivered + lost == all - 5_000 {
                break delivered;
            }
            assert!(Instant::now() < limit, "{outcomes:?}, {waiting} wait");
            sleep(Duration::from_millis(50)).await;
        };
        assert!(delivered >= 5_000, "{delivered}");
        let posts = receiver.posts();
        let ids: HashSet<_> = posts.iter().map(|post| &post.id).collect();
        let runs: HashSet<_> = posts
            .iter()
            .map(|it| it.body["data"]["run"].as_str())
            .collect();
        assert_eq!(posts.len() as u64, delivered);
        assert_eq!((ids.len(), runs.len()), (posts.len(), posts.len()));
        let metrics = gateway.get("/metrics").ask().await;
        let missed = metric(metrics.text(), "agent_webhooks_missed_events_total");
        assert!(missed.is_empty(), "{missed:?}");
        let said = gateway.log().matches("webhooks are lost").count();
        let minutes = started.elapsed().as_secs() as usize / 60 + 1;
        assert!(
            (1..=minutes).contains(&said),
            "{said} lines in {minutes} minutes"
        );
    });
}
