//! What an operator has added to a run, or holds of it, at a replica that gets the run later.
//!
//! covers: H4, H12

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use tower_agent::{
    Owner, RunExtension,
    registry::store::{RunKey, RunQuestion, RunStore},
};

use crate::{
    proxy::Proxy,
    replica::{Replica, Settings, id},
    server::{Server, until},
    support::{healthy, secs},
};

async fn replica(server: &Server, settings: Settings) -> Replica {
    Replica::new(&server.url(), healthy(), settings).await
}

#[tokio::test]
async fn a_replica_that_gets_the_run_later_has_what_was_added() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings {
        tokens: Some(1_000),
        ..Settings::turns(3)
    };
    let one = replica(&server, settings).await;
    let two = replica(&server, settings).await;
    for _ in 0..2 {
        assert_eq!(one.ask("r").await.status, 200);
    }
    let run = one.registry.get(Owner::anonymous(), &id("r")).unwrap();
    let more = RunExtension::new().turns(1).tokens(50).cost(0.5);
    run.extend(more.time(secs(60))).unwrap();
    run.extend(RunExtension::new().turns(1)).unwrap();
    one.told().await;

    for status in [200, 200, 200, 422] {
        assert_eq!(two.ask("r").await.status, status);
    }
}

#[tokio::test]
async fn a_suspended_run_is_suspended_at_a_replica_that_gets_it_later() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let one = replica(&server, Settings::turns(9)).await;
    let two = replica(&server, Settings::turns(9)).await;
    assert_eq!(one.ask("r").await.status, 200);
    assert_eq!(one.ask("s").await.status, 200);
    for name in ["r", "s"] {
        let run = one.registry.get(Owner::anonymous(), &id(name)).unwrap();
        assert!(run.suspend());
        assert!(name == "r" || run.resume());
    }
    one.told().await;

    assert_eq!(two.ask("s").await.status, 200);
    let held = two.spawn("r");
    let is_held = || {
        let run = two.registry.get(Owner::anonymous(), &id("r"));
        let paused = run.and_then(|run| run.snapshot().paused);
        paused.is_some_and(|paused| paused.suspended && paused.held == 1)
    };
    until("the turn is held", is_held).await;
    assert_eq!(two.upstream.calls(), 1);
    held.abort();
}

/// The script counts in floating point: greater numbers would make the run unreadable.
#[tokio::test]
async fn an_extension_without_end_holds_at_a_replica_that_gets_the_run_later() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings {
        tokens: Some(1),
        ..Settings::turns(2)
    };
    let one = replica(&server, settings).await;
    let two = replica(&server, settings).await;
    assert_eq!(one.ask("r").await.status, 200);
    let run = one.registry.get(Owner::anonymous(), &id("r")).unwrap();
    let more = RunExtension::new().tokens(u64::MAX).cost(f64::MAX);
    for _ in 0..2 {
        run.extend(more.turns(1).time(Duration::MAX)).unwrap();
    }
    one.told().await;

    for status in [200, 200, 200, 422] {
        assert_eq!(two.ask("r").await.status, status);
    }
}

/// The replica that extends the run does not hold its turns.
#[tokio::test]
async fn an_extension_elsewhere_leaves_a_run_suspended() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (first, second, third) = (
        replica(&server, Settings::turns(9)).await,
        replica(&server, Settings::turns(9)).await,
        replica(&server, Settings::turns(9)).await,
    );
    for replica in [&first, &second] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    let run_of = |replica: &Replica| replica.registry.get(Owner::anonymous(), &id("r"));
    assert!(run_of(&first).unwrap().suspend());
    first.told().await;
    let extension = RunExtension::new().turns(1);
    run_of(&second).unwrap().extend(extension).unwrap();
    second.told().await;

    let held = third.spawn("r");
    let is_held = || {
        let paused = run_of(&third).and_then(|run| run.snapshot().paused);
        paused.is_some_and(|paused| paused.suspended)
    };
    until("the turn is held", is_held).await;
    held.abort();
}

#[tokio::test]
async fn a_store_that_was_emptied_is_told_again_what_was_added() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(server.port).await;
    let one = Replica::new(&proxy.url(), healthy(), Settings::turns(3)).await;
    let two = replica(&server, Settings::turns(3)).await;
    assert_eq!(one.ask("r").await.status, 200);
    let run = one.registry.get(Owner::anonymous(), &id("r")).unwrap();
    run.extend(RunExtension::new().turns(2)).unwrap();
    one.told().await;
    proxy.cut();
    until("the loss is seen", || !one.store.stats().up).await;
    let mut other = server.connection().await;
    redis::cmd("FLUSHALL").exec_async(&mut other).await.unwrap();
    proxy.mend();

    let key = RunKey {
        owner: Owner::anonymous(),
        id: id("r"),
    };
    let told = async {
        loop {
            let question = RunQuestion::new(key.clone(), 77);
            let recalled = Arc::clone(&two.store).ask(question).await;
            if recalled.is_ok_and(|recalled| recalled.adjusted.turns == 2) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(secs(10), told).await.expect("it is not told again");
    for status in [200, 200, 200, 200, 422] {
        assert_eq!(two.ask("r").await.status, status);
    }
}
