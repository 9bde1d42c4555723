//! Memory and back-pressure.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::client::{Caller, create, upstream};
use crate::{
    net::{eventually, run},
    support::{Config, Gateway},
};

async fn held(gateway: &Gateway) -> f64 {
    let held = gateway.metric("agent_upload_buffer_bytes").await;
    held.unwrap()
}

async fn until_held(gateway: &Gateway, range: std::ops::Range<f64>) {
    eventually(async || range.contains(&held(gateway).await).then_some(())).await;
}

#[test]
fn messages_and_conversations_count_as_buffered() {
    run(async {
        const MIB: f64 = 1024.0 * 1024.0;
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        assert_eq!(held(&gateway).await, 0.0);
        // Half of a message.
        let length = (4_u64 << 20).to_be_bytes();
        let head = [&[0x81, 0x80 | 127][..], &length, &[0; 4]].concat();
        let half = caller.socket.get_mut();
        half.write_all(&head).await.unwrap();
        half.write_all(&vec![b' '; 2 << 20]).await.unwrap();
        until_held(&gateway, 2.0 * MIB..2.1 * MIB).await;
        half.write_all(&vec![b' '; 2 << 20]).await.unwrap();
        assert_eq!(caller.error().await["error"]["code"], "invalid_json");
        until_held(&gateway, 0.0..1.0).await;

        // A conversation, as long as the socket keeps it.
        let mut event = create("ok");
        let filler = "x".repeat(3 << 20);
        event["input"]
            .as_array_mut()
            .unwrap()
            .insert(0, json!({ "content": filler }));
        caller.send(&event).await;
        caller.completed().await;
        until_held(&gateway, 3.0 * MIB..3.1 * MIB).await;
        drop(caller);
        until_held(&gateway, 0.0..1.0).await;
    });
}

#[test]
fn a_message_that_does_not_fit_is_refused_while_it_arrives() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nmax_buffered = \"32 MiB\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let length = (30_u64 << 20).to_be_bytes();
        let head = [&[0x81, 0x80 | 127][..], &length, &[0; 4]].concat();
        let mut first = Caller::connect(&gateway).await;
        let half = first.socket.get_mut();
        half.write_all(&head).await.unwrap();
        half.write_all(&vec![b' '; 20 << 20]).await.unwrap();
        eventually(async || (held(&gateway).await > 19e6).then_some(())).await;

        let mut second = Caller::connect(&gateway).await;
        let other = second.socket.get_mut();
        other.write_all(&head).await.unwrap();
        let _ = other.write_all(&vec![b' '; 13 << 20]).await;
        let error = second.error().await;
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&503.into(), &"upload_buffer_full".into())
        );
        assert_eq!(error["headers"]["x-should-retry"], "true");
        assert_eq!(u16::from(second.closed().await.code), 1013);
    });
}

/// What a caller does not read is not read from the upstream, and no clock takes it for silence.
#[test]
fn a_reader_that_pauses_for_three_windows_gets_the_whole_answer() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[attempt]\nstep_timeout = \"400ms\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("deltas 150000").await;
        caller.event().await;
        tokio::time::sleep(Duration::from_millis(1300)).await;
        // Kernels and buffers hold some megabytes of it.
        let call = &upstream.calls()[0];
        assert!(
            !call.complete,
            "{} bytes were sent for a reader that is away",
            call.bytes
        );
        let events = caller.response().await;
        assert_eq!(events.last().unwrap()["type"], "response.completed");
        assert_eq!(events.len(), 150_000 + 3);
    });
}

#[test]
fn sixty_four_responses_wait_at_most() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("stall").await;
        caller.begun().await;
        for _ in 0..65 {
            caller.create("later").await;
        }
        let error = caller.error().await;
        assert_eq!(error["error"]["code"], "websocket_queue_full");
        assert_eq!(upstream.count(), 1);
    });
}

/// A message is as long as a POST may be: also where there is room for one request alone.
#[test]
fn one_request_of_a_caller_fits_always() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nmax_buffered = \"32 MiB\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        for mib in [17, 20, 31] {
            let mut event = create("ok");
            let filler = "x".repeat(mib << 20);
            event["input"]
                .as_array_mut()
                .unwrap()
                .insert(0, json!({ "content": filler }));
            caller.send(&event).await;
            caller.completed().await;
        }
    });
}

/// A response that waits has no room: it is refused, and the one that runs goes on.
#[test]
fn a_response_without_room_ends_no_other() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nmax_buffered = \"32 MiB\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect_with(&gateway, &[("authorization", "Bearer one")]).await;
        caller.create("held").await;
        caller.begun().await;
        let mut other = Caller::connect_with(&gateway, &[("authorization", "Bearer two")]).await;
        let length = (32_u64 << 20).to_be_bytes();
        let head = [&[0x81, 0x80 | 127][..], &length, &[0; 4]].concat();
        let half = other.socket.get_mut();
        half.write_all(&head).await.unwrap();
        half.write_all(&vec![b' '; (32 << 20) - 64]).await.unwrap();
        eventually(async || (held(&gateway).await > 33.5e6).then_some(())).await;
        caller.create(&"y".repeat(4096)).await;
        assert_eq!(caller.error().await["error"]["code"], "upload_buffer_full");
        upstream.resume();
        caller.completed().await;
    });
}

/// What comes back in an error is held for a caller that does not read it.
#[test]
fn what_comes_back_is_bounded_and_counted() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        let filler = "x".repeat(4 << 20);
        let steer = json!({ "type": "response.steer", "input": [filler] }).to_string();
        let sending = async {
            for _ in 0..40 {
                let message = tokio_tungstenite::tungstenite::Message::text(steer.clone());
                futures_util::SinkExt::send(&mut caller.socket, message)
                    .await
                    .unwrap();
            }
        };
        // The gateway stops reading: the kernels have the rest.
        let stuck = tokio::time::timeout(Duration::from_secs(2), sending).await;
        assert!(stuck.is_err(), "160 MiB were taken");
        assert!(gateway.process.memory("VmRSS") < 150);
    });
}
