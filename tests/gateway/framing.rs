//! Where an answer ends is the gateway's word alone, whatever its upstream says.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::net::{CHAT, Config, Gateway, Upstream, asks, run, within};

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

fn request(more: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\n{more}content-length: {length}\r\n\r\n{body}")
}

/// The first answer, its body, and what follows it; `None` if it is not whole yet.
fn take(bytes: &str) -> Option<(&str, String, &str)> {
    let (head, mut rest) = bytes.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 "), "no answer: {bytes:?}");
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        let values: Vec<_> = lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect();
        assert!(values.len() <= 1, "{name} is said twice: {head:?}");
        values.first().copied()
    };
    assert_eq!(field("upgrade"), None, "{head:?}");
    assert_eq!(field("trailer"), None, "{head:?}");
    match (field("content-length"), field("transfer-encoding")) {
        (Some(length), None) => {
            let length = length.parse().unwrap();
            let body = rest.get(..length)?;
            Some((head, body.to_owned(), &rest[length..]))
        }
        (None, Some("chunked")) => {
            let mut body = String::new();
            loop {
                let (size, chunk) = rest.split_once("\r\n")?;
                let size = usize::from_str_radix(size, 16).unwrap();
                body += chunk.get(..size)?;
                assert_eq!(chunk.get(size..size + 2)?, "\r\n");
                rest = &chunk[size + 2..];
                if size == 0 {
                    return Some((head, body, rest));
                }
            }
        }
        both => panic!("its length is unclear: {both:?} in {head:?}"),
    }
}

/// Asks twice on one connection: all bytes that come back.
async fn ask_twice(gateway: &Gateway, body: &str) -> String {
    let mut stream = TcpStream::connect(gateway.addr).await.unwrap();
    let first = request("", body);
    stream.write_all(first.as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while take(&String::from_utf8_lossy(&read)).is_none() {
        let more = within(stream.read_buf(&mut read)).await.unwrap();
        assert!(more > 0, "{:?}", String::from_utf8_lossy(&read));
    }
    let last = request("connection: close\r\n", body);
    stream.write_all(last.as_bytes()).await.unwrap();
    within(stream.read_to_end(&mut read)).await.unwrap();
    String::from_utf8(read).unwrap()
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
                let gateway = Gateway::with(&Config::of(upstream.addr, ""), &[]).await;

                let read = ask_twice(&gateway, &asks("m", false)).await;

                let mut left = &*read;
                for _ in 0..2 {
                    let (of, text, rest) = take(left).unwrap();
                    assert!(of.starts_with("HTTP/1.1 200"), "{head:?}: {of:?}");
                    assert_eq!(text, body, "{head:?}");
                    left = rest;
                }
                assert_eq!(left, "", "{head:?}: a third answer");
            }
        }
    });
}
