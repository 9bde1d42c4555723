//! Callers that say how long they wait.
//!
//! covers: A4

use std::time::{Duration, Instant};

use crate::{
    net::{Ask, CHAT, Upstream, chat, error_event, run},
    support::{Config, Gateway},
};

/// A gateway that honors them, in front of two candidates of one upstream.
async fn gateway(upstream: &Upstream) -> Gateway {
    let config = "[disconnect]\ncaller_deadline = true\n";
    Config::new(config)
        .candidates(&["m", "n"], upstream.addr)
        .start()
        .await
}

#[test]
fn a_caller_who_waits_for_the_head_or_in_all_is_answered_504_in_time() {
    run(async {
        for (name, value) in [
            ("x-stainless-timeout", "0.6"),
            ("x-stainless-read-timeout", "0.6"),
            ("grpc-timeout", "600m"),
        ] {
            let upstream = Upstream::model().await;
            let gateway = gateway(&upstream).await;
            let start = Instant::now();

            let asked = gateway.post(CHAT, chat("silent")).header(name, value);
            let answer = asked.ask().await;

            let took = start.elapsed();
            assert!(took >= Duration::from_millis(600), "{took:?}");
            assert_eq!(answer.status, 504, "{name}");
            assert_eq!(answer.headers["x-terminal-reason"], "timeout");
            let text = answer.text();
            assert!(text.contains("deadline of 600ms passed"), "{text}");
            upstream.until_open(0).await;
        }
    });
}

#[test]
fn a_stream_that_falls_silent_for_longer_than_its_reader_waits_ends_with_the_frame() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = gateway(&upstream).await;
        let asked = gateway.post(CHAT, chat("stall"));

        // It is for the head too, which takes a while on a busy machine.
        let asked = asked.header("x-stainless-read-timeout", "3");
        let answer = asked.ask().await;
        assert_eq!(answer.status, 200);
        let text = answer.text();

        let (_, frame) = error_event(text);
        assert_eq!(frame["code"], "timeout");
        let message = frame["message"].as_str().unwrap();
        assert!(message.contains("nothing came for 3s"), "{message}");
        upstream.until_open(0).await;
    });
}

#[test]
fn a_run_goes_on_after_a_call_whose_caller_gave_up() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = gateway(&upstream).await;
        let asked = |word| gateway.post(CHAT, chat(word)).header("x-run-id", "r");

        let late = asked("silent").header("x-stainless-timeout", "0.4");
        assert_eq!(late.ask().await.status, 504);
        let next = asked("ok").ask().await;

        assert_eq!(next.status, 200);
    });
}

#[test]
fn nobody_is_held_to_it_unless_the_configuration_says_so() {
    run(async {
        let (_upstream, gateway) = Config::new("[attempt]\nmax_time = \"800ms\"\n")
            .start_with_model(&["m"])
            .await;

        let asked = gateway
            .post(CHAT, chat("silent"))
            .header("x-stainless-timeout", "0.1");
        let answer = asked.ask().await;

        assert_eq!(answer.headers["x-terminal-reason"], "max_turn_time");
    });
}
