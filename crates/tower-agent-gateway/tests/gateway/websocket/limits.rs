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
    let metrics = gateway
        .get("/metrics")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let line = metrics
        .lines()
        .find(|line| line.starts_with("agent_upload_buffer_bytes "));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
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
        let sent = upstream.calls()[0].bytes;
        let events = caller.response().await;
        assert_eq!(events.last().unwrap()["type"], "response.completed");
        assert_eq!(
            events.len(),
            150_000 + 3,
            "{sent} bytes were sent while it paused"
        );
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
