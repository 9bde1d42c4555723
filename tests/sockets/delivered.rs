//! An answer that was delivered is never called a disconnect, however the
//! server drops its body and however soon the client leaves.
//!
//! covers: C3, T6

use std::collections::HashSet;

use http::{Method, StatusCode};
use http_body_util::BodyExt;
use tower_agent::TerminalReason;

use crate::net::{
    Back, Client, DONE, Front, Play, Proxy, Raw, SSE_HEAD, Setup, TOKEN, Upstream, Version, chunk,
    get, post, request_of, run, within,
};

const TIMES: usize = 50;

const JSON: &str = "{\"object\":\"chat.completion\"}";

const SETUPS: [Setup; 4] = [
    Setup::new(Front::Axum, Back::Reqwest),
    Setup::new(Front::Http1, Back::Legacy),
    Setup::new(Front::Auto, Back::Reqwest),
    Setup::new(Front::Http1, Back::Reqwest).without_pump(),
];

fn with_length() -> Play {
    let length = JSON.len();
    Play::keep(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{JSON}"
    ))
}

fn chunked() -> Play {
    let (one, two) = JSON.split_at(9);
    Play::keep(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{}{}0\r\n\r\n",
        chunk(one),
        chunk(two)
    ))
}

fn stream() -> Play {
    Play::keep(format!("{}0\r\n\r\n", unended_stream()))
}

/// A stream whose terminator is sent, but not its end.
fn unended_stream() -> String {
    format!("{SSE_HEAD}{}{}", chunk(TOKEN), chunk(DONE))
}

fn no_content() -> Play {
    Play::keep("HTTP/1.1 204 No Content\r\n\r\n")
}

/// What a HEAD is answered: a length, and no body.
fn head_only() -> Play {
    Play::keep("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n")
}

/// Lets a client have the answer of `play` many times; each run is completed.
fn delivers(play: &Play, exchange: impl AsyncFn(&Proxy, String)) {
    run(async {
        for setup in SETUPS {
            let upstream = Upstream::http1(play.clone()).await;
            let gateway = setup.serve(upstream.addr).await;
            for number in 0..TIMES {
                exchange(&gateway, format!("try-{number}")).await;
            }
            let reasons = gateway.reasons(TIMES).await;
            let completed = vec![TerminalReason::Completed; TIMES];
            assert_eq!(reasons, completed, "{setup:?}");
            assert_eq!(upstream.count(), TIMES);
        }
    });
}

/// The client closes as soon as it has read what `last` finds.
fn delivers_to_a_client_that_leaves(
    play: &Play,
    request: impl Fn(&str) -> String,
    last: impl Fn(&str) -> bool,
) {
    delivers(play, async |gateway, tag| {
        let mut raw = Raw::request(gateway.addr, &request(&tag)).await;
        raw.until(&last).await;
        drop(raw);
    });
}

#[test]
fn a_body_with_a_length_and_a_client_that_closes_after_its_last_byte() {
    delivers_to_a_client_that_leaves(&with_length(), post, |text| text.ends_with(JSON));
}

#[test]
fn a_body_with_a_length_and_a_client_that_resets_after_its_last_byte() {
    delivers(&with_length(), async |gateway, tag| {
        let mut raw = Raw::request(gateway.addr, &post(&tag)).await;
        raw.until(|text| text.ends_with(JSON)).await;
        raw.reset();
    });
}

#[test]
fn a_chunked_body() {
    delivers_to_a_client_that_leaves(&chunked(), post, |text| text.ends_with("\r\n0\r\n\r\n"));
}

#[test]
fn a_head_request() {
    delivers_to_a_client_that_leaves(
        &head_only(),
        |tag| get("HEAD", tag),
        |text| text.ends_with("\r\n\r\n"),
    );
}

#[test]
fn an_answer_without_content() {
    delivers_to_a_client_that_leaves(
        &no_content(),
        |tag| get("DELETE", tag),
        |text| text.starts_with("HTTP/1.1 204") && text.ends_with("\r\n\r\n"),
    );
}

#[test]
fn a_stream_whose_client_closes_at_its_terminator() {
    delivers_to_a_client_that_leaves(&stream(), post, |text| text.contains(DONE));
}

#[test]
fn a_stream_that_never_ends_after_its_terminator() {
    let play = Play::keep(unended_stream());
    delivers_to_a_client_that_leaves(&play, post, |text| text.contains(DONE));
}

#[test]
fn a_connection_that_is_kept_serves_one_completed_run_after_another() {
    run(async {
        for (play, last) in [
            (with_length(), JSON),
            (chunked(), "\r\n0\r\n\r\n"),
            (stream(), "\r\n0\r\n\r\n"),
        ] {
            for setup in SETUPS {
                let upstream = Upstream::http1(play.clone()).await;
                let gateway = setup.serve(upstream.addr).await;
                let mut raw = Raw::connect(gateway.addr).await;
                for number in 0..TIMES {
                    raw.send(&post(&format!("try-{number}"))).await;
                    raw.until(|text| text.ends_with(last)).await;
                }
                let completed = vec![TerminalReason::Completed; TIMES];
                assert_eq!(gateway.reasons(TIMES).await, completed, "{setup:?}");
                // The client may be quicker than the pool that the connection
                // goes back to; but not each time.
                let calls = upstream.calls();
                let connections: HashSet<_> = calls.iter().map(|call| call.connection).collect();
                assert!(connections.len() < TIMES, "{connections:?}");
                assert!(calls.iter().all(|call| call.complete));
            }
        }
    });
}

/// Over HTTP/2 the client reads the whole body, and drops it and the stream.
fn delivers_over_http2(play: &Play, method: &Method, status: StatusCode, body: &str) {
    run(async {
        for front in [Front::Axum, Front::Auto] {
            let upstream = Upstream::http1(play.clone()).await;
            let gateway = Setup::new(front, Back::Reqwest).serve(upstream.addr).await;
            let mut client = Client::connect(gateway.addr, Version::Http2).await;
            for number in 0..TIMES {
                let mut request = request_of(&format!("try-{number}"));
                *request.method_mut() = method.clone();
                let answer = client.ask(request).await.unwrap();
                assert_eq!(answer.status, status);
                assert_eq!(answer.body, body);
            }
            let completed = vec![TerminalReason::Completed; TIMES];
            assert_eq!(gateway.reasons(TIMES).await, completed, "{front:?}");
        }
    });
}

#[test]
fn a_body_with_a_length_over_http2() {
    delivers_over_http2(&with_length(), &Method::POST, StatusCode::OK, JSON);
}

#[test]
fn a_chunked_body_over_http2() {
    delivers_over_http2(&chunked(), &Method::POST, StatusCode::OK, JSON);
}

#[test]
fn a_stream_over_http2() {
    let whole = format!("{TOKEN}{DONE}");
    delivers_over_http2(&stream(), &Method::POST, StatusCode::OK, &whole);
}

#[test]
fn a_head_request_over_http2() {
    delivers_over_http2(&head_only(), &Method::HEAD, StatusCode::OK, "");
}

#[test]
fn an_answer_without_content_over_http2() {
    delivers_over_http2(&no_content(), &Method::POST, StatusCode::NO_CONTENT, "");
}

/// A client that has the last frame resets the stream before its end.
#[test]
fn an_http2_stream_that_is_reset_at_its_terminator() {
    run(async {
        let upstream = Upstream::http1(Play::keep(unended_stream())).await;
        let gateway = SETUPS[0].serve(upstream.addr).await;
        let mut client = Client::connect(gateway.addr, Version::Http2).await;
        for number in 0..TIMES {
            let tag = format!("try-{number}");
            let answer = within(client.send(request_of(&tag))).await.unwrap();
            let mut body = answer.into_body();
            let mut text = String::new();
            while !text.ends_with(DONE) {
                let frame = within(body.frame()).await.unwrap().unwrap();
                text += std::str::from_utf8(frame.data_ref().unwrap()).unwrap();
            }
            drop(body);
            upstream.released(&tag).await;
        }
        let completed = vec![TerminalReason::Completed; TIMES];
        assert_eq!(gateway.reasons(TIMES).await, completed);
    });
}
