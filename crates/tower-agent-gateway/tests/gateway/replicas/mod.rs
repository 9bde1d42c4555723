//! Two and three gateways that share their runs on a `redis-server`.
//!
//! With `REPLICAS_FULL` in the environment the tests are the longer ones of `.ci/full`.

mod aborts;
mod caps;
mod cooldowns;
mod failover;
mod loss;
mod partitions;
mod proxy;
mod restarts;
mod settings;
mod store_restarts;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::Value;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    net::{Answer, Ask, CHAT, asks, eventually},
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
pub(crate) struct Cluster {
    store: RedisServer,
    simulator: Gateway,
    config: Config,
}

impl Cluster {
    /// `keys` are those of `[replicas]` beside the variables. `None` without a `redis-server`.
    pub(crate) async fn start(settings: &str, keys: &str) -> Option<Self> {
        Some(Self::on(RedisServer::start().await?, settings, keys).await)
    }

    async fn on(store: RedisServer, settings: &str, keys: &str) -> Self {
        let (simulator, config) = simulated(settings, keys, &store.url()).await;
        Self {
            store,
            simulator,
            config,
        }
    }

    async fn gateway(&self) -> Gateway {
        self.config.clone().start().await
    }

    /// Sets a variable of the gateways' environment.
    pub(crate) fn with_env(mut self, name: &str, value: &str) -> Self {
        self.config = self.config.env(name, value);
        self
    }

    pub(crate) async fn gateways<const N: usize>(&self) -> [Gateway; N] {
        let started = join_all((0..N).map(|_| self.gateway())).await;
        started.try_into().unwrap_or_else(|_| unreachable!())
    }
}

/// The simulated upstream, and the gateways in front of it that share the store at this URL.
async fn simulated(settings: &str, keys: &str, store: &str) -> (Gateway, Config) {
    let simulator = Gateway::embedded().await;
    let config = shared(settings, keys)
        .candidates(&["sim-healthy", "sim-slow"], simulator.simulated_upstream())
        .env("STORE_URL", store)
        .env("STORE_SECRET", SECRET);
    (simulator, config)
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

/// Raises the longest time to this one.
fn raise(longest: &Mutex<Duration>, to: Duration) {
    let mut longest = longest.lock().unwrap();
    *longest = to.max(*longest);
}

/// Four clients that have turns at two gateways in turn, each of which is answered, until it is stopped.
struct Load {
    clients: Vec<JoinHandle<u32>>,
    /// The longest request since it was last taken.
    longest: Arc<Mutex<Duration>>,
    is_over: Arc<AtomicBool>,
}

impl Load {
    fn start(gateways: &Arc<[Gateway; 2]>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let clients = (0..4).map(|client| {
            let (gateways, longest) = (Arc::clone(gateways), Arc::clone(&longest));
            let is_over = Arc::clone(&is_over);
            tokio::spawn(async move {
                let mut answered = 0_u32;
                while !is_over.load(Ordering::Relaxed) {
                    let since = Instant::now();
                    let gateway = &gateways[answered as usize % 2];
                    let answer = turn(gateway, &format!("load-{client}")).await;
                    assert_eq!(answer.status, 200, "{answer:?}");
                    raise(&longest, since.elapsed());
                    answered += 1;
                    sleep(Duration::from_millis(20)).await;
                }
                answered
            })
        });
        Self {
            clients: clients.collect(),
            longest,
            is_over,
        }
    }

    fn take_longest(&self) -> Duration {
        std::mem::take(&mut *self.longest.lock().unwrap())
    }

    /// Returns how many requests were answered.
    async fn stop(self) -> u32 {
        self.is_over.store(true, Ordering::Relaxed);
        let answered = join_all(self.clients).await;
        answered.into_iter().map(Result::unwrap).sum()
    }
}
