//! Lanes: side by side, and in each first in, first out.

use serde_json::Value;

use super::client::{Caller, create, upstream};
use crate::{net::run, support::Config};

fn in_lane(lane: &str, input: &str) -> Value {
    let mut event = create(input);
    event["stream_id"] = lane.into();
    event
}

#[test]
fn a_lane_that_stalls_holds_up_no_other() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.send(&in_lane("a", "stall")).await;
        upstream.until_count(1).await;
        // Behind the response that stalls, in its lane.
        caller.send(&in_lane("a", "never")).await;
        caller.send(&in_lane("b", "ok")).await;
        let mut of_b = Vec::new();
        loop {
            let event = caller.event().await;
            match event["stream_id"].as_str() {
                Some("a") => assert_ne!(event["type"], "response.completed"),
                Some("b") => {
                    of_b.push(event["type"].as_str().unwrap().to_owned());
                    if event["type"] == "response.completed" {
                        break;
                    }
                }
                other => panic!("{other:?}: {event}"),
            }
        }
        assert_eq!(of_b.first().map(String::as_str), Some("response.created"));
        assert_eq!(upstream.count(), 2, "the lane of the first waits");
        caller.create("ok").await;
        let events = caller.response().await;
        assert!(
            events.iter().all(|event| event.get("stream_id").is_none()),
            "{events:?}"
        );
    });
}

#[test]
fn a_lane_is_first_in_first_out() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        for input in ["slow", "500", "third"] {
            caller.create(input).await;
        }
        caller.completed().await;
        assert_eq!(caller.error().await["error"]["code"], "some_code");
        caller.completed().await;
    });
}

#[test]
fn an_error_carries_the_name_of_its_lane() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.send(&in_lane("a", "400")).await;
        assert_eq!(caller.error().await["stream_id"], "a");
        caller.send(&in_lane("a", "cut")).await;
        assert_eq!(caller.error().await["stream_id"], "a");
        let mut unknown = in_lane("a", "x");
        unknown["previous_response_id"] = "resp_no".into();
        caller.send(&unknown).await;
        assert_eq!(caller.error().await["stream_id"], "a");
    });
}
