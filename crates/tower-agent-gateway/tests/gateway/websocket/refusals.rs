//! Upgrades and messages that are refused.

use std::time::Duration;

use futures_util::SinkExt;
use http::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        Frame,
        coding::{Data, OpCode},
    },
};

use super::client::{Caller, PATH, upstream};
use crate::{
    net::{Ask, run, within},
    support::Config,
};

#[test]
fn an_upgrade_needs_a_key_and_an_origin_as_a_post_does() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[auth]\nkeys_env = \"KEYS\"").candidate("m", upstream.addr);
        let gateway = config.env("KEYS", "one:sk-one").start().await;
        let right = ("authorization", "Bearer sk-one");
        for (headers, status) in [
            (vec![], 401),
            (vec![("authorization", "Bearer sk-two")], 401),
            (vec![right, ("origin", "https://evil.example")], 403),
        ] {
            let refused = Caller::refused(&gateway, &headers).await;
            assert_eq!(refused.status(), status, "{headers:?}");
        }
        let mut caller =
            Caller::connect_with(&gateway, &[right, ("origin", "http://localhost:1")]).await;
        caller.create("ok").await;
        caller.completed().await;
        let call = &upstream.calls()[0];
        assert!(
            !call.headers.values().any(|value| value == "Bearer sk-one"),
            "{call:?}"
        );
    });
}

#[test]
fn a_gateway_without_sockets_sends_a_426() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nwebsocket = false");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let refused = Caller::refused(&gateway, &[]).await;
        assert_eq!(refused.status(), 426);
        assert_eq!(refused.headers()["upgrade"], "HTTP/1.1");
    });
}

#[test]
fn a_get_that_is_no_upgrade_is_405_and_a_broken_upgrade_is_400() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let plain = gateway.get(PATH).ask().await;
        assert_eq!(
            (plain.status.as_u16(), plain.header("allow")),
            (405, Some("POST"))
        );
        let old = Caller::refused(&gateway, &[("sec-websocket-version", "8")]).await;
        assert_eq!(old.status(), 400);
        let request = gateway
            .request(Method::GET, PATH)
            .header("upgrade", "websocket");
        let half = request.header("connection", "upgrade").ask().await;
        assert_eq!(half.status, 400);
        assert_eq!(half.json()["error"]["code"], "invalid_upgrade");
    });
}

#[test]
fn what_is_no_event_is_an_error_and_the_socket_stays() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        for (text, code) in [
            ("", "invalid_json"),
            ("{\"type\":\"response.create\"", "invalid_json"),
            ("{}", "invalid_type"),
            ("{\"type\":\"response.cancel\"}", "unknown_event"),
            (
                "{\"type\":\"response.create\",\"stream_id\":\"\"}",
                "invalid_stream_id",
            ),
            ("{\"type\":\"response.create\",\"input\":7}", "invalid_type"),
        ] {
            caller.send_text(text).await;
            let error = caller.error().await;
            assert_eq!(error["error"]["code"], code, "{text}");
            assert_eq!(error["status"], 400);
            assert_eq!(error["headers"]["x-should-retry"], "false");
        }
        caller
            .socket
            .send(Message::binary(vec![1, 2]))
            .await
            .unwrap();
        assert_eq!(caller.error().await["error"]["code"], "invalid_message");
        // An older Codex tells so that it has taken a response.
        caller
            .send_text("{\"type\":\"response.processed\",\"response_id\":\"r\"}")
            .await;
        caller
            .send_text("{\"type\":\"response.steer\",\"previous_response_id\":\"r\",\"input\":[1]}")
            .await;
        let steer = caller.event().await;
        assert_eq!(steer["type"], "response.steer.failed");
        let given = json!({ "input": [1], "previous_response_id": "r" });
        assert_eq!(
            (&steer["steer"], &steer["sequence_number"]),
            (&given, &0.into())
        );
        assert_eq!(steer["error"]["code"], "steering_not_supported");
        caller.create("ok").await;
        caller.completed().await;
        assert_eq!(upstream.count(), 1);
    });
}

/// Whole or in fragments, a message may have as many bytes as a body.
#[test]
fn a_message_is_as_long_as_a_body_at_most() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        let filler = "x".repeat(20 << 20);
        let fits = format!(
            r#"{{"type":"response.create","model":"m","input":[{{"content":"{filler}"}},{{"content":"ok"}}]}}"#
        );
        // In fragments.
        let (first, rest) = fits.as_bytes().split_at(10 << 20);
        let fragment = |part: &[u8], opcode, is_last| {
            Message::Frame(Frame::message(part.to_vec(), OpCode::Data(opcode), is_last))
        };
        caller
            .socket
            .send(fragment(first, Data::Text, false))
            .await
            .unwrap();
        caller
            .socket
            .send(Message::Ping(b"between".to_vec().into()))
            .await
            .unwrap();
        caller
            .socket
            .send(fragment(rest, Data::Continue, true))
            .await
            .unwrap();
        caller.completed().await;

        let bomb = async {
            let part = vec![b'x'; 1 << 20];
            let first = fragment(&part, Data::Text, false);
            let mut sent = caller.socket.send(first).await;
            while sent.is_ok() {
                sent = caller
                    .socket
                    .send(fragment(&part, Data::Continue, false))
                    .await;
            }
        };
        // The gateway closes the socket: what was sent on is then refused by the system.
        within(bomb).await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("ok").await;
        caller.completed().await;
        assert_eq!(upstream.count(), 2);
    });
}

#[test]
fn a_message_that_is_too_long_is_told() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        // The head of a frame of 33 MiB, and nothing of it.
        let length = (33_u64 << 20).to_be_bytes();
        let head = [&[0x81, 0x80 | 127][..], &length, &[0; 4]].concat();
        caller.socket.get_mut().write_all(&head).await.unwrap();
        let error = caller.error().await;
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&400.into(), &"websocket_message_too_large".into())
        );
        assert_eq!(u16::from(caller.closed().await.code), 1009);
    });
}

#[test]
fn a_message_that_breaks_the_protocol_is_told() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        for (bytes, code) in [
            // Text that is not UTF-8, masked by zeros.
            (vec![0x81, 0x82, 0, 0, 0, 0, 0xff, 0xff], 1007),
            // A frame without a mask.
            (vec![0x81, 0x02, b'{', b'}'], 1002),
            // A continuation of nothing.
            (vec![0x80, 0x80, 0, 0, 0, 0], 1002),
        ] {
            let mut caller = Caller::connect(&gateway).await;
            caller.socket.get_mut().write_all(&bytes).await.unwrap();
            let error = caller.error().await;
            assert_eq!(error["status"], 400, "{bytes:?}");
            assert_eq!(u16::from(caller.closed().await.code), code, "{bytes:?}");
        }
    });
}

#[test]
fn a_message_that_stops_in_its_middle_closes_the_socket() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nupload_idle = \"200ms\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("stall").await;
        caller.begun().await;
        // An idle socket is no half message.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let half = [0x81, 0x80 | 100, 0, 0, 0, 0, b'{'];
        caller.socket.get_mut().write_all(&half).await.unwrap();
        let error = caller.error().await;
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&408.into(), &"message_stalled".into())
        );
        assert_eq!(u16::from(caller.closed().await.code), 1008);
        upstream.until_open(0).await;
    });
}
