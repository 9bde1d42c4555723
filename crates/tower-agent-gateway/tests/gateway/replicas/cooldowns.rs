//! A candidate rests at all gateways.

use super::{Cluster, PATIENT, post};
use crate::{
    net::{Ask, CHAT, asks, eventually, run},
    support::Gateway,
};

/// covers: H4
#[test]
fn a_candidate_that_rests_at_one_gateway_rests_at_all() {
    run(async {
        let settings = "[fallback]\ncooldown = true";
        let Some(mut cluster) = Cluster::start(settings, PATIENT).await else {
            return;
        };
        let busy = "sim-rate-limited-long";
        let upstream = cluster.simulator.simulated_upstream();
        cluster.config = cluster.config.candidate(busy, upstream);
        let [one, two] = cluster.gateways().await;
        let ask = async |gateway: &Gateway| {
            let answer = gateway.post(CHAT, asks(busy, false)).ask().await;
            assert_eq!(answer.header("x-served-model"), Some("sim-healthy"));
        };
        let resting = async |gateway: &Gateway| {
            let list = gateway.json("/cooldowns").await;
            list["cooldowns"].as_array().unwrap().len()
        };
        ask(&one).await;
        assert_ne!(resting(&one).await, 0);
        eventually(async || (resting(&two).await > 0).then_some(())).await;
        let calls = cluster.simulator.simulated_calls(busy).await;
        ask(&two).await;
        assert_eq!(cluster.simulator.simulated_calls(busy).await, calls);

        let cleared = post(&two, &format!("/cooldowns/{busy}/clear")).await;
        assert_eq!(cleared.status, 200);
        eventually(async || (resting(&one).await == 0).then_some(())).await;
    });
}
