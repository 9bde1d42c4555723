//! Runs that look stuck, and the services that are asked about them.
//!
//! covers: E1, E2

use serde_json::{Value, json};

use crate::{
    loops::{asks, turn},
    net::{Ask, Upstream, eventually, run},
    support::{Config, Gateway},
};

/// A service that answers everything with this JSON.
async fn service(answer: &Value) -> Upstream {
    let body = answer.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
    Upstream::bytes(format!("{head} {}\r\n\r\n{body}", body.len())).await
}

/// A gateway whose run asks for the same thing five times.
async fn stuck(watchdog: &str) -> (Upstream, Gateway) {
    let settings = format!("[loops]\n[watchdog]\n{watchdog}");
    let (upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
    for times in 0..5 {
        assert_eq!(asks(&gateway, times).await.status, 200, "{times}");
    }
    // This request shows that the run is stuck: the service may end the run before its answer, or
    // while it is under way, which closes the connection.
    if let Ok(last) = turn(&gateway, 5).send().await {
        assert!([200, 422].contains(&last.status().as_u16()), "{last:?}");
    }
    (upstream, gateway)
}

#[test]
fn a_checker_sees_what_a_stuck_run_does_and_may_end_it() {
    run(async {
        let checker = service(&json!({"status": "looping", "reason": "it polls"})).await;
        let watchdog = format!("checker = \"http://{}/check\"\nends = true\n", checker.addr);
        let (_upstream, gateway) = stuck(&format!("{watchdog}excerpts = 9")).await;
        eventually(async || (gateway.reason("r-1").await == "stuck").then_some(())).await;

        let calls = checker.calls();
        assert_eq!((calls.len(), calls[0].uri.path()), (1, "/check"));
        let seen = calls[0].json();
        assert_eq!(
            (&seen["run"], &seen["stuck"]),
            (&json!("r-1"), &json!(true))
        );
        assert_eq!(seen["task"], "is the jo");
        let action = &seen["actions"][4];
        assert_eq!(
            (&action["name"], &action["excerpt"]),
            (&json!("job_status"), &json!("{\"job\":7}"))
        );
        let last = gateway.json("/runs/r-1").await["last_check"].clone();
        assert_eq!(
            (&last["status"], &last["reason"]),
            (&json!("looping"), &json!("it polls"))
        );
    });
}

#[test]
fn a_person_is_asked_and_may_stop_the_run() {
    run(async {
        let person = service(&json!("stop")).await;
        let question = format!("question = \"http://{}/ask\"", person.addr);
        let (_upstream, gateway) = stuck(&question).await;
        eventually(async || (gateway.reason("r-1").await == "stuck").then_some(())).await;
        let asked = person.calls()[0].json();
        let message = asked["message"].as_str().unwrap();
        assert!(
            message.contains("r-1") && message.contains("continue?"),
            "{message}"
        );
        let actions = asked["snapshot"]["actions"].as_array().unwrap();
        assert!(
            actions.iter().all(|action| action["excerpt"].is_null()),
            "not allowed"
        );
    });
}

#[test]
fn a_watchdog_that_only_observes_tells_what_it_would_do() {
    run(async {
        let checker = service(&json!({"status": "stuck"})).await;
        let keys = format!(
            "checker = \"http://{}/check\"\nends = true\nobserve = true",
            checker.addr
        );
        let settings = format!("[loops]\n[watchdog]\n{keys}");
        let (_upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        let mut events = gateway.get("/events").open().await;
        for times in 0..6 {
            asks(&gateway, times).await;
        }
        events.until("\"kind\":\"would_have_ended\"").await;
        assert_eq!(gateway.reason("r-1").await, Value::Null);
    });
}
