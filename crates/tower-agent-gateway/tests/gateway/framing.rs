//! Where an answer ends is the gateway's word alone, whatever its upstream says.
//!
//! covers: T70

use crate::{
    net::{CHAT, Raw, Upstream, asks, run},
    support::Config,
};

/// What the upstream hides behind the length that it announces.
const SMUGGLED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{\"evil\"}";

/// How it frames that: each is followed by one chunked body.
const HEADS: [&str; 8] = [
    "content-length: 2\r\ntransfer-encoding: chunked",
    "transfer-encoding: chunked\r\ncontent-length: 2",
    "Transfer-Encoding: Chunked\r\nContent-Length: 2\r\nContent-Length: 2",
    "content-length: 0\r\ntransfer-encoding: chunked",
    "content-length: 9999\r\ntransfer-encoding: chunked",
    "transfer-encoding: chunked\r\ncontent-length: 2\r\nconnection: transfer-encoding",
    "transfer-encoding: chunked\r\ncontent-length: 2\r\ntrailer: content-length",
    "transfer-encoding: chunked\r\ncontent-length: 2\r\nconnection: upgrade\r\nupgrade: h2c",
];

fn post(more: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\n{more}content-length: {length}\r\n\r\n{body}")
}

#[test]
fn an_upstream_with_two_lengths_cannot_answer_twice() {
    run(async {
        let body = format!("{{}}{SMUGGLED}");
        let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        for head in HEADS {
            for kind in ["application/json", "text/plain"] {
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{head}\r\n\r\n");
                let upstream = Upstream::bytes(answer + &chunked).await;
                let gateway = Config::new("")
                    .candidates(&["m"], upstream.addr)
                    .start()
                    .await;

                let request = asks("m", false);
                let mut client = Raw::connect(gateway.addr).await;
                for more in ["", "connection: close\r\n"] {
                    client.send(&post(more, &request)).await;
                    let answer = client.answer().await;
                    assert_eq!(answer.status, 200, "{head:?}: {answer:?}");
                    assert_eq!(answer.text(), body, "{head:?}");
                    for name in ["upgrade", "trailer"] {
                        assert_eq!(answer.header(name), None, "{head:?}");
                    }
                }
                let left = client.read_to_end().await;
                assert_eq!(left, "", "{head:?}: a third answer");
            }
        }
    });
}
