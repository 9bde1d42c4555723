//! Clients that leave, seen from the upstream and from the operator.

use crate::{
    net::{Ask, CHAT, Raw, chat, eventually, run},
    support::Config,
};

#[test]
fn a_client_that_leaves_while_it_waits_releases_the_upstream() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let call = tokio::spawn(gateway.post(CHAT, chat("silent")).ask());
        upstream.until_open(1).await;
        call.abort();
        upstream.until_open(0).await;
        assert_eq!(gateway.only_reason().await, "client_disconnect");
        assert_eq!(upstream.count(), 1, "nothing is retried");
    });
}

#[test]
fn a_client_that_leaves_a_silent_stream_releases_the_upstream() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let mut stream = gateway.post(CHAT, chat("stall")).open().await;
        stream.until("data:").await;
        drop(stream);
        upstream.until_open(0).await;
        assert_eq!(gateway.only_reason().await, "client_disconnect");
    });
}

#[test]
fn a_client_that_does_not_read_is_held_no_longer_than_the_ceiling() {
    run(async {
        let (upstream, gateway) = Config::new("[run]\nmax_turn_time = \"500ms\"")
            .start_with_model(&["m"])
            .await;
        let stream = gateway.post(CHAT, chat("flood")).open().await;
        upstream.until_open(0).await;
        assert_eq!(gateway.only_reason().await, "max_turn_time");
        drop(stream);
    });
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_request_starts_nothing() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: 99\r\n\r\n{{");
        let client = Raw::request(gateway.addr, &head).await;
        eventually(async || {
            let runs = gateway.json("/runs").await;
            (runs["runs"][0]["in_flight"] == 1).then_some(())
        })
        .await;
        drop(client);
        gateway.only_reason().await;
        assert_eq!(upstream.count(), 0);
    });
}
