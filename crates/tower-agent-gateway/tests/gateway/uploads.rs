//! Requests that are answered before they were read.
//!
//! covers: T5

use crate::{
    net::{Ask, CHAT, Raw, Upstream, run},
    support::{Config, Gateway},
};

const ASKS: &str = "{\"model\":\"500\",\"messages\":[]}";

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n";

const LONG: usize = 8 * 1024 * 1024;
const PIECE: usize = 64 * 1024;

/// A gateway whose run `r-1` is over.
async fn after_the_end() -> (Gateway, Upstream) {
    let limits = "[retry]\nmax_attempts_per_candidate = 1\nper_run = 1";
    let (upstream, gateway) = Config::new(limits).start_with_model(&["500"]).await;
    for _ in 0..2 {
        let request = gateway.post(CHAT, ASKS).header("x-run-id", "r-1");
        let answer = request.ask().await;
        assert_eq!(answer.status, 500);
        // Read to its end: only then the call has failed for the gateway too.
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

/// SDKs that see a reset ask again, and never learn why.
#[test]
fn who_uploads_to_a_run_that_is_over_learns_so_and_keeps_the_connection() {
    run(async {
        let (gateway, upstream) = after_the_end().await;
        for request in [announced(), chunked()] {
            for turn in 0..20 {
                let mut connection = Raw::connect(gateway.addr).await;

                // As most clients do: all of it first.
                for piece in &request {
                    let sent = connection.try_send(piece).await;
                    sent.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
                }

                let answer = connection.answer().await;
                assert_eq!(answer.status, 422, "{answer:?}");
                let reason = "per_dispatch_errors_exceeded";
                assert_eq!(answer.reason(), Some(reason));
                assert_ne!(answer.header("connection"), Some("close"));
                assert!(answer.text().contains(reason), "{answer:?}");

                connection.send(HEALTH).await;
                let answer = connection.answer().await;
                assert_eq!(answer.status, 200, "{answer:?}");
                assert_eq!(answer.text(), "ok\n");
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
        let mut connection = Raw::connect(gateway.addr).await;
        let request = announced();
        let (half, rest) = request.split_at(2);
        connection.send(&half.concat()).await;

        let answer = connection.answer().await;
        assert_eq!(answer.status, 422, "{answer:?}");

        connection.send(&(rest.concat() + HEALTH)).await;
        let answer = connection.answer().await;
        assert_eq!(answer.status, 200, "{answer:?}");
    });
}

#[test]
fn an_upload_without_an_end_is_cut() {
    run(async {
        let (gateway, _upstream) = after_the_end().await;
        let mut connection = Raw::connect(gateway.addr).await;
        let head = head("transfer-encoding: chunked");
        connection.send(&head).await;
        let chunk = chunk();
        let mut sent = 0;
        while connection.try_send(&chunk).await.is_ok() {
            sent += PIECE;
            assert!(sent < 16 * LONG, "it is read for ever");
        }
        assert!(sent >= 4 * LONG, "{sent}");
    });
}
