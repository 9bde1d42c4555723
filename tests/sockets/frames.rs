//! How a stream that is cut ends at real clients.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::Value;
use tower_agent::TerminalReason;

use crate::net::{
    Answer, Back, Client, DONE, Front, Play, Proxy, SSE_HEAD, Setup, TOKEN, Upstream, Version,
    chunk, request_of, run,
};

/// Time for a busy machine to hand on what came.
const STEP: Duration = Duration::from_secs(1);

const SETUPS: [Setup; 3] = [
    Setup::new(Front::Axum, Back::Reqwest),
    Setup::new(Front::Auto, Back::Legacy),
    Setup::new(Front::Axum, Back::Reqwest).without_pump(),
];

/// Reads the answer of `play` over each version, through each stack.
fn each(play: &Play, step: Duration, look: impl AsyncFn(&Upstream, &Proxy, hyper::Result<Answer>)) {
    let stacks = SETUPS.map(|setup| Version::BOTH.map(|version| (setup, version)));
    let each = stacks.as_flattened().iter().map(async |(setup, version)| {
        let upstream = Upstream::http1(play.clone()).await;
        let gateway = setup.step(step).serve(upstream.addr).await;
        let mut client = Client::connect(gateway.addr, *version).await;
        let answer = client.ask(request_of("one")).await;
        println!("{setup:?} {version:?}");
        look(&upstream, &gateway, answer).await;
        assert_eq!(upstream.count(), 1, "nothing is retried");
    });
    run(join_all(each));
}

/// The answer is `whole` and one error event of this code, and no other end.
fn ends_with_frame(answer: hyper::Result<Answer>, whole: &str, code: &str) {
    let answer = answer.unwrap();
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.headers.get("content-length"), None);
    assert_eq!(answer.headers["cache-control"], "no-cache");
    let event = answer.text().strip_prefix(whole).unwrap();
    let data = event.strip_prefix("event: error\ndata: ").unwrap();
    let data: Value = serde_json::from_str(data.strip_suffix("\n\n").unwrap()).unwrap();
    assert_eq!(data["type"], "error");
    assert_eq!(data["code"], code);
    assert_eq!(data["error"]["type"], code);
    assert_eq!(data["error"]["code"], code);
    let run = answer.headers["x-run-id"].to_str().unwrap();
    assert_eq!(data["error"]["run_id"], run);
}

/// A cut of the upstream becomes the frame, and the run has failed.
fn cut_becomes_the_frame(play: &Play, whole: &str) {
    each(play, 100 * STEP, async |_, gateway, answer| {
        ends_with_frame(answer, whole, "upstream_failed");
        let reason = gateway.reason("one").await;
        assert!(matches!(reason, TerminalReason::Failed(_)), "{reason}");
    });
}

#[test]
fn a_stream_that_falls_silent_ends_with_the_frame() {
    each(&Play::Tokens(2), STEP, async |upstream, gateway, answer| {
        ends_with_frame(answer, &TOKEN.repeat(2), "step_timeout");
        upstream.released("one").await;
        assert_eq!(gateway.reason("one").await, TerminalReason::StepTimeout);
    });
}

/// Whoever forwards the size hint loses the frame: the client counts bytes.
/// covers: T66
#[test]
fn a_silent_stream_with_a_content_length_ends_with_the_frame() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length";
    let play = Play::keep(format!("{head}: 9999\r\n\r\n{TOKEN}"));
    each(&play, STEP, async |upstream, gateway, answer| {
        ends_with_frame(answer, TOKEN, "step_timeout");
        upstream.released("one").await;
        assert_eq!(gateway.reason("one").await, TerminalReason::StepTimeout);
    });
}

/// All announced bytes came, and still no terminator.
#[test]
fn an_unfinished_stream_of_the_announced_length_ends_with_the_frame() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length";
    let play = Play::keep(format!("{head}: {}\r\n\r\n{TOKEN}", TOKEN.len()));
    cut_becomes_the_frame(&play, TOKEN);
}

#[test]
fn a_silent_stream_whose_head_alone_came_ends_with_the_frame() {
    each(&Play::Tokens(0), STEP, async |_, gateway, answer| {
        ends_with_frame(answer, "", "step_timeout");
        assert_eq!(gateway.reason("one").await, TerminalReason::StepTimeout);
    });
}

#[test]
fn a_call_without_a_head_is_answered_504() {
    each(&Play::Silent, STEP, async |upstream, gateway, answer| {
        let answer = answer.unwrap();
        assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(answer.headers["x-terminal-reason"], "step_timeout");
        assert_eq!(answer.headers["x-should-retry"], "false");
        let body = answer.json();
        assert_eq!(body["error"]["code"], "step_timeout");
        upstream.released("one").await;
        assert_eq!(gateway.reason("one").await, TerminalReason::StepTimeout);
    });
}

#[test]
fn a_connection_that_is_cut_in_the_middle_of_a_chunk_becomes_the_frame() {
    let play = Play::close([SSE_HEAD.into(), chunk(TOKEN), format!("ff\r\n{TOKEN}")]);
    cut_becomes_the_frame(&play, &TOKEN.repeat(2));
}

#[test]
fn a_connection_that_is_cut_between_chunks_becomes_the_frame() {
    let play = Play::close([SSE_HEAD.into(), chunk(TOKEN)]);
    cut_becomes_the_frame(&play, TOKEN);
}

/// What every official SDK takes for a success.
#[test]
fn a_clean_end_without_a_terminator_becomes_the_frame() {
    let play = Play::keep(format!("{SSE_HEAD}{}0\r\n\r\n", chunk(TOKEN)));
    cut_becomes_the_frame(&play, TOKEN);
}

#[test]
fn a_stream_that_is_short_of_its_content_length_becomes_the_frame() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n";
    let play = Play::close([format!("{head}{TOKEN}")]);
    cut_becomes_the_frame(&play, TOKEN);
}

/// A body error before anything is flushed would lose the head too.
/// covers: T15
#[test]
fn a_stream_that_is_cut_with_its_head_becomes_head_and_frame() {
    cut_becomes_the_frame(&Play::close([SSE_HEAD.into()]), "");
}

/// Half an event would swallow the frame.
#[test]
fn the_half_of_an_event_is_dropped_before_the_frame() {
    let (half, _) = TOKEN.split_at(20);
    let play = Play::close([format!("{SSE_HEAD}{}{}", chunk(TOKEN), chunk(half))]);
    cut_becomes_the_frame(&play, TOKEN);
}

/// covers: T71
#[test]
fn events_that_come_byte_for_byte_arrive_unchanged() {
    let text = TOKEN
        .replace("\"t\"", "\"t\u{fc}\u{20ac}\u{1f600}\"")
        .replace('\n', "\r\n")
        + DONE;
    let mut wire = SSE_HEAD.as_bytes().to_vec();
    for byte in text.bytes() {
        wire.extend([b"1\r\n", &[byte] as &[u8], b"\r\n"].concat());
    }
    wire.extend(b"0\r\n\r\n");
    let pieces = wire.chunks(1).map(Bytes::copy_from_slice);
    each(
        &Play::close_after(pieces),
        100 * STEP,
        async |_, gateway, answer| {
            assert_eq!(answer.unwrap().text(), text);
            assert_eq!(gateway.reason("one").await, TerminalReason::Completed);
        },
    );
}

#[test]
fn a_finished_chat_stream_without_its_terminator_is_given_it() {
    let finish = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let play = Play::keep(format!(
        "{SSE_HEAD}{}{}0\r\n\r\n",
        chunk(TOKEN),
        chunk(finish)
    ));
    each(&play, 100 * STEP, async |_, gateway, answer| {
        assert_eq!(answer.unwrap().text(), format!("{TOKEN}{finish}{DONE}"));
        assert_eq!(gateway.reason("one").await, TerminalReason::Completed);
    });
}

/// A cut body that is no stream of events is an error, never a clean end.
fn cut_is_an_error(play: &Play, step: Duration, expected: impl Fn(&TerminalReason) -> bool) {
    each(play, step, async |_, gateway, answer| {
        // An error before the first flush takes the head with it.
        assert!(answer.is_err(), "{answer:?}");
        let reason = gateway.reason("one").await;
        assert!(expected(&reason), "{reason}");
    });
}

const CHUNKED_JSON: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
const SHORT_JSON: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"half\":";

#[test]
fn a_json_body_that_is_short_of_its_length_is_an_error_at_the_client() {
    cut_is_an_error(&Play::close([SHORT_JSON.into()]), 100 * STEP, |reason| {
        matches!(reason, TerminalReason::Failed(_))
    });
}

#[test]
fn a_chunked_json_body_that_is_cut_is_an_error_at_the_client() {
    let play = Play::close([CHUNKED_JSON.into(), chunk("{\"half\":")]);
    cut_is_an_error(&play, 100 * STEP, |reason| {
        matches!(reason, TerminalReason::Failed(_))
    });
}

#[test]
fn a_json_body_that_falls_silent_is_an_error_at_the_client() {
    let chunked = Play::keep(format!("{CHUNKED_JSON}{}", chunk("{\"half\":")));
    for play in [Play::keep(SHORT_JSON), chunked] {
        cut_is_an_error(&play, STEP, |reason| *reason == TerminalReason::StepTimeout);
    }
}
