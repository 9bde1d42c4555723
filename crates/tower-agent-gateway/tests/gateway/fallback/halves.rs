//! Half a JSON document under a good status is not an answer.
//!
//! covers: T69

use crate::{
    net::{Ask, CHAT, DIALECTS, Upstream, WHOLE, asks, run, within},
    support::Config,
};

const HALF: &str = "{\"choices\":[{\"message\":{\"content\":\"The";

const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\n";

/// The same body, ended cleanly in both ways.
fn framed(body: &str) -> [String; 2] {
    let length = body.len();
    [
        format!("{HEAD}content-length: {length}\r\n\r\n{body}"),
        format!("{HEAD}transfer-encoding: chunked\r\n\r\n{length:x}\r\n{body}\r\n0\r\n\r\n"),
    ]
}

#[test]
fn alone_it_is_a_502_that_may_be_repeated() {
    run(async {
        let repeats = "[retry]\nmax_attempts_per_candidate = 2\nbase_delay = \"1ms\"\n";
        for answer in framed(HALF) {
            for (limits, attempts) in [
                ("[retry]\nmax_attempts_per_candidate = 1\n", 1),
                (repeats, 2),
            ] {
                let upstream = Upstream::bytes(&*answer).await;
                let gateway = Config::new(limits)
                    .candidates(&["m"], upstream.addr)
                    .start()
                    .await;
                for dialect in &DIALECTS {
                    for stream in [false, true] {
                        let before = upstream.count();
                        let call = gateway.post(dialect.path, dialect.asks("m", stream));
                        let answer = call.ask().await;

                        assert_eq!(answer.status, 502, "{}", dialect.path);
                        for name in ["x-should-retry", "x-terminal-reason"] {
                            assert_eq!(answer.headers.get(name), None);
                        }
                        let (kind, _) = dialect.error(answer.text());
                        assert_eq!(kind, "upstream_failed");
                        assert_eq!(upstream.count() - before, attempts);
                    }
                }
            }
        }
    });
}

#[test]
fn the_next_candidate_serves_and_the_last_is_no_answer_either() {
    run(async {
        for answer in framed(HALF) {
            let half = Upstream::bytes(answer).await;
            let healthy = Upstream::model().await;
            let gateway = Config::default()
                .candidate("half", half.addr)
                .candidate("ok", healthy.addr)
                .start()
                .await;
            let answer = gateway.post(CHAT, asks("half", false)).ask().await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.text(), WHOLE);

            let gateway = Config::default()
                .candidate("500", healthy.addr)
                .candidate("half", half.addr)
                .start()
                .await;
            let answer = gateway.post(CHAT, asks("500", false)).ask().await;
            assert_eq!(answer.status, 502);
        }
    });
}

/// More than is held: its head is out before its end is known.
#[test]
fn a_long_one_is_cut_and_does_not_end() {
    run(async {
        let long = format!("{{\"data\":\"{}\"", "x".repeat(600 * 1024));
        for (body, is_whole) in [(long.clone(), false), (long + "}", true)] {
            for answer in framed(&body) {
                let upstream = Upstream::bytes(answer).await;
                let gateway = Config::new("")
                    .candidates(&["m"], upstream.addr)
                    .start()
                    .await;

                let call = gateway.post("/v1/embeddings", asks("m", false));
                let answer = within(call.send()).await;

                let Ok(answer) = answer else {
                    // The connection may break before its head was flushed.
                    assert!(!is_whole);
                    continue;
                };
                assert_eq!(answer.status(), 200);
                match within(answer.text()).await {
                    Ok(text) => assert!(is_whole && text == body, "{} bytes", text.len()),
                    Err(error) => assert!(!is_whole, "{error:?}"),
                }
                assert_eq!(upstream.count(), 1);
            }
        }
    });
}
