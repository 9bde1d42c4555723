//! What a replica that was cut off tells and learns when it is back, while others have gone on.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};
use tower_agent::{
    Owner, TerminalReason,
    registry::{
        AbortOutcome,
        store::{RunKey, RunQuestion, RunStore},
    },
};

use crate::{
    proxy::Proxy,
    replica::{Replica, Settings, endless, id, reason_of},
    server::{Server, until},
    support::{Outcome, Script, healthy, prompt, with_header},
};

/// A server, a replica behind a proxy, and one beside it.
async fn pair(settings: Settings, script: Script) -> Option<(Server, Proxy, Replica, Replica)> {
    let server = Server::start(&[])?;
    let proxy = Proxy::start(server.port).await;
    let cut = Replica::new(&proxy.url(), script.clone(), settings).await;
    let other = Replica::new(&server.url(), script, settings).await;
    Some((server, proxy, cut, other))
}

async fn lost(replica: &Replica) {
    until("the loss is seen", || !replica.store.stats().up).await;
}

async fn back(replica: &Replica) {
    until("the store is back", || replica.store.stats().up).await;
}

async fn empty(server: &Server) {
    let mut other = server.connection().await;
    redis::cmd("FLUSHALL").exec_async(&mut other).await.unwrap();
}

async fn reason_soon(call: JoinHandle<Outcome>) -> Option<TerminalReason> {
    let outcome = timeout(Duration::from_secs(10), call).await;
    reason_of(&outcome.expect("the call goes on").unwrap())
}

#[tokio::test]
async fn an_end_that_is_told_again_ends_what_an_empty_store_has_opened_anew() {
    let Some((server, proxy, one, two)) = pair(Settings::default(), endless()).await else {
        return;
    };
    let call = one.spawn("r");
    one.called(1).await;
    one.abort("r");
    call.await.unwrap();
    one.told().await;
    proxy.cut();
    lost(&one).await;
    empty(&server).await;
    // Nobody has told the end again yet.
    let call = two.spawn("r");
    two.called(1).await;
    proxy.mend();
    assert_eq!(reason_soon(call).await, Some(TerminalReason::Aborted));
}

#[tokio::test]
async fn turns_that_were_taken_without_the_store_count_as_soon_as_it_is_back() {
    let Some((_server, proxy, one, two)) = pair(Settings::turns(6), healthy()).await else {
        return;
    };
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    proxy.cut();
    lost(&one).await;
    for _ in 0..3 {
        assert_eq!(one.ask("r").await.status, 200);
    }
    proxy.mend();
    back(&one).await;
    let run = RunKey {
        owner: Owner::anonymous(),
        id: id("r"),
    };
    let taken = async {
        loop {
            let question = RunQuestion::new(run.clone(), 77);
            let store = Arc::clone(&two.store);
            let recalled = store.ask(question).await.unwrap();
            if recalled.turns_elsewhere == 5 {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let told = timeout(Duration::from_secs(3), taken).await;
    assert!(told.is_ok(), "what was taken is not told");
    let statuses = [two.ask("r").await.status, two.ask("r").await.status];
    assert_eq!(statuses, [200, 422]);
}

/// A counter that the store had lost was made anew from the lower count of whichever process came first.
///
/// `BerriAI/litellm#34238`
#[tokio::test]
async fn an_empty_store_gives_no_turn_that_another_replica_was_heard_to_have_taken() {
    let Some((server, proxy, one, two)) = pair(Settings::turns(5), healthy()).await else {
        return;
    };
    for replica in [&one, &one, &one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    proxy.cut();
    lost(&one).await;
    empty(&server).await;
    let statuses = [two.ask("r").await.status, two.ask("r").await.status];
    assert_eq!(
        statuses,
        [200, 422],
        "three of the five are taken elsewhere"
    );
    proxy.mend();
    back(&one).await;
    assert_eq!(one.ask("r").await.status, 422);
}

/// Each of several processes added what it knew to a counter that the store had lost.
///
/// `BerriAI/litellm#28247`
#[tokio::test]
async fn what_each_part_tells_an_empty_store_counts_once() {
    let Some((server, proxy, one, two)) = pair(Settings::turns(9), healthy()).await else {
        return;
    };
    let dead = Replica::new(&server.url(), healthy(), Settings::turns(9)).await;
    for replica in [&dead, &one, &one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    drop(dead);
    proxy.cut();
    lost(&one).await;
    empty(&server).await;
    assert_eq!(two.ask("r").await.status, 200);
    proxy.mend();
    back(&one).await;
    // Of nine turns four are left, as that of the replica that died counts on.
    let mut served = 0;
    for turn in 0..8 {
        served += usize::from([&one, &two][turn % 2].ask("r").await.status == 200);
    }
    assert_eq!(served, 4);
}

/// A reader that came back began with what was new, and never got what was sent while it was away.
///
/// `Azure/azure-functions-redis-extension#126`
#[tokio::test]
async fn an_abort_reaches_a_run_that_only_a_replica_without_the_store_knows() {
    let Some((_server, proxy, one, two)) = pair(Settings::default(), endless()).await else {
        return;
    };
    proxy.cut();
    lost(&one).await;
    let in_session = |run: &str| {
        let request = with_header(prompt("a"), "x-run-id", run);
        with_header(request, "x-session-id", "s")
    };
    let calls = [
        one.spawn("operator"),
        one.spawn("owner"),
        one.spawn_request(in_session("session")),
    ];
    one.called(3).await;
    let operator = two.registry.abort_for_all(&id("operator"));
    assert_eq!(operator, AbortOutcome::Told);
    assert_eq!(two.abort("owner"), AbortOutcome::Told);
    two.registry.abort_session(Owner::anonymous(), "s");
    two.told().await;
    // A run of the session that is opened after the abort.
    sleep(Duration::from_millis(300)).await;
    let later = one.spawn_request(in_session("later"));
    one.called(4).await;
    proxy.mend();
    for call in calls {
        assert_eq!(reason_soon(call).await, Some(TerminalReason::Aborted));
    }
    one.told().await;
    for run in ["operator", "owner", "session"] {
        let refused = two.ask(run).await;
        assert_eq!(
            refused.header("x-terminal-reason"),
            Some("aborted"),
            "{run}"
        );
    }
    assert_eq!(two.upstream.calls(), 0);
    assert_eq!(one.reason("later"), None);
    later.abort();
}

#[tokio::test]
async fn replicas_that_met_an_empty_store_one_after_the_other_share_their_run_again() {
    for ends_at_first in [true, false] {
        let Some((server, proxy, one, two)) = pair(Settings::turns(9), endless()).await else {
            return;
        };
        let here = one.spawn("r");
        one.called(1).await;
        proxy.cut();
        lost(&one).await;
        empty(&server).await;
        // The store opens the run anew, for a replica that knew nothing of it.
        let there = two.spawn("r");
        two.called(1).await;
        proxy.mend();
        back(&one).await;
        until("the turn elsewhere is known", || {
            one.run("r").unwrap().turns() == 2
        })
        .await;
        let ends = if ends_at_first { &one } else { &two };
        ends.abort("r");
        for call in [here, there] {
            assert_eq!(reason_soon(call).await, Some(TerminalReason::Aborted));
        }
    }
}
