//! Public reports about other proxies, clients and servers: what replicas make of the same events.
//!
//! Each test names its reports as `owner/repo#number`. What it expects was written before its first
//! run.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tower_agent::{TerminalReason, layers::run::RequestRun};
use tower_agent_redis::RedisOptions;

use crate::{
    replica::{Replica, Settings, id, reason_of, replicas},
    sentinels::Sentinels,
    server::{Server, until},
    support::{DONE, FINISH, Outcome, PRELUDE, Script, chat, healthy, prompt, with_header},
};

/// An answer of 47 tokens in all.
fn of_47() -> Script {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":40}}"#;
    let said = Script::sse().data(PRELUDE).data(chat("a"));
    let usage = format!("data: {usage}\n\n");
    said.data(FINISH).data(usage).data(DONE)
}

/// Each replica counted its own share of what was spent, and showed it as the whole, so that six
/// requests by turns at two replicas all passed.
///
/// `BerriAI/litellm#33325`, `BerriAI/litellm#39390`, `maximhq/bifrost#3547`
#[tokio::test]
async fn six_requests_by_turns_spend_one_cap_and_each_replica_shows_the_sum() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &of_47(), Settings::tokens(150)).await;
    let mut served = Vec::new();
    for turn in 0..6 {
        let replica = [&one, &two][turn % 2];
        served.push(replica.ask("r").await.status == 200);
        replica.told().await;
    }
    // 40 output tokens each: the cap is used up by the fourth.
    assert_eq!(served, [true, true, true, true, false, false]);
    for replica in [&one, &two] {
        assert_eq!(replica.ended("r").await, TerminalReason::TokenCap);
        let spent = replica.run("r").unwrap().tokens_spent().unwrap();
        assert_eq!(spent.output_tokens, 160);
    }
}

/// A server that restarted from an older snapshot had counts that were too low, and admitted what was
/// over its cap.
///
/// `BerriAI/litellm#30684`
#[tokio::test]
async fn a_server_that_restarts_from_an_older_snapshot_gives_no_turn_twice() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::turns(10)).await;
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
        assert_eq!(replica.ask("ended").await.status, 200);
    }
    let mut other = server.connection().await;
    redis::cmd("SAVE").exec_async(&mut other).await.unwrap();
    for replica in [&one, &two, &one, &two, &one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    one.abort("ended");
    one.told().await;
    server.kill();
    for replica in [&one, &two] {
        until("the store is lost", || !replica.store.stats().up).await;
    }
    server.restart();
    for replica in [&one, &two] {
        until("the store is back", || replica.store.stats().up).await;
        replica.told().await;
    }
    // Eight turns are taken.
    let mut served = 0;
    for turn in 0..6 {
        served += usize::from([&one, &two][turn % 2].ask("r").await.status == 200);
    }
    assert_eq!(served, 2);
    let three = Replica::new(&server.url(), healthy(), Settings::turns(10)).await;
    for run in ["r", "ended"] {
        assert_ne!(three.ask(run).await.status, 200, "{run}");
    }
    assert_eq!(three.upstream.calls(), 0);
}

/// A server that stopped answering, and kept its sockets open, held each request for minutes; its
/// return was seen nine seconds later, or not before a restart.
///
/// `api7/aisix#1147`, `IBM/mcp-context-forge#3587`, `BerriAI/litellm#35273`
#[tokio::test]
async fn a_frozen_server_holds_no_request_and_its_return_is_seen_soon() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings {
        wait: Duration::from_millis(50),
        ..Settings::turns(1000)
    };
    let [one] = replicas(&server, &healthy(), settings).await;
    assert_eq!(one.ask("r").await.status, 200);
    server.signal("STOP");
    let mut took = Vec::new();
    for _ in 0..50 {
        let start = Instant::now();
        assert_eq!(one.ask("r").await.status, 200);
        took.push(start.elapsed());
    }
    let longest = took.iter().max().unwrap();
    println!("of 50 requests the longest took {longest:?}");
    assert!(*longest < Duration::from_millis(110), "{took:?}");
    // Three waited; the rest asked nothing.
    let waited = took.iter().filter(|it| it.as_millis() >= 45).count();
    assert!(waited <= 3, "{took:?}");
    sleep(Duration::from_secs(3)).await;
    server.signal("CONT");
    let start = Instant::now();
    until("the store is back", || one.store.stats().up).await;
    println!("the return was seen after {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5));
    let start = Instant::now();
    assert_eq!(one.ask("r").await.status, 200);
    assert!(start.elapsed() < Duration::from_millis(100));
}

/// One request waited four times, as each look-up had a time and a breaker of its own.
///
/// `api7/aisix#1149`
#[tokio::test]
async fn a_request_waits_once_for_a_frozen_server_whatever_it_asks() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings {
        wait: Duration::from_millis(100),
        tokens: Some(1000),
        ..Settings::turns(10)
    };
    let [one] = replicas(&server, &healthy(), settings).await;
    server.signal("STOP");
    let mut request = with_header(prompt("a"), "x-session-id", "s");
    let child = RequestRun::new(id("child")).child_of(id("parent"));
    request.extensions_mut().insert(child);
    let start = Instant::now();
    assert_eq!(one.send(request).await.status, 200);
    let took = start.elapsed();
    println!("a wait of 100 ms: {took:?}");
    assert!((100..180).contains(&took.as_millis()), "{took:?}");
}

/// A master that a failover made a replica kept its connections, and refused each write; its clients
/// never asked the sentinels again.
///
/// `redis/redis-py#460`, `redis/ioredis#439`, `flyerhzm/redis-sentinel#14`
#[tokio::test]
async fn a_demoted_master_that_lives_on_is_left_for_the_new_one() {
    let Some(sentinels) = Sentinels::start().await else {
        return;
    };
    let settings = Settings::turns(10);
    let one = Replica::new(&sentinels.url, healthy(), settings).await;
    let two = Replica::new(&sentinels.url, healthy(), settings).await;
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    let mut sentinel = sentinels.sentinel.connection().await;
    let mut failover = redis::cmd("SENTINEL");
    failover.arg("FAILOVER").arg("main");
    let begins = Instant::now();
    // The sentinel may not have asked the replica yet.
    while let Err(error) = failover.exec_async(&mut sentinel).await {
        assert!(begins.elapsed() < Duration::from_secs(20), "{error}");
        sleep(Duration::from_millis(100)).await;
    }
    // Each request is answered all the while.
    let start = Instant::now();
    let mut served = 2;
    let is_replica = |state: &str| state.contains("role:slave");
    let mut master = sentinels.master.connection().await;
    loop {
        assert!(start.elapsed() < Duration::from_secs(60));
        let cmd = redis::cmd("INFO").arg("replication").take();
        let state: Result<String, _> = cmd.query_async(&mut master).await;
        match state {
            Ok(state) if is_replica(&state) => break,
            Ok(_) => sleep(Duration::from_millis(20)).await,
            // The server closes clients' connections when it becomes a replica.
            Err(_) => master = sentinels.master.connection().await,
        }
    }
    for replica in [&one, &two, &one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
        served += 1;
    }
    one.abort("other");
    let demoted = Instant::now();
    for replica in [&one, &two] {
        until("the store is back", || {
            replica.store.stats().up && replica.store.stats().waiting == 0
        })
        .await;
    }
    println!("the new master was found after {:?}", demoted.elapsed());
    for turn in 0..10 {
        served += usize::from([&one, &two][turn % 2].ask("r").await.status == 200);
    }
    assert_eq!(served, 10, "turns that were taken without a store count");
    assert_eq!(one.ended("r").await, TerminalReason::TurnCap);
    let mut second = sentinels.second.connection().await;
    let cmd = redis::cmd("KEYS").arg("ta1:*:run:*:r").take();
    let keys: Vec<String> = cmd.query_async(&mut second).await.unwrap();
    assert_eq!(keys.len(), 1);
}

/// A proxy did not start without its store, or looked for it at the start alone, and counted by itself
/// from then on.
///
/// `ContentSquare/chproxy#337`, `BerriAI/litellm#42653`
#[tokio::test]
async fn replicas_that_start_before_their_store_share_what_they_count_once_it_is_there() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    server.kill();
    let settings = Settings::turns(7);
    let lost = || RedisOptions::new().may_be_lost();
    let one = Replica::with(&server.url(), healthy(), settings, lost()).await;
    let two = Replica::with(&server.url(), healthy(), settings, lost()).await;
    for replica in [&one, &two, &one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    server.restart();
    for replica in [&one, &two] {
        until("the store is there", || replica.store.stats().up).await;
    }
    let mut served = 4;
    for turn in 0..8 {
        served += usize::from([&one, &two][turn % 2].ask("r").await.status == 200);
    }
    assert_eq!(served, 7);
    assert_eq!(one.ended("r").await, TerminalReason::TurnCap);
    assert_eq!(two.ended("r").await, TerminalReason::TurnCap);
}

/// A limiter's counts drifted under many concurrent callers, some of which had gone, until it admitted
/// less than its limit.
///
/// `redisson/redisson#3804`
#[tokio::test]
async fn callers_that_leave_at_any_moment_use_up_no_turn_that_was_not_taken() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::turns(150)).await;
    // The parts live on whether their callers leave or not.
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    let mut leaving = Vec::new();
    for call in 0..200 {
        let replica = [&one, &two][call % 2];
        let call = replica.spawn("r");
        let stays = Duration::from_micros(fastrand::u64(0..3000));
        leaving.push(tokio::spawn(async move {
            let abort = call.abort_handle();
            sleep(stays).await;
            abort.abort();
            drop(call.await);
        }));
    }
    for leaves in leaving {
        leaves.await.unwrap();
    }
    let left = one.upstream.calls() + two.upstream.calls();
    println!("{left} of 200 callers that left had reached an upstream");
    one.told().await;
    two.told().await;
    let mut refused = 0;
    let mut last: Option<Outcome> = None;
    for turn in 0..400 {
        let outcome = [&one, &two][turn % 2].ask("r").await;
        refused += usize::from(outcome.status != 200);
        last = Some(outcome);
        if refused == 2 {
            break;
        }
    }
    let calls = one.upstream.calls() + two.upstream.calls();
    assert_eq!(calls, 150, "{last:?}");
    let reason = last.as_ref().and_then(reason_of);
    assert_eq!(reason, Some(TerminalReason::TurnCap));
    let idle = timeout(Duration::from_secs(1), one.told()).await;
    assert!(idle.is_ok());
}
