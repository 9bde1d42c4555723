//! The store is killed by SIGKILL, and started again with its file or without one.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{Cluster, PATIENT, outcome, post, until_health};
use crate::{
    net::{Answer, Ask, CHAT, asks, run},
    support::{Gateway, RedisServer},
};

/// The caps of a run, and of an owner in an hour.
const TURNS: u32 = 30;
const HOUR: u32 = 50;

const REFUSED: (u16, Option<&str>) = (422, Some("turn_cap_reached"));
const ABORTED: (u16, Option<&str>) = (499, Some("aborted"));

/// Longer than a gateway tells an end again.
const MINUTE: Duration = Duration::from_secs(61);

impl Cluster {
    async fn capped(store: RedisServer) -> Self {
        let settings = format!(
            "[run]\nmax_turns = {TURNS}\n[auth]\nkeys_env = \"TEST_KEYS\"\nturns_per_hour = {HOUR}"
        );
        let mut cluster = Self::on(store, &settings, PATIENT).await;
        let owners = ["used", "used-meanwhile", "older", "ended", "hour"];
        let keys = owners.map(|owner| format!("{owner}:sk-{owner}")).join(",");
        cluster.config = cluster.config.env("TEST_KEYS", &keys);
        cluster
    }

    /// Kills the store, and waits until these gateways have lost it.
    async fn kill_store(&mut self, gateways: &[&Gateway]) {
        self.store.kill();
        for gateway in gateways {
            until_health(gateway, "lost").await;
        }
    }

    /// Starts the store again, and waits until these gateways have it back.
    async fn start_store(&mut self, gateways: &[&Gateway]) {
        self.store.start_again().await;
        for gateway in gateways {
            until_health(gateway, "up").await;
        }
    }
}

/// A turn of a run, whose owner has no other.
async fn turn(gateway: &Gateway, run: &str) -> Answer {
    let request = gateway.post(CHAT, asks("sim-healthy", false));
    let request = request.bearer_auth(format!("sk-{run}"));
    request.header("x-run-id", run).ask().await
}

/// A turn of an owner, in a run of its own.
async fn of_owner(gateway: &Gateway, key: &str) -> Answer {
    let request = gateway.post(CHAT, asks("sim-healthy", false));
    request.bearer_auth(key).ask().await
}

/// Takes turns at these gateways by turns, until one is refused: how many were served, and the refusal.
async fn until_cap(gateways: &[&Gateway], take: impl AsyncFn(&Gateway) -> Answer) -> (u32, Answer) {
    for served in 0.. {
        let answer = take(gateways[served as usize % gateways.len()]).await;
        if answer.status != 200 {
            return (served, answer);
        }
    }
    unreachable!()
}

/// Has a run end by an abort, which all these gateways have carried out.
async fn ends(gateway: &Gateway, run: &str, replicas: u32) {
    assert_eq!(turn(gateway, run).await.status, 200);
    let answer = post(gateway, &format!("/runs/{run}/abort")).await;
    assert_eq!(
        answer.json(),
        json!({"aborted": true, "replicas": replicas})
    );
}

/// covers: H4
#[test]
fn a_store_that_is_killed_and_has_its_file_forgets_nothing() {
    run(async {
        for fsync in ["always", "everysec"] {
            let args = ["--appendonly", "yes", "--appendfsync", fsync];
            let Some(store) = RedisServer::start_with(&args).await else {
                return;
            };
            let mut cluster = Cluster::capped(store).await;
            let [one, two] = cluster.gateways().await;
            ends(&one, "ended", 2).await;
            for turn_of in 0..20 {
                let gateway = if turn_of % 5 < 3 { &one } else { &two };
                assert_eq!(turn(gateway, "used").await.status, 200);
                assert_eq!(of_owner(gateway, "sk-hour").await.status, 200);
            }
            // Of all this only the store knows what the gateway took and told that dies with it.
            cluster
                .store
                .until_info("persistence", "aof_buffer_length:0")
                .await;
            one.process.kill().await;
            if std::env::var_os("REPLICAS_FULL").is_some() {
                sleep(MINUTE).await;
            }
            cluster.kill_store(&[&two]).await;
            cluster.start_store(&[&two]).await;
            let three = cluster.gateway().await;
            let gateways = [&two, &three];

            let calls = cluster.simulator.simulated_calls("sim-healthy").await;
            for gateway in gateways {
                assert_eq!(outcome(&turn(gateway, "ended").await), ABORTED, "{fsync}");
            }
            assert_eq!(
                cluster.simulator.simulated_calls("sim-healthy").await,
                calls
            );
            let (served, refused) = until_cap(&gateways, async |it| turn(it, "used").await).await;
            assert_eq!(
                (served, outcome(&refused)),
                (TURNS - 20, REFUSED),
                "{fsync}"
            );
            let (served, refused) =
                until_cap(&gateways, async |it| of_owner(it, "sk-hour").await).await;
            assert_eq!((served, outcome(&refused)), (HOUR - 20, REFUSED), "{fsync}");
            assert_eq!(of_owner(&three, "sk-older").await.status, 200);
        }
    });
}

/// covers: H4
#[test]
fn a_store_that_is_killed_without_a_file_is_told_again_what_lives() {
    run(async {
        let Some(store) = RedisServer::start().await else {
            return;
        };
        let mut cluster = Cluster::capped(store).await;
        let [one, two, gone] = cluster.gateways().await;
        // An end that no gateway tells again: its own one dies, or a minute passes.
        let is_full = std::env::var_os("REPLICAS_FULL").is_some();
        ends(if is_full { &one } else { &gone }, "older", 3).await;
        gone.process.kill().await;
        if is_full {
            sleep(MINUTE).await;
        }
        for turn_of in 0..20 {
            let gateway = if turn_of % 5 < 3 { &one } else { &two };
            for run in ["used", "used-meanwhile"] {
                assert_eq!(turn(gateway, run).await.status, 200);
            }
            assert_eq!(of_owner(gateway, "sk-hour").await.status, 200);
        }
        ends(&one, "ended", 2).await;
        cluster.kill_store(&[&one, &two]).await;

        // Each has the cap less what it has heard of the other: 12 turns of its own and 6, and 8 and 12.
        for (gateway, left) in [(&one, 12), (&two, 10)] {
            let take = async |it: &Gateway| turn(it, "used-meanwhile").await;
            let (served, refused) = until_cap(&[gateway], take).await;
            assert_eq!((served, outcome(&refused)), (left, REFUSED));
        }
        // The one where it did not live knows nothing of the end.
        assert_eq!(turn(&two, "ended").await.status, 200);
        cluster.start_store(&[&one, &two]).await;

        let calls = cluster.simulator.simulated_calls("sim-healthy").await;
        for gateway in [&two, &one] {
            assert_eq!(outcome(&turn(gateway, "ended").await), ABORTED);
            assert_eq!(outcome(&turn(gateway, "used-meanwhile").await), REFUSED);
        }
        let after = cluster.simulator.simulated_calls("sim-healthy").await;
        assert_eq!(after, calls);
        let gateways = [&two, &one];
        let (served, refused) = until_cap(&gateways, async |it| turn(it, "used").await).await;
        assert_eq!((served, outcome(&refused)), (TURNS - 20, REFUSED));
        let (served, refused) =
            until_cap(&gateways, async |it| of_owner(it, "sk-hour").await).await;
        assert_eq!((served, outcome(&refused)), (HOUR - 20, REFUSED));
        let older = turn(&two, "older").await;
        assert_eq!(
            older.status, 200,
            "an older end is forgotten with the store"
        );
    });
}
