//! Two and three gateways that share their runs on a `redis-server`.
//!
//! With `REPLICAS_FULL` in the environment the tests are the longer ones of `.ci/full`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    net::{Answer, Ask, CHAT, asks, eventually, run, run_alone},
    support::{Config, Gateway, RedisServer},
};

const SECRET: &str = "the secret of several gateways";

/// So long that a machine under load refuses nothing.
const PATIENT: &str = "timeout = \"2s\"";

/// The answers that a longer run of the tests wants more of.
fn of(usual: usize, full: usize) -> usize {
    match std::env::var_os("REPLICAS_FULL") {
        Some(_) => full,
        None => usual,
    }
}

/// A store, and the simulated upstream of the gateways that share it.
struct Cluster {
    store: RedisServer,
    simulator: Gateway,
    config: Config,
}

impl Cluster {
    /// `keys` are those of `[replicas]` beside the variables. `None` without a `redis-server`.
    async fn start(settings: &str, keys: &str) -> Option<Self> {
        let store = RedisServer::start().await?;
        let simulator = Gateway::embedded().await;
        let config = shared(settings, keys)
            .candidates(&["sim-healthy", "sim-slow"], simulator.simulated_upstream())
            .env("STORE_URL", &store.url())
            .env("STORE_SECRET", SECRET);
        Some(Self {
            store,
            simulator,
            config,
        })
    }

    async fn gateway(&self) -> Gateway {
        self.config.clone().start().await
    }

    async fn gateways<const N: usize>(&self) -> [Gateway; N] {
        let started = join_all((0..N).map(|_| self.gateway())).await;
        started.try_into().unwrap_or_else(|_| unreachable!())
    }
}

/// The settings, and then `[replicas]`.
fn shared(settings: &str, keys: &str) -> Config {
    let replicas = "[replicas]\nurl_env = \"STORE_URL\"\nsecret_env = \"STORE_SECRET\"";
    Config::new(format!("{settings}\n{replicas}\n{keys}"))
}

/// A request of a run.
fn request(gateway: &Gateway, model: &str, stream: bool, run: &str) -> RequestBuilder {
    let request = gateway.post(CHAT, asks(model, stream));
    request.header("x-run-id", run)
}

/// A turn of a run, which is answered at once.
async fn turn(gateway: &Gateway, run: &str) -> Answer {
    request(gateway, "sim-healthy", false, run).ask().await
}

/// The status and the reason of an answer.
fn outcome(answer: &Answer) -> (u16, Option<&str>) {
    (answer.status.as_u16(), answer.reason())
}

async fn post(gateway: &Gateway, path: &str) -> Answer {
    gateway.post(path, "").ask().await
}

/// What `/healthz` says of the store.
async fn health(gateway: &Gateway) -> Value {
    let asked = gateway.get("/healthz").header("accept", "application/json");
    let answer = asked.ask().await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["status"], "ok");
    answer.json()["replicas"].clone()
}

/// Waits until `/healthz` says this of the store.
async fn until_health(gateway: &Gateway, says: &str) {
    eventually(async || (health(gateway).await == says).then_some(())).await;
}

/// The value of a metric without labels.
async fn metric(gateway: &Gateway, name: &str) -> f64 {
    let text = gateway.get("/metrics").ask().await.text().to_owned();
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let found = lines.find(|(key, _)| *key == name);
    found
        .unwrap_or_else(|| panic!("{name}: {text}"))
        .1
        .parse()
        .unwrap()
}

/// Waits until a run is refused for this reason, so that its end is stored.
async fn until_refused(gateway: &Gateway, run: &str, reason: &str) -> Answer {
    eventually(async || {
        let answer = turn(gateway, run).await;
        (answer.reason() == Some(reason)).then_some(answer)
    })
    .await
}

/// covers: H4, C6
#[test]
fn an_abort_at_another_gateway_ends_the_run_and_frees_its_upstream() {
    run_alone(async {
        let Some(cluster) = Cluster::start("", PATIENT).await else {
            return;
        };
        let [one, two] = cluster.gateways().await;
        let count = of(50, 200);
        let ids: Vec<_> = (0..count).map(|call| format!("r-{call}")).collect();
        let streams = ids.iter().map(async |id| {
            let mut stream = request(&one, "sim-slow", true, id).open().await;
            stream.until("data:").await;
            stream
        });
        let streams = join_all(streams).await;
        let mut took = Vec::new();
        for (id, mut stream) in ids.iter().zip(streams) {
            let since = Instant::now();
            assert!(two.abort(id).await);
            let rest = stream.rest().await;
            took.push(since.elapsed());
            assert!(rest.contains("aborted"), "{rest}");
        }
        let since = Instant::now();
        let simulator = &cluster.simulator;
        let is_free =
            async || (simulator.simulated_count("sim-slow", "open").await == 0).then_some(());
        eventually(is_free).await;
        let freed = since.elapsed();
        let released = simulator.simulated_count("sim-slow", "released").await;
        assert_eq!(released, count as u64);
        // Refused with the same reason where it was, and where it never was.
        for id in ids.iter().take(5) {
            for gateway in [&one, &two] {
                assert_eq!(outcome(&turn(gateway, id).await), (499, Some("aborted")));
            }
        }
        assert_eq!(simulator.simulated_calls("sim-healthy").await, 0);
        took.sort();
        let [p50, p99] = [took.len() / 2, took.len() * 99 / 100].map(|at| took[at]);
        let longest = took[took.len() - 1];
        eprintln!(
            "{count} aborts over two gateways: p50 {p50:?}, p99 {p99:?}, longest {longest:?}; \
             the upstream is free {freed:?} after the last"
        );
        assert!(p50 < Duration::from_millis(250), "{took:?}");
    });
}

/// covers: H4, C6
#[test]
fn an_abort_reaches_runs_whose_owner_or_id_another_gateway_knows() {
    run(async {
        let keys = "[auth]\nkeys_env = \"TEST_KEYS\"";
        let Some(mut cluster) = Cluster::start(keys, PATIENT).await else {
            return;
        };
        cluster.config = cluster.config.env("TEST_KEYS", "one:sk-one,two:sk-two");
        let [one, two] = cluster.gateways().await;
        let open = async |key: &str, headers: &[(&str, &str)]| {
            let request = one.post(CHAT, asks("sim-slow", true)).bearer_auth(key);
            let with = |request: RequestBuilder, (name, value): &(&str, &str)| {
                request.header(*name, *value)
            };
            let request = headers.iter().fold(request, with);
            let mut stream = request.open().await;
            stream.until("data:").await;
            stream
        };
        let own = async |path: String| {
            let request = two.post(&path, "").bearer_auth("sk-one");
            let answer = request.ask().await;
            assert_eq!(answer.status, 200);
            answer.json()
        };

        // By its owner, and not by another one.
        let mut stream = open("sk-one", &[("x-run-id", "own")]).await;
        let mut others = open("sk-two", &[("x-run-id", "own")]).await;
        assert_eq!(
            own("/v1/runs/own/abort".into()).await,
            json!({"aborted": true, "replicas": 2})
        );
        assert!(stream.rest().await.contains("aborted"));
        // By the operator, whoever has it.
        assert!(two.abort("own").await);
        assert!(others.rest().await.contains("aborted"));

        // A run whose id the gateway has made.
        let mut stream = open("sk-one", &[]).await;
        let id = stream.headers["x-run-id"].to_str().unwrap().to_owned();
        assert_eq!(
            own(format!("/v1/runs/{id}/abort")).await,
            json!({"aborted": true, "replicas": 2})
        );
        assert!(stream.rest().await.contains("aborted"));

        // Sessions, by their owner and by the operator.
        let named = [("x-run-id", "first"), ("x-session-id", "s")];
        let mut stream = open("sk-one", &named).await;
        assert_eq!(
            own("/v1/sessions/s/abort".into()).await,
            json!({"runs": [], "replicas": 2})
        );
        assert!(stream.rest().await.contains("aborted"));
        let mut stream = open("sk-two", &[("x-run-id", "second"), ("x-session-id", "t")]).await;
        let answer = post(&two, "/sessions/t/abort").await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()),
            (200, json!({"runs": [], "replicas": 2}))
        );
        assert!(stream.rest().await.contains("aborted"));
    });
}

/// covers: H4, D2
#[test]
fn three_gateways_serve_thirty_turns_of_sixty() {
    run_alone(async {
        let Some(cluster) = Cluster::start("[run]\nmax_turns = 30", PATIENT).await else {
            return;
        };
        let gateways: [Gateway; 3] = cluster.gateways().await;
        for repetition in 0..of(3, 20) {
            let id = format!("r-{repetition}");
            let before = cluster.simulator.simulated_calls("sim-slow").await;
            let calls =
                (0..60).map(|call| request(&gateways[call % 3], "sim-slow", false, &id).ask());
            let answers = join_all(calls).await;
            let called = cluster.simulator.simulated_calls("sim-slow").await - before;
            let (served, refused): (Vec<_>, Vec<_>) =
                answers.iter().partition(|answer| answer.status == 200);
            assert_eq!((served.len(), called), (30, 30), "{refused:?}");
            for answer in served {
                assert!(answer.json()["choices"][0]["message"]["content"].is_string());
            }
            for answer in refused {
                assert_eq!(outcome(answer), (422, Some("turn_cap_reached")));
            }
            // Later ones are refused for the same reason at all.
            for gateway in &gateways {
                let answer = until_refused(gateway, &id, "turn_cap_reached").await;
                assert!(answer.text().contains("limit of 30 turns"), "{answer:?}");
            }
        }
    });
}

/// covers: H4, D6
#[test]
fn an_owner_has_its_turns_of_an_hour_once_at_all_gateways() {
    run(async {
        let settings = "[auth]\nkeys_env = \"TEST_KEYS\"\nturns_per_hour = 30";
        let Some(mut cluster) = Cluster::start(settings, PATIENT).await else {
            return;
        };
        cluster.config = cluster.config.env("TEST_KEYS", "one:sk-one,two:sk-two");
        let ask = async |gateway: &Gateway, key: &str| {
            let request = gateway.post(CHAT, asks("sim-healthy", false));
            request.bearer_auth(key).ask().await
        };
        let gateways: [Gateway; 3] = cluster.gateways().await;
        let calls = (0..60).map(|call| ask(&gateways[call % 3], "sk-one"));
        let answers = join_all(calls).await;
        let (served, refused): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.status == 200);
        assert_eq!(served.len(), 30);
        for answer in refused {
            assert_eq!(outcome(answer), (422, Some("turn_cap_reached")));
        }
        assert_eq!(cluster.simulator.simulated_calls("sim-healthy").await, 30);
        for gateway in gateways {
            gateway.process.kill().await;
        }
        let again = cluster.gateway().await;
        assert_eq!(ask(&again, "sk-one").await.status, 422);
        assert_eq!(ask(&again, "sk-two").await.status, 200);
    });
}

/// covers: H4
#[test]
fn a_candidate_that_rests_at_one_gateway_rests_at_all() {
    run(async {
        let settings = "[fallback]\ncooldown = true";
        let Some(mut cluster) = Cluster::start(settings, PATIENT).await else {
            return;
        };
        let busy = "sim-rate-limited-long";
        let upstream = cluster.simulator.simulated_upstream();
        cluster.config = cluster.config.candidate(busy, upstream);
        let [one, two] = cluster.gateways().await;
        let ask = async |gateway: &Gateway| {
            let answer = gateway.post(CHAT, asks(busy, false)).ask().await;
            assert_eq!(answer.header("x-served-model"), Some("sim-healthy"));
        };
        let resting = async |gateway: &Gateway| {
            let list = gateway.json("/cooldowns").await;
            list["cooldowns"].as_array().unwrap().len()
        };
        ask(&one).await;
        assert_ne!(resting(&one).await, 0);
        eventually(async || (resting(&two).await > 0).then_some(())).await;
        let calls = cluster.simulator.simulated_calls(busy).await;
        ask(&two).await;
        assert_eq!(cluster.simulator.simulated_calls(busy).await, calls);

        let cleared = post(&two, &format!("/cooldowns/{busy}/clear")).await;
        assert_eq!(cleared.status, 200);
        eventually(async || (resting(&one).await == 0).then_some(())).await;
    });
}

/// covers: H4
#[test]
fn a_gateway_that_was_killed_knows_what_had_ended_and_what_was_used_up() {
    run(async {
        let settings = "[run]\nmax_turns = 30";
        let Some(cluster) = Cluster::start(settings, PATIENT).await else {
            return;
        };
        let [one, two] = cluster.gateways().await;
        assert_eq!(turn(&one, "ended").await.status, 200);
        assert!(one.abort("ended").await);
        until_refused(&two, "ended", "aborted").await;
        for _ in 0..20 {
            assert_eq!(turn(&one, "used").await.status, 200);
        }
        one.process.kill().await;
        let again = cluster.gateway().await;
        let calls = cluster.simulator.simulated_calls("sim-healthy").await;
        assert_eq!(
            outcome(&turn(&again, "ended").await),
            (499, Some("aborted"))
        );
        assert_eq!(
            cluster.simulator.simulated_calls("sim-healthy").await,
            calls
        );
        for _ in 0..10 {
            assert_eq!(turn(&again, "used").await.status, 200);
        }
        assert_eq!(
            outcome(&turn(&again, "used").await),
            (422, Some("turn_cap_reached"))
        );
    });
}

fn raise(longest: &Mutex<Duration>, to: Duration) {
    let mut longest = longest.lock().unwrap();
    *longest = to.max(*longest);
}

/// What the clients of one run have seen.
#[derive(Debug, Default)]
struct Seen {
    served: AtomicUsize,
    /// Refused by a gateway that stopped: its client repeats the request elsewhere.
    stopped: AtomicUsize,
    refused: AtomicUsize,
}

/// covers: H4, C5
#[test]
fn a_rolling_restart_ends_no_run_and_gives_no_cap_anew() {
    const TURNS: usize = 300;
    run_alone(async {
        let settings = format!("[run]\nmax_turns = {TURNS}\n[control]\ndrain = \"20s\"");
        let Some(cluster) = Cluster::start(&settings, PATIENT).await else {
            return;
        };
        let gateways: [Gateway; 3] = cluster.gateways().await;
        let slots = Arc::new(Mutex::new(gateways.map(Arc::new)));
        let is_rolled = Arc::new(AtomicBool::new(false));
        let client = |run: usize, client: usize, seen: Arc<Seen>| -> JoinHandle<()> {
            let (slots, is_rolled) = (Arc::clone(&slots), Arc::clone(&is_rolled));
            tokio::spawn(async move {
                for next in client.. {
                    let gateway = Arc::clone(&slots.lock().unwrap()[next % 3]);
                    let request = request(&gateway, "sim-healthy", false, &format!("r-{run}"));
                    // A gateway that has gone refuses the connection.
                    let Ok(answer) = request.send().await else {
                        continue;
                    };
                    match answer.status().as_u16() {
                        200 => {
                            answer.bytes().await.unwrap();
                            seen.served.fetch_add(1, Ordering::Relaxed);
                        }
                        503 => {
                            assert_eq!(answer.headers()["x-terminal-reason"], "shutdown");
                            seen.stopped.fetch_add(1, Ordering::Relaxed);
                        }
                        422 => {
                            assert!(is_rolled.load(Ordering::Relaxed), "the run has ended");
                            seen.refused.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        status => panic!("{status}"),
                    }
                    if !is_rolled.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            })
        };
        let seen: [Arc<Seen>; 3] = Default::default();
        let clients: Vec<_> = (0..6)
            .map(|at| client(at / 2, at, Arc::clone(&seen[at / 2])))
            .collect();
        sleep(Duration::from_secs(1)).await;
        for slot in 0..3 {
            let old = Arc::clone(&slots.lock().unwrap()[slot]);
            let long = request(&old, "sim-slow", false, "long").send();
            let long = tokio::spawn(long);
            sleep(Duration::from_millis(500)).await;
            old.signal("TERM");
            let long = long.await.unwrap().unwrap();
            assert_eq!(long.status(), 200, "a call under way is cut");
            let new = Arc::new(cluster.gateway().await);
            slots.lock().unwrap()[slot] = new;
            // The clients drop their references soon.
            let old = eventually(async || (Arc::strong_count(&old) == 1).then_some(())).await;
            let () = old;
        }
        let before: Vec<_> = seen
            .iter()
            .map(|it| it.served.load(Ordering::Relaxed))
            .collect();
        is_rolled.store(true, Ordering::Relaxed);
        for client in clients {
            timeout(Duration::from_secs(60), client)
                .await
                .unwrap()
                .unwrap();
        }
        for (run, (seen, before)) in seen.iter().zip(before).enumerate() {
            eprintln!(
                "run {run}: {before} turns while three gateways were restarted, {seen:?} in all"
            );
            assert!(before < TURNS, "the restart took too long for this test");
            assert_eq!(seen.served.load(Ordering::Relaxed), TURNS);
        }
        let gateway = Arc::clone(&slots.lock().unwrap()[0]);
        assert_eq!(turn(&gateway, "long").await.status, 200);
    });
}

/// covers: H4
#[test]
fn a_store_that_freezes_holds_up_nothing_and_hears_later_what_was_told() {
    run_alone(async {
        let settings = "[run]\nmax_turns = 100000";
        let Some(cluster) = Cluster::start(settings, "").await else {
            return;
        };
        let gateways: [Gateway; 2] = cluster.gateways().await;
        let gateways = Arc::new(gateways);
        let [one, two] = &*gateways;
        let mut stream = request(one, "sim-slow", true, "aborted").open().await;
        stream.until("data:").await;

        // The longest request since it was last taken.
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let is_over = Arc::new(AtomicBool::new(false));
        let load = (0..4).map(|client| {
            let (gateways, longest) = (Arc::clone(&gateways), Arc::clone(&longest));
            let is_over = Arc::clone(&is_over);
            tokio::spawn(async move {
                let mut answered = 0_u32;
                while !is_over.load(Ordering::Relaxed) {
                    let since = Instant::now();
                    let gateway = &gateways[answered as usize % 2];
                    let answer = turn(gateway, &format!("load-{client}")).await;
                    let took = since.elapsed();
                    assert_eq!(answer.status, 200, "{answer:?}");
                    raise(&longest, took);
                    answered += 1;
                    sleep(Duration::from_millis(20)).await;
                }
                answered
            })
        });
        let load: Vec<_> = load.collect();
        // How late this machine wakes a task that sleeps as long as a request waits.
        let late = Arc::new(Mutex::new(Duration::ZERO));
        let (noted, until) = (Arc::clone(&late), Arc::clone(&is_over));
        let noise = tokio::spawn(async move {
            while !until.load(Ordering::Relaxed) {
                let since = Instant::now();
                sleep(Duration::from_millis(50)).await;
                let by = since.elapsed().saturating_sub(Duration::from_millis(50));
                raise(&noted, by);
            }
        });
        sleep(Duration::from_secs(2)).await;
        let usual = std::mem::take(&mut *longest.lock().unwrap());

        cluster.store.signal("STOP");
        let stopped = Instant::now();
        for gateway in &*gateways {
            until_health(gateway, "lost").await;
            assert_eq!(metric(gateway, "agent_store_up").await, 0.0);
        }
        let noticed = stopped.elapsed();
        let answer = post(two, "/runs/aborted/abort").await;
        let told = json!({"aborted": true, "replicas": "lost"});
        assert_eq!((answer.status.as_u16(), answer.json()), (200, told));
        let freeze = Duration::from_secs(of(3, 10) as u64);
        sleep(freeze.saturating_sub(stopped.elapsed())).await;
        assert_eq!(one.reason("aborted").await, Value::Null);
        assert!(metric(one, "agent_store_lag_seconds").await > 1.0);
        let frozen = std::mem::take(&mut *longest.lock().unwrap());

        cluster.store.signal("CONT");
        let since = Instant::now();
        for gateway in &*gateways {
            until_health(gateway, "up").await;
            assert_eq!(metric(gateway, "agent_store_up").await, 1.0);
            assert_eq!(metric(gateway, "agent_store_dropped_total").await, 0.0);
        }
        let back = since.elapsed();
        assert!(stream.rest().await.contains("aborted"));
        for gateway in &*gateways {
            assert_eq!(
                outcome(&turn(gateway, "aborted").await),
                (499, Some("aborted"))
            );
        }
        is_over.store(true, Ordering::Relaxed);
        let answered: u32 = join_all(load).await.into_iter().map(Result::unwrap).sum();
        noise.await.unwrap();
        let late = *late.lock().unwrap();
        eprintln!(
            "a freeze of {freeze:?}: {answered} requests, none failed; the slowest took {usual:?} \
             before and {frozen:?} during it, on a machine that wakes up to {late:?} late; \
             noticed after {noticed:?}, back after {back:?}"
        );
        assert!(frozen < usual + late + Duration::from_millis(60));
        for gateway in &*gateways {
            let waits = metric(gateway, "agent_store_wait_seconds_count").await;
            let short = "agent_store_wait_seconds_bucket{le=\"0.1\"}";
            let is_short = metric(gateway, short).await == waits;
            assert!(is_short || late > Duration::from_millis(40), "{waits}");
        }
    });
}

/// covers: H4
#[test]
fn a_gateway_may_refuse_new_runs_under_a_cap_while_the_store_is_lost() {
    run(async {
        let settings = "[run]\nmax_turns = 30";
        let Some(cluster) = Cluster::start(settings, "on_loss = \"refuse\"").await else {
            return;
        };
        let gateway = cluster.gateway().await;
        assert_eq!(turn(&gateway, "known").await.status, 200);
        cluster.store.signal("STOP");
        until_health(&gateway, "lost").await;

        let refused = turn(&gateway, "new").await;
        assert_eq!(outcome(&refused), (503, Some("peers_lost")));
        assert_eq!(refused.json()["error"]["type"], "peers_lost");
        assert_eq!(turn(&gateway, "known").await.status, 200);
        let unnamed = gateway.post(CHAT, asks("sim-healthy", false)).ask().await;
        assert_eq!(unnamed.status, 200);

        cluster.store.signal("CONT");
        until_health(&gateway, "up").await;
        assert_eq!(turn(&gateway, "new").await.status, 200);
    });
}

/// covers: H4
#[test]
fn a_gateway_without_a_usable_store_does_not_start() {
    run(async {
        let Some(cluster) = Cluster::start("", "on_loss = \"refuse\"").await else {
            return;
        };
        let _one = cluster.gateway().await;
        let file = cluster.config.write();
        let refused = async |url: &str, secret: &str| {
            let env = [("STORE_URL", url), ("STORE_SECRET", secret)];
            let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let args = ["--config", file.path(), "--listen", "127.0.0.1:0"];
            let (status, [said, told]) = Gateway::printed(&args, &env).await;
            assert_eq!((status, &*said), (Some(1), ""), "{told}");
            told
        };
        let store = cluster.store.url();

        let other = refused(&store, "another secret, as long").await;
        let says = "replicas.secret_env: the environment variable STORE_SECRET is of no use: ";
        assert!(other.contains(says), "{other}");
        assert!(
            other.contains("the replicas have another secret"),
            "{other}"
        );
        let away = refused("redis://:pa55word@127.0.0.1:9", SECRET).await;
        let says = "replicas.url_env: the environment variable STORE_URL is of no use: ";
        assert!(away.contains(says), "{away}");
        assert!(away.contains("cannot be reached"), "{away}");
        for told in [other, away] {
            assert!(
                !told.contains("pa55word") && !told.contains("another secret, as"),
                "{told}"
            );
        }
    });
}

/// covers: H4
#[test]
fn a_gateway_starts_and_serves_while_its_store_is_away() {
    run(async {
        let Some(cluster) = Cluster::start("[run]\nmax_turns = 2", "").await else {
            return;
        };
        let config = cluster.config.clone();
        let alone = config.env("STORE_URL", "redis://127.0.0.1:9").start().await;
        until_health(&alone, "lost").await;
        assert_eq!(turn(&alone, "r").await.status, 200);
        assert_eq!(metric(&alone, "agent_store_up").await, 0.0);
    });
}

/// covers: H4
#[test]
fn a_reload_keeps_the_store() {
    run(async {
        let Some(cluster) = Cluster::start("", PATIENT).await else {
            return;
        };
        let (one, file) = cluster.config.clone().start_with_file().await;
        let two = cluster.gateway().await;
        file.replace(
            &Config::new("").candidate("sim-healthy", cluster.simulator.simulated_upstream()),
        );
        one.signal("HUP");
        eventually(async || one.log().contains("configuration reloaded").then_some(())).await;
        let log = one.log();
        assert!(
            log.contains("[replicas] stays as it was until a restart"),
            "{log}"
        );
        assert_eq!(turn(&one, "r").await.status, 200);
        assert!(one.abort("r").await);
        until_refused(&two, "r", "aborted").await;
    });
}

#[test]
fn health_is_told_as_json_to_those_who_ask_for_it() {
    run(async {
        let gateway = Gateway::embedded().await;
        let plain = gateway.get("/healthz").ask().await;
        assert_eq!((plain.status.as_u16(), plain.text()), (200, "ok\n"));
        let any = gateway
            .request(Method::GET, "/healthz")
            .header("accept", "*/*");
        assert_eq!(any.ask().await.text(), "ok\n");
        let json = gateway.get("/healthz");
        let json = json.header("accept", "text/html, application/json;q=0.9");
        assert_eq!(json.ask().await.json(), json!({"status": "ok"}));
    });
}
