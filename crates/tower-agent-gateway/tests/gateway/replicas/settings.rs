//! What `[replicas]` says, and what a reload makes of it.

use reqwest::Method;
use serde_json::json;

use super::{Cluster, PATIENT, SECRET, turn, until_refused};
use crate::{
    net::{Ask, eventually, run},
    support::{Config, Gateway},
};

/// covers: H4
#[test]
fn a_gateway_without_a_usable_store_does_not_start() {
    run(async {
        let Some(cluster) = Cluster::start("", "on_loss = \"refuse\"").await else {
            return;
        };
        let _one = cluster.gateway().await;
        let file = cluster.config.write();
        let refused = async |url: &str, secret: &str| {
            let env = [("STORE_URL", url), ("STORE_SECRET", secret)];
            let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let args = ["--config", file.path(), "--listen", "127.0.0.1:0"];
            let (status, [said, told]) = Gateway::printed(&args, &env).await;
            assert_eq!((status, &*said), (Some(1), ""), "{told}");
            told
        };
        let store = cluster.store.url();

        let other = refused(&store, "another secret, as long").await;
        let says = "replicas.secret_env: the environment variable STORE_SECRET cannot be used: ";
        assert!(other.contains(says), "{other}");
        assert!(
            other.contains("the replicas have another secret"),
            "{other}"
        );
        let away = refused("redis://:pa55word@127.0.0.1:9", SECRET).await;
        let says = "replicas.url_env: the environment variable STORE_URL cannot be used: ";
        assert!(away.contains(says), "{away}");
        assert!(away.contains("cannot be reached"), "{away}");
        for told in [other, away] {
            assert!(
                !told.contains("pa55word") && !told.contains("another secret, as"),
                "{told}"
            );
        }
    });
}

/// covers: H4
#[test]
fn a_reload_keeps_the_store() {
    run(async {
        let Some(cluster) = Cluster::start("", PATIENT).await else {
            return;
        };
        let (one, file) = cluster.config.clone().start_with_file().await;
        let two = cluster.gateway().await;
        file.replace(
            &Config::new("").candidate("sim-healthy", cluster.simulator.simulated_upstream()),
        );
        one.signal("HUP");
        eventually(async || one.log().contains("configuration reloaded").then_some(())).await;
        let log = one.log();
        assert!(
            log.contains("[replicas] stays as it was until a restart"),
            "{log}"
        );
        assert_eq!(turn(&one, "r").await.status, 200);
        assert!(one.abort("r").await);
        until_refused(&two, "r", "aborted").await;
    });
}

#[test]
fn health_is_told_as_json_to_those_who_ask_for_it() {
    run(async {
        let gateway = Gateway::embedded().await;
        let plain = gateway.get("/healthz").ask().await;
        assert_eq!((plain.status.as_u16(), plain.text()), (200, "ok\n"));
        let any = gateway
            .request(Method::GET, "/healthz")
            .header("accept", "*/*");
        assert_eq!(any.ask().await.text(), "ok\n");
        let json = gateway.get("/healthz");
        let json = json.header("accept", "text/html, application/json;q=0.9");
        assert_eq!(json.ask().await.json(), json!({"status": "ok"}));
    });
}
