//! Cooldowns and sticky sessions of replicas on one server.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::{task::AbortHandle, time::sleep};
use tower::{ServiceExt, util::BoxCloneService};
use tower_agent::{
    AgentStack, BoxError, Candidate, Cooldowns, ModelFallbackLayer, RunRegistry,
    llm::failure::{ActiveCooldown, FailureClass},
    registry::store::RunStore,
};
use tower_agent_redis::{RedisOptions, RedisRunStore};

use crate::{
    proxy::Proxy,
    server::{Server, secret, until},
    support::{LogCapture, Outcome, Upstream, failure, healthy, prompt, secs, with_header},
};

const COOLDOWNS: &str = "ta1:{00}:cool";
const DAMAGED: &str = "a key of the store of runs is damaged";

type Service =
    BoxCloneService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

struct Replica {
    store: Arc<RedisRunStore>,
    cooldowns: Cooldowns,
    service: Service,
    upstream: Upstream,
    listener: AbortHandle,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Replica {
    async fn new(url: &str, candidates: &[&str]) -> Self {
        let secret = secret();
        let store = RedisRunStore::connect(url, &secret, RedisOptions::new());
        let store = store.await.unwrap();
        let cooldowns = Cooldowns::new().probe(Duration::from_millis(200), secs(120));
        let registry = RunRegistry::new().share(Arc::clone(&store) as Arc<_>);
        let listener = tokio::spawn(registry.listen()).abort_handle();
        let candidates = candidates.iter().map(|name| Candidate::new(*name));
        let fallback = ModelFallbackLayer::new(candidates)
            .cooldowns(cooldowns.clone())
            .sticky(true);
        let upstream = Upstream::script(healthy());
        let stack = AgentStack::server(&registry)
            .run_store(|layer| layer.wait(secs(5)))
            .fallback(fallback);
        let service = stack.service(upstream.clone());
        let service = service.map_response(|answer| answer.map(BodyExt::boxed_unsync));
        Self {
            store,
            cooldowns,
            service: BoxCloneService::new(service.map_err(Into::into)),
            upstream,
            listener,
        }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> String {
        let outcome = Outcome::of(self.service.clone().oneshot(request)).await;
        let served = outcome.header("x-served-candidate");
        served.unwrap_or("nobody").to_owned()
    }

    async fn ask(&self, model: &str) -> String {
        self.send(prompt(model)).await
    }

    /// Has a candidate fail once with this status, and then serve again.
    async fn fail(&self, model: &str, status: u16) {
        self.upstream.play(model, failure(status));
        self.ask(model).await;
        self.upstream.play(model, healthy());
    }

    fn cooling(&self, model: &str) -> Option<ActiveCooldown> {
        let list = self.cooldowns.list();
        list.into_iter().find(|it| it.candidate == model)
    }

    async fn cools(&self, model: &str) {
        until("it cools down", || self.cooling(model).is_some()).await;
    }

    async fn is_clear(&self, model: &str) {
        until("it is cleared", || self.cooling(model).is_none()).await;
    }

    async fn told(&self) {
        until("the news are taken", || self.store.stats().waiting == 0).await;
    }
}

#[tokio::test]
async fn a_cooldown_keeps_all_replicas_away_and_a_clear_at_any_clears_all() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let one = Replica::new(&server.url(), &["a", "b"]).await;
    let two = Replica::new(&server.url(), &["c", "b", "a"]).await;
    one.fail("a", 500).await;
    let begun = tokio::time::Instant::now();
    two.cools("a").await;
    assert!(begun.elapsed() < secs(1), "{:?}", begun.elapsed());
    let cooling = two.cooling("a").unwrap();
    assert_eq!(cooling.class, FailureClass::Server);
    assert!(
        cooling.left <= secs(30) && cooling.left > secs(25),
        "{cooling:?}"
    );
    two.upstream.play("a", healthy());

    // Time passes, and one more replica starts.
    sleep(secs(2)).await;
    let three = Replica::new(&server.url(), &["b", "a"]).await;
    three.cools("a").await;
    assert!(three.cooling("a").unwrap().left <= secs(28));
    // A candidate of one replica alone is nothing to the others.
    two.fail("c", 500).await;
    two.told().await;

    assert_eq!(three.cooldowns.clear("a"), 1);
    one.is_clear("a").await;
    two.is_clear("a").await;
    assert_eq!((one.cooldowns.len(), three.cooldowns.len()), (0, 0));
    let mut other = server.connection().await;
    let ttl: i64 = redis::cmd("PTTL")
        .arg(COOLDOWNS)
        .query_async(&mut other)
        .await
        .unwrap();
    assert!((1..=30_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn a_probe_that_serves_ends_the_window_at_all() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let one = Replica::new(&server.url(), &["a", "b"]).await;
    let two = Replica::new(&server.url(), &["a", "b"]).await;
    one.fail("a", 500).await;
    two.cools("a").await;
    sleep(Duration::from_millis(400)).await;
    assert_eq!(two.ask("a").await, "a", "a probe");
    one.is_clear("a").await;
    two.told().await;
    // Nothing brings it back.
    let three = Replica::new(&server.url(), &["a", "b"]).await;
    sleep(Duration::from_millis(600)).await;
    for replica in [&one, &two, &three] {
        assert!(replica.cooling("a").is_none());
    }
}

#[tokio::test]
async fn a_replica_that_was_cut_off_tells_and_reads() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(server.port).await;
    let one = Replica::new(&server.url(), &["a", "b", "c"]).await;
    let two = Replica::new(&proxy.url(), &["a", "b", "c"]).await;
    one.fail("a", 500).await;
    two.cools("a").await;

    proxy.cut();
    until("the store is lost", || !two.store.stats().up).await;
    one.cooldowns.clear("a");
    one.fail("b", 500).await;
    two.fail("c", 500).await;
    assert!(two.cooling("a").is_some() && two.cooling("b").is_none());
    proxy.mend();
    one.cools("c").await;
    two.cools("b").await;
    two.is_clear("a").await;
    assert!(one.cooling("a").is_none());
}

#[tokio::test]
async fn a_server_that_comes_back_empty_is_told_what_runs() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    let one = Replica::new(&server.url(), &["a", "b"]).await;
    let two = Replica::new(&server.url(), &["a", "b"]).await;
    one.fail("a", 500).await;
    two.cools("a").await;
    for empties in ["restart", "flush"] {
        if empties == "restart" {
            server.restart();
        } else {
            let mut other = server.connection().await;
            redis::cmd("FLUSHALL").exec_async(&mut other).await.unwrap();
        }
        let mut other = server.connection().await;
        let deadline = tokio::time::Instant::now() + secs(20);
        loop {
            let cmd = redis::cmd("HLEN").arg(COOLDOWNS).take();
            let kept: u32 = cmd.query_async(&mut other).await.unwrap();
            if kept == 1 {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{empties}");
            sleep(Duration::from_millis(20)).await;
        }
        let three = Replica::new(&server.url(), &["a", "b"]).await;
        three.cools("a").await;
        let left = three.cooling("a").unwrap().left;
        assert!(left < secs(30), "{empties}: {left:?}");
        for replica in [&one, &two] {
            assert_eq!(replica.cooldowns.len(), 1, "{empties}");
        }
    }
}

#[tokio::test]
async fn what_no_replica_wrote_makes_no_cooldown_and_stops_none() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut other = server.connection().await;
    let far = "2 r 99999999999999999 1 server 0 0 0000000000000001 0000000000000002 \
               0000000000000003 a";
    for damage in [
        vec!["SET", COOLDOWNS, "text"],
        vec!["RPUSH", COOLDOWNS, "text"],
        vec!["HSET", COOLDOWNS, "0000000000000001", "text"],
        vec!["HSET", COOLDOWNS, "key", far],
        vec!["HSET", COOLDOWNS, "0000000000000001", far],
        vec![
            "HSET",
            COOLDOWNS,
            "0000000000000001",
            "\u{fffd} r 1 1 server",
        ],
        vec![
            "XADD",
            "ta1:{00}:log",
            "*",
            "k",
            "cool",
            "r",
            "x",
            "d",
            "1",
            "v",
            far,
        ],
        vec![
            "XADD",
            "ta1:{00}:log",
            "*",
            "k",
            "unc",
            "r",
            "x",
            "d",
            "1",
            "n",
            "-1",
        ],
        vec!["XADD", "ta1:{00}:log", "*", "k", "sti", "r", "x", "d", "1"],
    ] {
        redis::cmd("FLUSHALL").exec_async(&mut other).await.unwrap();
        let log = LogCapture::start();
        let (one, two) = (
            Replica::new(&server.url(), &["a", "b"]).await,
            Replica::new(&server.url(), &["a", "b"]).await,
        );
        let mut cmd = redis::cmd(damage[0]);
        damage[1..].iter().for_each(|word| {
            cmd.arg(*word);
        });
        cmd.exec_async(&mut other).await.unwrap();
        let stored = Arc::clone(&one.store).cooldowns().await.unwrap();
        assert!(stored.running.is_empty(), "{damage:?}: {stored:?}");
        until("it is logged", || !log.events(DAMAGED).is_empty()).await;
        assert!(log.events(DAMAGED)[0]["key"].starts_with("ta1:{00}:"));
        assert_eq!(one.cooldowns.len(), 0);

        // What is told reaches the other one nevertheless.
        one.fail("a", 500).await;
        two.cools("a").await;
        assert!(one.store.stats().up && two.store.stats().up, "{damage:?}");
        one.told().await;
    }
}

#[tokio::test]
async fn a_foreign_window_of_the_same_key_gives_way() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut other = server.connection().await;
    let one = Replica::new(&server.url(), &["a", "b"]).await;
    one.fail("a", 500).await;
    one.told().await;
    let cmd = redis::cmd("HKEYS").arg(COOLDOWNS).take();
    let keys: Vec<String> = cmd.query_async(&mut other).await.unwrap();
    let [key] = &keys[..] else { panic!("{keys:?}") };
    for value in ["", "5 r many", "5 r -1 0 server x"] {
        let mut cmd = redis::cmd("HSET");
        cmd.arg(COOLDOWNS).arg(key).arg(value);
        cmd.exec_async(&mut other).await.unwrap();
        let two = Replica::new(&server.url(), &["a", "b"]).await;
        two.fail("a", 500).await;
        two.told().await;
        let stored = Arc::clone(&one.store).cooldowns().await.unwrap();
        assert_eq!(stored.running.len(), 1, "{value:?}");
    }
}

#[tokio::test]
async fn a_session_goes_to_the_candidate_that_served_it_elsewhere() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let of_session = |session: &str| with_header(prompt("a"), "x-session-id", session);
    let one = Replica::new(&server.url(), &["a", "b", "c"]).await;
    let two = Replica::new(&server.url(), &["c", "a", "b"]).await;
    one.upstream.play("a", failure(500));
    assert_eq!(one.send(of_session("s")).await, "b");
    two.cools("a").await;
    one.cooldowns.clear("a");
    two.is_clear("a").await;
    // The hint was told before the clear, and is read with it at the latest.
    sleep(Duration::from_millis(100)).await;
    assert_eq!(two.send(of_session("s")).await, "b");
    assert_eq!(two.send(of_session("t")).await, "a");

    // One that starts later gets it with the answer about the run.
    two.told().await;
    let three = Replica::new(&server.url(), &["a", "b", "c"]).await;
    let named = with_header(of_session("t"), "x-run-id", "r-t");
    assert_eq!(three.send(named).await, "a");
    let keys = redis::cmd("KEYS").arg("ta1:*:cand:*:s").take();
    let mut other = server.connection().await;
    let keys: Vec<String> = keys.query_async(&mut other).await.unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let ttl: i64 = redis::cmd("PTTL")
        .arg(&keys[0])
        .query_async(&mut other)
        .await
        .unwrap();
    assert!((1..=3_600_000).contains(&ttl), "{ttl}");
    // Damaged, it is as if it were not there.
    let cmd = redis::cmd("SET").arg(&keys[0]).arg("x").take();
    cmd.exec_async(&mut other).await.unwrap();
    let named = with_header(of_session("s"), "x-run-id", "r-s");
    assert_eq!(three.send(named).await, "a");
    assert!(three.store.stats().up);
}
