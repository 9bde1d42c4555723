//! Tries, bounds and losses, on paused time and without sockets.
//!
//! covers: H12

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::atomic::{AtomicU16, Ordering},
};

use axum::body::Body;
use http::{Request, Response};
use serde_json::Value;
use tokio::time::{Instant, advance, sleep};
use tower::{service_fn, util::BoxCloneSyncService};
use tower_agent::{Owner, ReplayBody, TerminalReason};

use super::*;
use crate::config::Config;

/// A receiver that answers with this status; 0 is not an answer.
#[derive(Clone)]
struct Peer {
    status: Arc<AtomicU16>,
    posts: Arc<Mutex<Vec<Post>>>,
    start: Instant,
}

#[derive(Clone, Debug)]
struct Post {
    at: u64,
    host: String,
    id: String,
    body: Value,
}

impl Peer {
    fn new(status: u16) -> Self {
        Self {
            status: Arc::new(AtomicU16::new(status)),
            posts: Arc::default(),
            start: Instant::now(),
        }
    }

    fn client(&self) -> WebhookClient {
        let peer = self.clone();
        BoxCloneSyncService::new(service_fn(move |request: Request<ReplayBody>| {
            let peer = peer.clone();
            async move { peer.answer(request).await }
        }))
    }

    async fn answer(
        self,
        request: Request<ReplayBody>,
    ) -> Result<Response<Body>, tower_agent::BoxError> {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(Body::new(body), usize::MAX).await?;
        self.posts.lock().unwrap().push(Post {
            at: self.start.elapsed().as_secs(),
            host: head.uri.host().unwrap().to_owned(),
            id: head.headers["webhook-id"].to_str()?.to_owned(),
            body: serde_json::from_slice(&body)?,
        });
        let status = self.status.load(Ordering::Relaxed);
        if status == 0 {
            std::future::pending::<Infallible>().await;
        }
        Ok(Response::builder().status(status).body(Body::empty())?)
    }

    fn posts(&self) -> Vec<Post> {
        self.posts.lock().unwrap().clone()
    }

    fn times(&self) -> Vec<u64> {
        self.posts().iter().map(|post| post.at).collect()
    }
}

fn webhooks_of(hosts: &[&str], keys: &str) -> Vec<Webhook> {
    use std::fmt::Write;

    let candidate = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"\n";
    let mut text = candidate.to_owned();
    for host in hosts {
        write!(
            text,
            "[[webhooks]]\nurl = \"http://{host}/\"\nsecret_env = \"HOOK\"\n{keys}\n"
        )
        .unwrap();
    }
    let secret = format!("whsec_{}", "AAAA".repeat(8));
    let config = Config::resolve(&text, |_| Some(secret.clone()));
    config.unwrap().webhooks
}

/// Webhooks to these hosts, which all are `peer`.
fn webhooks_to(peer: &Peer, registry: &RunRegistry, hosts: &[&str], keys: &str) -> Webhooks {
    let webhooks = Webhooks::new(None, Journal::default());
    set(&webhooks, peer, registry, hosts, keys);
    webhooks
}

fn set(webhooks: &Webhooks, peer: &Peer, registry: &RunRegistry, hosts: &[&str], keys: &str) {
    let show = Arc::new(|_| "somebody".to_owned());
    let client = peer.client();
    webhooks.replace(&webhooks_of(hosts, keys), Some(&client), show, registry);
}

fn end(registry: &RunRegistry, ids: std::ops::Range<usize>) {
    for number in ids {
        let run = registry.open(Owner::default(), format!("r-{number}").parse().unwrap());
        assert!(run.end(TerminalReason::Aborted));
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_tried_after_1_10_and_60_seconds_with_one_id_and_then_given_up() {
    let (peer, registry) = (Peer::new(500), RunRegistry::new());
    let webhooks = webhooks_to(&peer, &registry, &["a"], "");
    sleep(SETTLE_INTERVAL).await;
    end(&registry, 0..1);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(peer.times(), [0, 1, 11, 71]);
    let posts = peer.posts();
    assert!(
        posts
            .iter()
            .all(|post| post.id == posts[0].id && post.body == posts[0].body)
    );
    assert_eq!(webhooks.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_try_takes_at_most_ten_seconds() {
    let (peer, registry) = (Peer::new(0), RunRegistry::new());
    let webhooks = webhooks_to(&peer, &registry, &["a"], "");
    sleep(SETTLE_INTERVAL).await;
    end(&registry, 0..1);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(peer.times(), [0, 11, 31, 101]);
    assert_eq!(webhooks.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_back_gets_what_waits_for_it_once_each() {
    let (peer, registry) = (Peer::new(503), RunRegistry::new());
    let webhooks = webhooks_to(&peer, &registry, &["a"], "");
    sleep(SETTLE_INTERVAL).await;
    end(&registry, 0..100);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(webhooks.waiting(), 100);
    let failed = peer.posts().len();
    peer.status.store(204, Ordering::Relaxed);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(webhooks.waiting(), 0);
    let mut ids: Vec<_> = peer
        .posts()
        .split_off(failed)
        .into_iter()
        .map(|post| post.id)
        .collect();
    assert_eq!(ids.len(), 100);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 100, "one id for two events");
}

/// The specification: the receiver wants no more.
#[tokio::test(start_paused = true)]
async fn a_receiver_that_answers_410_is_told_nothing_until_a_reload() {
    let (peer, registry) = (Peer::new(410), RunRegistry::new());
    let webhooks = webhooks_to(&peer, &registry, &["a"], "");
    sleep(SETTLE_INTERVAL).await;
    end(&registry, 0..1);
    sleep(SETTLE_INTERVAL).await;
    end(&registry, 1..50);
    sleep(Duration::from_secs(300)).await;
    assert_eq!((peer.posts().len(), webhooks.waiting()), (1, 0));

    peer.status.store(200, Ordering::Relaxed);
    set(&webhooks, &peer, &registry, &["a"], "");
    end(&registry, 50..51);
    sleep(SETTLE_INTERVAL).await;
    assert_eq!(peer.posts().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_receiver_that_hangs_takes_no_room_of_another() {
    let (hanging, registry) = (Peer::new(0), RunRegistry::new());
    let webhooks = webhooks_to(&hanging, &registry, &["a", "b"], "");
    sleep(SETTLE_INTERVAL).await;
    for part in 0..12 {
        end(&registry, part * 1_000..(part + 1) * 1_000);
        sleep(SETTLE_INTERVAL).await;
        assert!(webhooks.waiting() <= QUEUE);
    }
    assert_eq!(webhooks.waiting(), QUEUE);
    let hosts = hanging
        .posts()
        .into_iter()
        .fold(HashMap::new(), |mut hosts, post| {
            *hosts.entry(post.host).or_insert(0) += 1;
            hosts
        });
    assert_eq!(
        hosts,
        HashMap::from([("a".to_owned(), 16), ("b".to_owned(), 16)])
    );
}

/// More ends than the registry holds events for an observer.
#[tokio::test(start_paused = true)]
async fn ends_that_come_too_fast_are_read_from_the_registry_and_told_once() {
    let (peer, registry) = (Peer::new(200), RunRegistry::new());
    end(&registry, 9_000..9_100);
    let webhooks = webhooks_to(&peer, &registry, &["a"], "");
    sleep(SETTLE_INTERVAL).await;
    let many = 3 * RunRegistry::EVENTS;
    end(&registry, 0..many);
    sleep(Duration::from_secs(1)).await;
    end(&registry, many..many + 10);
    sleep(Duration::from_secs(1)).await;
    let posts = peer.posts();
    let runs: std::collections::HashSet<_> = posts
        .iter()
        .map(|post| post.body["data"]["run"].to_string())
        .collect();
    assert_eq!((posts.len(), runs.len()), (many + 10, many + 10));
    assert_eq!(webhooks.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_what_waits_for_a_url_that_stays_and_drops_the_rest() {
    let (peer, registry) = (Peer::new(500), RunRegistry::new());
    let webhooks = webhooks_to(&peer, &registry, &["a", "b"], "");
    sleep(SETTLE_INTERVAL).await;
    end(&registry, 0..1);
    sleep(SETTLE_INTERVAL).await;
    assert_eq!(webhooks.waiting(), 2);
    set(
        &webhooks,
        &peer,
        &registry,
        &["b", "c"],
        "on = [\"ended\"]\nreasons = [\"stuck\"]",
    );
    assert_eq!(webhooks.waiting(), 1);
    peer.status.store(200, Ordering::Relaxed);
    end(&registry, 1..2);
    advance(Duration::from_secs(1)).await;
    sleep(SETTLE_INTERVAL).await;
    let hosts: Vec<_> = peer.posts().into_iter().map(|post| post.host).collect();
    assert_eq!(hosts.len(), 3);
    assert_eq!(hosts[2], "b");
    assert_eq!(webhooks.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_event_has_one_id_at_all_receivers_and_an_id_that_is_used_anew_another() {
    let (peer, registry) = (Peer::new(200), RunRegistry::new());
    let _webhooks = webhooks_to(&peer, &registry, &["a", "b"], "");
    sleep(SETTLE_INTERVAL).await;
    for _ in 0..2 {
        let run = registry.open(Owner::default(), "r".parse().unwrap());
        assert!(run.end(TerminalReason::Completed));
        sleep(SETTLE_INTERVAL).await;
    }
    // Another owner's.
    let run = registry.open(Owner::anonymous(), "r".parse().unwrap());
    assert!(run.end(TerminalReason::Completed));
    sleep(SETTLE_INTERVAL).await;
    let ids: Vec<_> = peer.posts().into_iter().map(|post| post.id).collect();
    assert_eq!(ids.len(), 6);
    let different: std::collections::HashSet<_> = ids.iter().collect();
    assert_eq!(different.len(), 3);
    // Another process has other runs, though they have the same names.
    let other = MessageIds::new(None);
    let run = registry.find(&"r".parse().unwrap()).remove(0).snapshot();
    assert!(!ids.contains(&other.of_run(WebhookKind::Ended, &run, "")));
}

/// Gateways that share a store see one event, each in its part of the run.
#[test]
fn gateways_of_one_store_have_one_id_for_an_event_of_a_run() {
    let run = RunRegistry::new().open(Owner::default(), "r".parse().unwrap());
    let mut run = run.snapshot();
    let [one, two, other] = [1, 1, 2].map(|store| MessageIds::new(Some(store)));
    let near = |ids: &MessageIds, run: &RunSnapshot, detail: &str| {
        ids.of_run(WebhookKind::NearCap, run, detail)
    };
    assert_ne!(
        near(&one, &run, ""),
        near(&two, &run, ""),
        "the store has not answered"
    );
    run.incarnation = Some(7);
    let id = near(&one, &run, "5 turns");
    assert_eq!(near(&two, &run, "5 turns"), id);
    assert_ne!(near(&other, &run, "5 turns"), id);
    assert_ne!(near(&two, &run, "10 turns"), id);
    assert_ne!(two.of_run(WebhookKind::Paused, &run, "5 turns"), id);
    run.incarnation = Some(8);
    assert_ne!(near(&two, &run, "5 turns"), id);
}

#[tokio::test(start_paused = true)]
async fn what_was_queued_is_tried_before_the_process_ends() {
    let (peer, registry) = (Peer::new(200), RunRegistry::new());
    let webhooks = webhooks_to(&peer, &registry, &["a"], "");
    sleep(SETTLE_INTERVAL).await;
    end(&registry, 0..500);
    webhooks.settle(Duration::from_secs(2), &registry).await;
    assert_eq!(peer.posts().len(), 500);

    peer.status.store(0, Ordering::Relaxed);
    end(&registry, 500..501);
    let start = Instant::now();
    webhooks.settle(Duration::from_secs(2), &registry).await;
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn no_task_is_left_once_the_webhooks_are_gone() {
    let (peer, registry) = (Peer::new(500), RunRegistry::new());
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let webhooks = webhooks_to(&peer, &registry, &["a"], "");
    let dispatcher = webhooks.dispatcher().clone();
    sleep(SETTLE_INTERVAL).await;
    end(&registry, 0..3);
    sleep(SETTLE_INTERVAL).await;
    assert_eq!(tasks(), before + 2);
    drop(webhooks);
    sleep(SETTLE_INTERVAL).await;
    assert_eq!(tasks(), before);
    drop(dispatcher);
}
