//! SIGTERM: open calls learn why, and the process ends.
//!
//! covers: C10

use tokio::net::TcpSocket;

use crate::{
    net::{Ask, CHAT, Raw, Upstream, chat, error_event, eventually, run, within},
    support::{Config, Gateway},
};

#[test]
fn an_idle_gateway_ends_cleanly() {
    run(async {
        for signal in ["TERM", "INT"] {
            let mut gateway = Gateway::embedded().await;
            // Its connection stays open.
            let client = crate::net::client();
            let health = client.get(format!("http://{}/healthz", gateway.addr));
            assert_eq!(health.ask().await.status, 200);
            gateway.signal(signal);
            assert_eq!(gateway.exit_status().await.code(), Some(0), "{signal}");
        }
    });
}

#[test]
fn an_open_stream_ends_with_the_shutdown_event() {
    run(async {
        let upstream = Upstream::model().await;
        let mut gateway = Config::new("")
            .candidates(&["m"], upstream.addr)
            .start()
            .await;
        let mut stream = gateway.post(CHAT, chat("stall")).open().await;
        let mut text = stream.until("data:").await;
        gateway.signal("TERM");
        text += &stream.rest().await;
        let (before, data) = error_event(&text);
        assert!(before.starts_with("data: "), "the tokens came first");
        assert_eq!(data["code"], "shutdown");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
        upstream.until_open(0).await;
    });
}

/// The one end after which a client may try again.
#[test]
fn a_call_that_waits_is_answered_503_and_may_be_retried() {
    run(async {
        let upstream = Upstream::model().await;
        let mut gateway = Config::new("")
            .candidates(&["m"], upstream.addr)
            .start()
            .await;
        let call = tokio::spawn(gateway.post(CHAT, chat("silent")).ask());
        upstream.until_open(1).await;
        gateway.signal("TERM");
        let answer = within(call).await.unwrap();
        assert_eq!(answer.status, 503);
        assert_eq!(answer.headers["x-terminal-reason"], "shutdown");
        assert_eq!(answer.headers["x-should-retry"], "true");
        assert_eq!(answer.headers["retry-after"], "1");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
    });
}

/// Its call is over, but its connection cannot be told so.
#[test]
fn a_client_that_does_not_read_does_not_keep_the_process() {
    run(async {
        let upstream = Upstream::model().await;
        let mut gateway = Config::new("")
            .candidates(&["m"], upstream.addr)
            .start()
            .await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = Raw::new(socket.connect(gateway.addr).await.unwrap());
        let body = chat("flood");
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {}",
            body.len()
        );
        let request = format!("{head}\r\n\r\n{body}");
        client.send(&request).await;
        upstream.until_open(1).await;
        // Until nothing more goes into the sockets.
        let (mut sent, mut still) = (0, 0);
        eventually(async || {
            let before = std::mem::replace(&mut sent, upstream.calls()[0].bytes);
            still = if before == sent { still + 1 } else { 0 };
            (sent > 0 && still >= 100).then_some(())
        })
        .await;
        gateway.signal("TERM");
        upstream.until_open(0).await;
        assert_eq!(gateway.exit_status().await.code(), Some(0));
        drop(client);
    });
}

/// A connection on which half a request came has no call that could end.
fn does_not_keep_the_process(half: &str) {
    run(async {
        let mut gateway = Gateway::embedded().await;
        let client = Raw::request(gateway.addr, half).await;
        // Another answer: the first connection was accepted before.
        gateway.json("/v1/models").await;
        gateway.signal("TERM");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
        drop(client);
    });
}

#[test]
fn a_client_that_sends_nothing_does_not_keep_the_process() {
    does_not_keep_the_process("");
}

#[test]
fn a_client_that_sends_half_a_head_does_not_keep_the_process() {
    does_not_keep_the_process("POST /v1/ch");
}

#[test]
fn a_client_that_sends_half_a_body_does_not_keep_the_process() {
    let head = "POST /v1/messages HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n";
    does_not_keep_the_process(&format!("{head}{{"));
}

/// Nothing begins any more, and what is under way is read to its end.
#[test]
fn a_drain_lets_what_is_under_way_finish_until_the_second_signal() {
    run(async {
        let (upstream, mut gateway) = Config::new("[control]\ndrain = \"1h\"")
            .start_with_model(&["m"])
            .await;
        // It goes on for as long as it may, so that the drain does.
        let mut endless = gateway.post(CHAT, chat("stall")).open().await;
        let mut stream = gateway.post(CHAT, chat("held")).open().await;
        let mut text = stream.until("data:").await;
        gateway.signal("TERM");

        let refused = eventually(async || {
            let answer = gateway.post(CHAT, chat("ok")).ask().await;
            (answer.status == 503).then_some(answer)
        })
        .await;
        assert_eq!(refused.headers["x-terminal-reason"], "shutdown");
        assert_eq!(refused.headers["x-should-retry"], "true");
        upstream.resume();
        text += &stream.rest().await;
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        gateway.signal("TERM");
        let text = endless.rest().await;
        assert_eq!(error_event(&text).1["code"], "shutdown");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
    });
}

#[test]
fn a_drain_ends_at_its_limit() {
    run(async {
        let (_upstream, mut gateway) = Config::new("[control]\ndrain = \"300ms\"")
            .start_with_model(&["m"])
            .await;
        let mut stream = gateway.post(CHAT, chat("stall")).open().await;
        gateway.signal("TERM");
        let text = stream.rest().await;
        assert_eq!(error_event(&text).1["code"], "shutdown");
        assert_eq!(gateway.exit_status().await.code(), Some(0));
    });
}
