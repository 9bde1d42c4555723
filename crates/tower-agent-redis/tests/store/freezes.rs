//! New runs stay out at all replicas, and after a restart.
//!
//! covers: H4, H11

use tower_agent::Owner;

use crate::{
    replica::{Replica, Settings, replicas},
    server::{Server, until},
    support::{LogCapture, healthy},
};

fn is_frozen(replica: &Replica) -> bool {
    replica.registry.frozen().all
}

#[tokio::test]
async fn a_freeze_holds_at_all_replicas_within_a_second_and_after_a_restart() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::default()).await;
    assert!(one.registry.freeze(None));
    assert!(one.registry.freeze(Owner::of(b"noisy")));
    until("it is heard", || is_frozen(&two)).await;
    assert_eq!(two.ask("r").await.status, 503);
    let three = Replica::new(&server.url(), healthy(), Settings::default()).await;
    until("it is read at the start", || is_frozen(&three)).await;
    assert_eq!(three.registry.frozen().owners.len(), 1);
    assert!(three.registry.thaw(None));
    until("it is heard", || !is_frozen(&one) && !is_frozen(&two)).await;
    assert_eq!(one.registry.frozen().owners.len(), 1);
    assert_eq!(one.ask("r").await.status, 200);
}

#[tokio::test]
async fn a_store_that_restarts_empty_is_told_the_freeze_again() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::default()).await;
    one.registry.freeze(None);
    until("it is heard", || is_frozen(&two)).await;
    one.told().await;
    server.kill();
    for replica in [&one, &two] {
        until("the store is lost", || !replica.store.stats().up).await;
    }
    // What is told while it is away waits for it.
    two.registry.freeze(Owner::of(b"noisy"));
    server.restart();
    for replica in [&one, &two] {
        until("the store is back", || replica.store.stats().up).await;
        until("all is known", || {
            let frozen = replica.registry.frozen();
            frozen.all && frozen.owners.len() == 1
        })
        .await;
    }
    let three = Replica::new(&server.url(), healthy(), Settings::default()).await;
    until("it is read at the start", || {
        let frozen = three.registry.frozen();
        frozen.all && frozen.owners.len() == 1
    })
    .await;
}

#[tokio::test]
async fn what_no_replica_wrote_freezes_nobody() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut other = server.connection().await;
    let key = "ta1:{00}:frozen";
    for damage in [
        vec!["SET", key, "text"],
        vec!["HSET", key, "epoch", "many"],
        vec!["HSET", key, "everybody", "1"],
        vec!["HSET", key, "0123", "1"],
    ] {
        redis::cmd("DEL")
            .arg(key)
            .exec_async(&mut other)
            .await
            .unwrap();
        let mut cmd = redis::cmd(damage[0]);
        cmd.arg(&damage[1..]);
        cmd.exec_async(&mut other).await.unwrap();
        let log = LogCapture::start();
        let replica = Replica::new(&server.url(), healthy(), Settings::default()).await;
        until("it is logged", || {
            !log.events("a key of the store of runs is damaged")
                .is_empty()
        })
        .await;
        assert!(replica.registry.frozen().is_nobody(), "{damage:?}");
        assert_eq!(replica.ask("r").await.status, 200, "{damage:?}");
        assert!(replica.store.stats().up, "{damage:?}");
    }
}
