//! A cap holds for the sum of all gateways.

use futures_util::future::join_all;

use super::{Cluster, PATIENT, of, outcome, request, until_refused};
use crate::{
    net::{Ask, CHAT, asks, run, run_alone},
    support::Gateway,
};

/// covers: H4, D2
#[test]
fn three_gateways_serve_thirty_turns_of_sixty() {
    run_alone(async {
        let Some(cluster) = Cluster::start("[run]\nmax_turns = 30", PATIENT).await else {
            return;
        };
        let gateways: [Gateway; 3] = cluster.gateways().await;
        for repetition in 0..of(3, 20) {
            let id = format!("r-{repetition}");
            let before = cluster.simulator.simulated_calls("sim-slow").await;
            let calls =
                (0..60).map(|call| request(&gateways[call % 3], "sim-slow", false, &id).ask());
            let answers = join_all(calls).await;
            let called = cluster.simulator.simulated_calls("sim-slow").await - before;
            let (served, refused): (Vec<_>, Vec<_>) =
                answers.iter().partition(|answer| answer.status == 200);
            assert_eq!((served.len(), called), (30, 30), "{refused:?}");
            for answer in served {
                assert!(answer.json()["choices"][0]["message"]["content"].is_string());
            }
            for answer in refused {
                assert_eq!(outcome(answer), (422, Some("turn_cap_reached")));
            }
            // Later ones are refused for the same reason at all.
            for gateway in &gateways {
                let answer = until_refused(gateway, &id, "turn_cap_reached").await;
                assert!(answer.text().contains("limit of 30 turns"), "{answer:?}");
            }
        }
    });
}

/// covers: H4, D6
#[test]
fn an_owner_has_its_turns_of_an_hour_once_at_all_gateways() {
    run(async {
        let settings = "[auth]\nkeys_env = \"TEST_KEYS\"\nturns_per_hour = 30";
        let Some(mut cluster) = Cluster::start(settings, PATIENT).await else {
            return;
        };
        cluster.config = cluster.config.env("TEST_KEYS", "one:sk-one,two:sk-two");
        let ask = async |gateway: &Gateway, key: &str| {
            let request = gateway.post(CHAT, asks("sim-healthy", false));
            request.bearer_auth(key).ask().await
        };
        let gateways: [Gateway; 3] = cluster.gateways().await;
        let calls = (0..60).map(|call| ask(&gateways[call % 3], "sk-one"));
        let answers = join_all(calls).await;
        let (served, refused): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.status == 200);
        assert_eq!(served.len(), 30);
        for answer in refused {
            assert_eq!(outcome(answer), (422, Some("turn_cap_reached")));
        }
        assert_eq!(cluster.simulator.simulated_calls("sim-healthy").await, 30);
        for gateway in gateways {
            gateway.process.kill().await;
        }
        let again = cluster.gateway().await;
        assert_eq!(ask(&again, "sk-one").await.status, 422);
        assert_eq!(ask(&again, "sk-two").await.status, 200);
    });
}
