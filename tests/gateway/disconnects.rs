//! Clients that leave, seen from the upstream and from the operator.

use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::net::{CHAT, Config, Gateway, Upstream, chat, eventually, run, within};

/// The only run's reason, once it is over.
async fn reason(gateway: &Gateway) -> String {
    eventually(async || {
        let runs = gateway.json("/runs").await;
        runs["runs"][0]["reason"].as_str().map(str::to_owned)
    })
    .await
}

#[test]
fn a_client_that_leaves_while_it_waits_releases_the_upstream() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Gateway::with(&Config::of(upstream.addr, ""), &[]).await;
        let call = tokio::spawn(gateway.post(CHAT, chat("silent")).send());
        upstream.until_open(1).await;
        call.abort();
        upstream.until_open(0).await;
        assert_eq!(reason(&gateway).await, "client_disconnect");
        assert_eq!(upstream.count(), 1, "nothing is retried");
    });
}

#[test]
fn a_client_that_leaves_a_silent_stream_releases_the_upstream() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Gateway::with(&Config::of(upstream.addr, ""), &[]).await;
        let mut stream = within(gateway.post(CHAT, chat("stall")).send())
            .await
            .unwrap();
        assert!(within(stream.chunk()).await.unwrap().is_some());
        drop(stream);
        upstream.until_open(0).await;
        assert_eq!(reason(&gateway).await, "client_disconnect");
    });
}

#[test]
fn a_client_that_does_not_read_is_held_no_longer_than_the_ceiling() {
    run(async {
        let upstream = Upstream::model().await;
        let config = Config::of(upstream.addr, "[run]\nmax_turn_time = \"500ms\"");
        let gateway = Gateway::with(&config, &[]).await;
        let stream = within(gateway.post(CHAT, chat("flood")).send())
            .await
            .unwrap();
        upstream.until_open(0).await;
        assert_eq!(reason(&gateway).await, "max_turn_time");
        drop(stream);
    });
}

#[test]
fn a_client_that_leaves_in_the_middle_of_its_request_starts_nothing() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Gateway::with(&Config::of(upstream.addr, ""), &[]).await;
        let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: 99\r\n\r\n{{");
        stream.write_all(head.as_bytes()).await.unwrap();
        eventually(async || {
            let runs = gateway.json("/runs").await;
            (runs["runs"][0]["in_flight"] == 1).then_some(())
        })
        .await;
        drop(stream);
        reason(&gateway).await;
        assert_eq!(upstream.count(), 0);
    });
}
