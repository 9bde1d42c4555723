//! The caps of an owner in a day, a week and a month hold for what all replicas count.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::future::join_all;
use tower_agent::{
    Owner, OwnerCaps, TerminalReason, TokenCaps,
    registry::{
        CalendarPeriod,
        store::{
            OwnerCounts, OwnerElsewhere, OwnerPeriod, OwnerQuestion, PeriodElsewhere, RunNews,
            RunStore,
        },
    },
};
use tower_agent_redis::RedisRunStore;

use crate::{
    replica::{Replica, Settings, reason_of, replicas, slow},
    server::{Server, until},
    support::{LogCapture, healthy, secs},
    tokens::of_forty,
};

fn began() -> SystemTime {
    SystemTime::UNIX_EPOCH + secs(1_795_910_400)
}

/// Counts of so many turns of a day, with `asked` more.
fn day(number: u64, turns: u32, asked: u32) -> OwnerCounts {
    let mut day = OwnerPeriod::new(CalendarPeriod::Day, began(), began() + secs(86_400));
    (day.turns, day.turns_asked) = (turns, asked);
    day.spent.output_tokens = u64::from(turns) * 10;
    day.spent.cost = f64::from(turns) * 0.1;
    let mut counts = OwnerCounts::new(Owner::anonymous(), number);
    counts.periods.push(day);
    counts
}

fn asks(counts: OwnerCounts) -> OwnerQuestion {
    let mut question = OwnerQuestion::new(counts);
    question.turns_per_period[CalendarPeriod::Day as usize] = Some(10);
    question
}

async fn ask(store: &Arc<RedisRunStore>, question: OwnerQuestion) -> PeriodElsewhere {
    let elsewhere: OwnerElsewhere = Arc::clone(store).ask_owner(question).await.unwrap();
    elsewhere.periods[CalendarPeriod::Day as usize].unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_at_once_on_three_replicas_share_thirty_turns_of_a_month_and_so_does_a_restart() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings::owner(OwnerCaps::new().turns_per_month(30).turns_per_week(40));
    let three: [Replica; 3] = replicas(&server, &slow(0.5), settings).await;
    let calls = (0..60).map(|call| three[call % 3].spawn_unnamed());
    let outcomes = join_all(calls.collect::<Vec<_>>()).await;
    let served = outcomes
        .iter()
        .filter(|it| it.as_ref().unwrap().status == 200);
    assert_eq!(served.count(), 30);
    for replica in &three {
        replica.told().await;
    }
    drop(three);
    let again = Replica::new(&server.url(), healthy(), settings).await;
    let refused = again.unnamed().await;
    assert_eq!(refused.status, 422);
    assert!(
        refused.text.contains("30 turns this month"),
        "{}",
        refused.text
    );
    assert_eq!(again.upstream.calls(), 0);
    let settings = Settings::owner(OwnerCaps::new().turns_per_week(31));
    let week = Replica::new(&server.url(), healthy(), settings).await;
    assert_eq!(week.unnamed().await.status, 200);
    assert_eq!(week.unnamed().await.status, 422);
}

#[tokio::test]
async fn what_a_replica_spent_this_month_counts_after_its_restart() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let tokens = TokenCaps::new().max_output_tokens(100);
    let settings = Settings::owner(OwnerCaps::new().tokens_per_month(tokens));
    for _ in 0..3 {
        let replica = Replica::new(&server.url(), of_forty(), settings).await;
        assert_eq!(replica.unnamed().await.status, 200);
        replica.told().await;
    }
    let last = Replica::new(&server.url(), of_forty(), settings).await;
    let refused = last.unnamed().await;
    assert_eq!(reason_of(&refused), Some(TerminalReason::TokenCap));
    assert!(
        refused.text.contains("this month, its 100 output tokens"),
        "{}",
        refused.text
    );
}

#[tokio::test]
async fn repeats_change_nothing_and_what_is_late_counts_no_more() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (server.store().await, server.store().await);
    for _ in 0..3 {
        assert_eq!(
            ask(&one, asks(day(2, 3, 4))).await,
            PeriodElsewhere::new(began())
        );
    }
    let seen = ask(&two, asks(day(1, 0, 60))).await;
    assert_eq!((seen.turns, seen.spent.output_tokens), (7, 30));
    assert!((seen.spent.cost - 0.3).abs() < 1e-9, "{}", seen.spent.cost);
    // Three of ten were left.
    assert_eq!(ask(&one, asks(day(3, 3, 4))).await.turns, 3);
    one.tell(RunNews::Counted(day(1, 0, 0)));
    until("it is told", || one.stats().waiting == 0).await;
    assert_eq!(ask(&two, asks(day(2, 3, 0))).await.turns, 7);
    // Two were not taken.
    one.tell(RunNews::Counted(day(4, 5, 0)));
    until("it is told", || one.stats().waiting == 0).await;
    assert_eq!(ask(&two, asks(day(3, 3, 0))).await.turns, 5);
    // A cap that became lower grants nothing and takes nothing.
    let mut lower = asks(day(5, 5, 3));
    lower.turns_per_period[CalendarPeriod::Day as usize] = Some(2);
    assert_eq!(ask(&one, lower).await.turns, 3);
    assert_eq!(ask(&two, asks(day(4, 3, 0))).await.turns, 5);
    // The next day begins at nothing.
    let mut next = day(6, 0, 1);
    next.periods[0].began += secs(86_400);
    next.periods[0].ends += secs(86_400);
    assert_eq!(ask(&one, asks(next)).await.turns, 0);
    // A period is kept for as long as it lasts, and a day.
    let mut other = server.connection().await;
    let cmd = redis::cmd("KEYS").arg("ta1:*:own:*:day:*").take();
    let keys: Vec<String> = cmd.query_async(&mut other).await.unwrap();
    assert_eq!(keys.len(), 2, "{keys:?}");
    for key in keys {
        let cmd = redis::cmd("PTTL").arg(&key).take();
        let left: u64 = cmd.query_async(&mut other).await.unwrap();
        let left = Duration::from_millis(left);
        assert!(
            left <= secs(2 * 86_400) && left > secs(2 * 86_400 - 60),
            "{key} {left:?}"
        );
    }
}

#[tokio::test]
async fn what_no_replica_wrote_refuses_nobody() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings::owner(OwnerCaps::new().turns_per_day(2));
    Replica::new(&server.url(), healthy(), settings)
        .await
        .unnamed()
        .await;
    let mut other = server.connection().await;
    let cmd = redis::cmd("KEYS").arg("ta1:*:own:*:day:*").take();
    let keys: Vec<String> = cmd.query_async(&mut other).await.unwrap();
    let key = &keys[0];
    for damage in [
        "redis.call('SET', KEYS[1], 'text')",
        "redis.call('HSET', KEYS[1], 'all', 'text')",
        "redis.call('HSET', KEYS[1], 'all', cmsgpack.pack({1, 2}))",
        "redis.call('HSET', KEYS[1], 'all', cmsgpack.pack({1, 2, 3, 4, 5, 6, -7}))",
        "redis.call('HSET', KEYS[1], 'all', cmsgpack.pack({0 / 0, 2, 3, 4, 5, 6, 7}))",
        "redis.call('HSET', KEYS[1], 'all', cmsgpack.pack({{}, 2, 3, 4, 5, 6, 7}))",
    ] {
        let log = LogCapture::start();
        redis::cmd("DEL")
            .arg(key)
            .exec_async(&mut other)
            .await
            .unwrap();
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(damage).arg(1).arg(key);
        cmd.exec_async(&mut other).await.unwrap();
        let replica = Replica::new(&server.url(), healthy(), settings).await;
        let statuses = [
            replica.unnamed().await.status,
            replica.unnamed().await.status,
            replica.unnamed().await.status,
        ];
        assert_eq!(
            statuses,
            [200, 200, 422],
            "the cap holds here alone: {damage}"
        );
        let lines = log.events("a key of the store of runs is damaged");
        assert_eq!(lines.len(), 1, "{damage}: {lines:?}");
        assert!(replica.store.stats().up, "{damage}");
    }
}

#[tokio::test]
async fn a_store_that_restarts_empty_is_told_the_day_again() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings::owner(OwnerCaps::new().turns_per_day(6));
    let [one, two] = replicas(&server, &healthy(), settings).await;
    for replica in [&one, &one, &two] {
        assert_eq!(replica.unnamed().await.status, 200);
    }
    server.kill();
    for replica in [&one, &two] {
        until("the store is lost", || !replica.store.stats().up).await;
        assert_eq!(replica.unnamed().await.status, 200);
    }
    server.restart();
    for replica in [&one, &two] {
        until("the store is back", || replica.store.stats().up).await;
        replica.told().await;
    }
    let [three, four] = replicas(&server, &healthy(), settings).await;
    assert_eq!(three.unnamed().await.status, 200);
    assert_eq!(four.unnamed().await.status, 422);
}
