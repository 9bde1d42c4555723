//! Requests that are answered before they were read.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::net::{CHAT, Config, Gateway, Upstream, run, within};

const ASKS: &str = "{\"model\":\"500\",\"messages\":[]}";

const LONG: usize = 8 * 1024 * 1024;
const PIECE: usize = 64 * 1024;

/// A gateway whose run `r-1` is over.
async fn after_the_end() -> (Gateway, Upstream) {
    let upstream = Upstream::model().await;
    let limits = "[retry]\nmax_attempts_per_candidate = 1\nper_run = 1";
    let config = Config::candidates(upstream.addr, limits, &["500"]);
    let gateway = Gateway::with(&config, &[]).await;
    for _ in 0..2 {
        let request = gateway.post(CHAT, ASKS).header("x-run-id", "r-1");
        let answer = within(request.send()).await.unwrap();
        assert_eq!(answer.status(), 500);
        // Read to its end: only then the call has failed for the gateway too.
        within(answer.bytes()).await.unwrap();
    }
    (gateway, upstream)
}

fn head(framing: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\nx-run-id: r-1\r\n{framing}\r\n\r\n")
}

/// The request, in the pieces in which it is sent.
fn announced() -> Vec<String> {
    let mut sent = vec![head(&format!("content-length: {LONG}"))];
    sent.resize(1 + LONG / PIECE, " ".repeat(PIECE));
    sent
}

fn chunked() -> Vec<String> {
    let mut sent = vec![head("transfer-encoding: chunked")];
    sent.resize(1 + LONG / PIECE, chunk());
    sent.push("0\r\n\r\n".to_owned());
    sent
}

fn chunk() -> String {
    format!("{PIECE:x}\r\n{}\r\n", " ".repeat(PIECE))
}

/// The head of one answer, in lower case, and its body.
async fn answer(connection: &mut BufReader<TcpStream>) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split_once("content-length: ").unwrap().1;
    let length = length.split_once("\r\n").unwrap().0.parse().unwrap();
    let mut body = vec![0; length];
    connection.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

/// SDKs that see a reset ask again, and never learn why.
#[test]
fn who_uploads_to_a_run_that_is_over_learns_so_and_keeps_the_connection() {
    run(async {
        let (gateway, upstream) = after_the_end().await;
        for request in [announced(), chunked()] {
            for turn in 0..20 {
                let connection = TcpStream::connect(gateway.addr).await.unwrap();
                let mut connection = BufReader::new(connection);

                // As most clients do: all of it first.
                for piece in &request {
                    let sent = within(connection.write_all(piece.as_bytes())).await;
                    sent.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
                }

                let (head, body) = within(answer(&mut connection)).await;
                assert!(head.starts_with("http/1.1 422 "), "{head}");
                let reason = "per_dispatch_errors_exceeded";
                assert!(head.contains(&format!("x-terminal-reason: {reason}")));
                assert!(!head.contains("connection: close"), "{head}");
                assert!(body.contains(reason), "{body}");

                let next = b"GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n";
                connection.write_all(next).await.unwrap();
                let (head, body) = within(answer(&mut connection)).await;
                assert!(head.starts_with("http/1.1 200 "), "{head}");
                assert_eq!(body, "ok\n");
            }
        }
        assert_eq!(upstream.count(), 2, "nobody was asked");
    });
}

/// Whoever waits for the answer with the rest of the request has it at once.
#[test]
fn half_an_upload_is_answered() {
    run(async {
        let (gateway, _upstream) = after_the_end().await;
        let connection = TcpStream::connect(gateway.addr).await.unwrap();
        let mut connection = BufReader::new(connection);
        let request = announced();
        let (half, rest) = request.split_at(2);
        connection
            .write_all(half.concat().as_bytes())
            .await
            .unwrap();

        let (head, _) = within(answer(&mut connection)).await;
        assert!(head.starts_with("http/1.1 422 "), "{head}");

        let next = "GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n";
        let rest = rest.concat() + next;
        within(connection.write_all(rest.as_bytes())).await.unwrap();
        let (head, _) = within(answer(&mut connection)).await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
    });
}

#[test]
fn an_upload_without_an_end_is_cut() {
    run(async {
        let (gateway, _upstream) = after_the_end().await;
        let mut connection = TcpStream::connect(gateway.addr).await.unwrap();
        let head = head("transfer-encoding: chunked");
        connection.write_all(head.as_bytes()).await.unwrap();
        let chunk = chunk();
        let mut sent = 0;
        while within(connection.write_all(chunk.as_bytes())).await.is_ok() {
            sent += PIECE;
            assert!(sent < 16 * LONG, "it is read for ever");
        }
        assert!(sent >= 4 * LONG, "{sent}");
    });
}
