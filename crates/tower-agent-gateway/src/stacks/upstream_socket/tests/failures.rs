//! Sockets that are refused, that fail, and that end.

use std::{pin::pin, time::Duration};

use futures_util::{
    SinkExt,
    future::{Either, select},
};
use http::StatusCode;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    time::{self, Instant},
};
use tokio_tungstenite::tungstenite::{
    Message,
    protocol::frame::{
        CloseFrame, Frame,
        coding::{CloseCode, Data, OpCode},
    },
};
use tower_agent::{Candidate, llm::failure::TransportError};

use super::{
    super::socket::MOST_RECEIVED,
    support::{
        POSTED, Peer, Upstream, ask, completed, delta, first_turn, message, request, second, send,
        service, sse, text, turn, user, within,
    },
};
use crate::stacks::UpstreamLane;

const MEMORY_LOST: &str = "previous_response_not_found";

fn error(status: u16, code: &str) -> Value {
    json!({"type": "error", "status": status, "error": {"code": code, "message": "no"}})
}

#[tokio::test]
async fn an_upstream_without_websockets_gets_posts_for_ten_minutes() {
    for status in [426, 404, 405, 400, 501, 200] {
        let mut upstream = Upstream::start().await;
        let (service, lane) = (upstream.service(), UpstreamLane::default());
        upstream.refuse(&format!("{status} No"));
        for turn in 0..2 {
            let answer = ask(&service, request(Some(&lane), &[user("a")])).await;
            assert_eq!(answer.unwrap(), POSTED, "{status}");
            if turn == 0 {
                upstream.refused().await;
            }
            upstream.post().await;
            assert!(upstream.is_idle(), "{status}");
        }
        time::pause();
        time::advance(Duration::from_secs(600)).await;
        time::resume();
        drop(first_turn(&mut upstream, &service, &lane).await);
    }
}

/// A server that speaks another protocol at this path has no WebSocket.
#[tokio::test]
async fn a_switch_to_anything_but_the_websocket_that_was_asked_for_is_none() {
    for headers in [
        "upgrade: websocket\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        "upgrade: websocket",
        "upgrade: h2c",
    ] {
        let mut upstream = Upstream::start().await;
        let (service, lane) = (upstream.service(), UpstreamLane::default());
        upstream.refuse(&format!("101 Switched\r\nconnection: upgrade\r\n{headers}"));
        let answer = ask(&service, request(Some(&lane), &[user("a")])).await;
        assert_eq!(answer.unwrap(), POSTED, "{headers}");
        upstream.refused().await;
    }
}

#[tokio::test]
async fn an_upgrade_that_is_refused_for_its_request_is_the_answer() {
    for status in [401, 403, 429, 500, 503] {
        let mut upstream = Upstream::start().await;
        let (service, lane) = (upstream.service(), UpstreamLane::default());
        upstream.refuse(&format!("{status} No\r\nretry-after: 7"));
        let answer = send(&service, request(Some(&lane), &[user("a")])).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["retry-after"], "7");
        upstream.refused().await;
        assert!(upstream.is_idle(), "{status}");
    }
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_refused_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let candidate = Candidate::new("m").base_url(url).unwrap().websocket(true);
    let lane = UpstreamLane::default();
    let service = service([candidate]);
    let error = send(&service, request(Some(&lane), &[user("a")])).await;
    let error = error.unwrap_err();
    assert!(TransportError::is_refused(&*error), "{error:?}");
}

#[tokio::test]
async fn an_error_before_any_event_is_an_http_answer() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let asking = send(&service, request(Some(&lane), &[user("a")]));
    let mut event = error(429, "rate_limit_exceeded");
    event["headers"] = json!({"retry-after": "7"});
    let answering = async {
        let mut peer = upstream.socket().await;
        peer.create().await;
        peer.send(&event).await;
        peer.closed().await;
    };
    let (answer, ()) = tokio::join!(asking, answering);
    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.headers()["retry-after"], "7");
    assert_eq!(answer.headers()["content-type"], "application/json");
    let body: Value = serde_json::from_str(&text(answer).await.unwrap()).unwrap();
    assert_eq!(body, json!({"error": event["error"]}));

    drop(first_turn(&mut upstream, &service, &lane).await);
}

#[tokio::test]
async fn an_error_amid_a_stream_is_its_last_event() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let asking = ask(&service, request(Some(&lane), &[user("a")]));
    let event = error(500, "x");
    let answering = async {
        let mut peer = upstream.socket().await;
        peer.create().await;
        peer.send(&delta("x")).await;
        peer.send(&event).await;
        peer.closed().await;
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert_eq!(answer.unwrap(), sse(&[delta("x"), event]));
    drop(first_turn(&mut upstream, &service, &lane).await);
}

/// An upstream with its memory lost, or a socket too old, is asked anew, and once only.
#[tokio::test]
async fn what_the_upstream_forgot_is_sent_in_full_once_over_another_socket() {
    for code in [MEMORY_LOST, "websocket_connection_limit_reached"] {
        for is_healed in [true, false] {
            let mut upstream = Upstream::start().await;
            let (service, lane) = (upstream.service(), UpstreamLane::default());
            let mut first = first_turn(&mut upstream, &service, &lane).await;
            let asking = send(&service, request(Some(&lane), &second()));
            let answering = async {
                let create = first.create().await;
                assert_eq!(create["previous_response_id"], "r1");
                first.send(&error(400, code)).await;
                first.closed().await;
                let mut peer = upstream.socket().await;
                let create = peer.create().await;
                assert_eq!(create.get("previous_response_id"), None);
                assert_eq!(create["input"], json!(second()));
                match is_healed {
                    true => peer.answer("r2", &message("r2")).await,
                    false => peer.send(&error(400, code)).await,
                }
                peer
            };
            let (answer, mut peer) = tokio::join!(asking, answering);
            let answer = answer.unwrap();
            if is_healed {
                assert!(text(answer).await.unwrap().contains("r2"));
                let next = [&second()[..], &[message("r2"), user("c")]].concat();
                let create = turn(&service, &lane, &mut peer, &next, "r3").await;
                assert_eq!(create["previous_response_id"], "r2");
            } else {
                assert_eq!(answer.status(), 400);
                assert!(text(answer).await.unwrap().contains(code));
            }
            assert!(upstream.is_idle());
        }
    }
}

#[tokio::test]
async fn a_socket_that_closed_between_turns_is_replaced() {
    for is_announced in [true, false] {
        let mut upstream = Upstream::start().await;
        let (service, lane) = (upstream.service(), UpstreamLane::default());
        let mut first = first_turn(&mut upstream, &service, &lane).await;
        if is_announced {
            let code = CloseCode::Away;
            let reason = "idle".into();
            first
                .message(Message::Close(Some(CloseFrame { code, reason })))
                .await;
        }
        drop(first);
        let asking = ask(&service, request(Some(&lane), &second()));
        let answering = async {
            let mut peer = upstream.socket().await;
            let create = peer.create().await;
            peer.answer("r2", &message("r2")).await;
            create
        };
        let (answer, create) = tokio::join!(asking, answering);
        assert!(answer.unwrap().contains("r2"));
        assert_eq!(create["input"], json!(second()));
        assert!(upstream.is_idle());
    }
}

/// The upstream closes an idle socket in the moment in which the request is on its way.
#[tokio::test]
async fn a_kept_socket_that_ends_before_its_answer_is_replaced_once() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let mut first = first_turn(&mut upstream, &service, &lane).await;
    let asking = send(&service, request(Some(&lane), &second()));
    let answering = async {
        first.create().await;
        drop(first);
        let mut peer = upstream.socket().await;
        let create = peer.create().await;
        assert_eq!(create["input"], json!(second()));
    };
    let (answer, ()) = tokio::join!(asking, answering);
    let error = answer.unwrap_err();
    assert!(TransportError::is_in(&*error), "{error:?}");
    assert!(upstream.is_idle());
}

/// A refused connection says that nothing was sent, and would begin the wait for a restart.
#[tokio::test]
async fn an_upstream_that_goes_away_with_a_request_has_not_refused_it() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let mut first = first_turn(&mut upstream, &service, &lane).await;
    let asking = send(&service, request(Some(&lane), &second()));
    let answering = async {
        first.create().await;
        upstream.stop().await;
        drop(first);
    };
    let (answer, ()) = tokio::join!(asking, answering);
    let error = answer.unwrap_err();
    assert!(TransportError::is_in(&*error), "{error:?}");
    assert!(!TransportError::is_refused(&*error), "{error:?}");
}

/// An upstream that worked on a request has seen it: another attempt is for the layers to make.
#[tokio::test]
async fn a_kept_socket_that_ends_late_is_a_failure_of_the_attempt() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let mut first = first_turn(&mut upstream, &service, &lane).await;
    let asking = send(&service, request(Some(&lane), &second()));
    let answering = async {
        first.create().await;
        time::pause();
        time::advance(Duration::from_secs(3)).await;
        time::resume();
        drop(first);
    };
    let (answer, ()) = tokio::join!(asking, answering);
    let error = answer.unwrap_err();
    assert!(TransportError::is_in(&*error), "{error:?}");
    assert!(upstream.is_idle());
}

/// Ends the answer in the middle by each of these, and returns the error of the body.
async fn cut(end: impl AsyncFnOnce(Peer)) -> String {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let asking = send(&service, request(Some(&lane), &[user("a")]));
    let beginning = async {
        let mut peer = upstream.socket().await;
        peer.create().await;
        peer.send(&delta("x")).await;
        peer
    };
    let (answer, peer) = tokio::join!(asking, beginning);
    let (read, ()) = tokio::join!(text(answer.unwrap()), end(peer));
    let error = read.unwrap_err();
    assert!(TransportError::is_in(&*error), "{error:?}");
    drop(first_turn(&mut upstream, &service, &lane).await);
    let mut causes = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        causes = format!("{causes}: {error}");
        next = error.source();
    }
    causes
}

#[tokio::test]
async fn an_answer_that_is_cut_ends_in_an_error() {
    let closed = cut(async |mut peer| {
        let (code, reason) = (CloseCode::Size, "".into());
        peer.message(Message::Close(Some(CloseFrame { code, reason })))
            .await;
    });
    assert!(closed.await.contains("1009"));
    let dropped = cut(async |peer| drop(peer)).await;
    assert!(dropped.contains("socket"), "{dropped}");
    let binary = cut(async |mut peer| {
        peer.message(Message::Binary("{}".into())).await;
        peer.closed().await;
    });
    assert!(binary.await.contains("binary"));
    for garbage in ["", "no", "[]", "{", r#"{"type":1}"#, r#"{"type":"a"}{}"#] {
        let error = cut(async |mut peer| {
            peer.message(Message::text(garbage)).await;
            peer.closed().await;
        });
        assert!(error.await.contains("not an event"), "{garbage}");
    }
    let large = cut(async |mut peer| {
        let text = format!(r#"{{"type":"{}"}}"#, "x".repeat(MOST_RECEIVED));
        // The gateway does not read it to its end.
        let _ = peer.io.send(Message::text(text)).await;
        peer.closed().await;
    });
    assert!(large.await.contains("failed"));
}

#[tokio::test]
async fn a_dropped_answer_closes_the_socket_at_once() {
    for has_begun in [false, true] {
        let mut upstream = Upstream::start().await;
        let (service, lane) = (upstream.service(), UpstreamLane::default());
        let mut asking = Box::pin(send(&service, request(Some(&lane), &[user("a")])));
        let beginning = async {
            let mut peer = upstream.socket().await;
            peer.create().await;
            peer
        };
        let mut peer = match select(pin!(beginning), &mut asking).await {
            Either::Left((peer, _)) => peer,
            Either::Right(_) => panic!("an answer came"),
        };
        let dropped = match has_begun {
            false => {
                drop(asking);
                Instant::now()
            }
            true => {
                peer.send(&delta("x")).await;
                let mut answer = asking.await.unwrap();
                within(answer.body_mut().frame()).await.unwrap().unwrap();
                drop(answer);
                Instant::now()
            }
        };
        peer.closed().await;
        let took = dropped.elapsed();
        assert!(took < Duration::from_millis(100), "{took:?}");
        drop(first_turn(&mut upstream, &service, &lane).await);
    }
}

#[tokio::test]
async fn fragments_pings_and_large_messages_are_read_and_a_large_request_is_sent() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let large: String = ('a'..='z').cycle().take(3_000_001).collect();
    let asking = ask(&service, request(Some(&lane), &[user(&large)]));
    let answer = delta(&large);
    let answering = async {
        let mut peer = upstream.socket().await;
        assert_eq!(peer.create().await["input"], json!([user(&large)]));
        peer.message(Message::Ping("are you there".into())).await;
        let text = answer.to_string();
        let part = |from: usize, to: usize, code, is_last| {
            let part = text.as_bytes()[from..to].to_vec();
            Message::Frame(Frame::message(part, OpCode::Data(code), is_last))
        };
        peer.message(part(0, 5, Data::Text, false)).await;
        peer.message(Message::Ping("still".into())).await;
        peer.message(part(5, 6, Data::Continue, false)).await;
        peer.message(part(6, text.len(), Data::Continue, true))
            .await;
        peer.send(&completed("r1")).await;
        peer
    };
    let (read, mut peer) = tokio::join!(asking, answering);
    assert!(read.unwrap() == sse(&[answer, completed("r1")]));
    let pong = within(futures_util::StreamExt::next(&mut peer.io)).await;
    assert!(matches!(pong, Some(Ok(Message::Pong(_)))), "{pong:?}");
}

/// OpenAI closes the socket at such a request.
#[tokio::test]
async fn a_request_that_is_too_large_for_a_socket_goes_over_post() {
    let mut upstream = Upstream::start().await;
    let (service, lane) = (upstream.service(), UpstreamLane::default());
    let large = user(&"x".repeat(15 * 1024 * 1024));
    let answer = ask(&service, request(Some(&lane), &[large])).await;
    assert_eq!(answer.unwrap(), POSTED);
    upstream.post().await;
    assert!(upstream.is_idle());
}
