//! Keys of live runs outlast their time to live, and those of replicas that died do not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::sleep;
use tower_agent::{
    Owner, TerminalReason,
    registry::{
        AbortOutcome,
        store::{RunKey, RunQuestion, RunStore},
    },
};
use tower_agent_redis::RedisOptions;

use crate::{
    replica::{Replica, Settings, endless, id, reason_of},
    server::Server,
};

/// The shortest that a store takes.
const TTL: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_call_of_three_times_the_ttl_keeps_its_key_its_turns_and_its_aborts() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let replica = async || {
        let options = RedisOptions::new().ttl(TTL);
        Replica::with(&server.url(), endless(), Settings::turns(9), options).await
    };
    let (one, two) = (replica().await, replica().await);
    let begun = Instant::now();
    let calls = [one.spawn("r"), one.spawn("r")];
    one.called(2).await;

    let mut other = server.connection().await;
    let find = redis::cmd("KEYS").arg("ta1:*:run:*:r").take();
    let keys: Vec<String> = find.query_async(&mut other).await.unwrap();
    let [key] = &keys[..] else { panic!("{keys:?}") };
    let left = redis::cmd("PTTL").arg(key).take();
    let mut least = i64::MAX;
    while begun.elapsed() < 3 * TTL {
        let left: i64 = left.query_async(&mut other).await.unwrap();
        assert!(left > 0, "gone after {:?}", begun.elapsed());
        least = least.min(left);
        sleep(Duration::from_millis(50)).await;
    }
    println!("a ttl of {TTL:?}: at least {least} ms were left");

    let run = RunKey {
        owner: Owner::anonymous(),
        id: id("r"),
    };
    let asked = Arc::clone(&two.store).ask(RunQuestion::new(run, 1));
    let recalled = asked.await.unwrap();
    assert_eq!((recalled.turns_elsewhere, recalled.end), (2, None));
    assert!(
        recalled.age >= 3 * TTL - Duration::from_secs(1),
        "{:?}",
        recalled.age
    );
    assert_eq!(two.abort("r"), AbortOutcome::Told);
    for call in calls {
        let outcome = call.await.unwrap();
        assert_eq!(reason_of(&outcome), Some(TerminalReason::Aborted));
    }
    assert_eq!(two.upstream.calls(), 0);
}
