//! Connections that die under a request which is not their first.

use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tower::ServiceExt;
use tower_agent::{ReplayBody, llm::failure::TransportError};
use tower_agent_hyper::{HyperService, RESEND_WITHIN};

use crate::proxy::{acceptor, trusting};
use crate::upstream::{OK, Peer, Server, ask, causes, client, within};

/// The first connection answers one request, and ends at the second after these bytes; the next
/// connection answers all.
async fn dies_at_the_second(before_the_end: &'static str) -> Server {
    Server::start(move |mut peer| async move {
        if peer.number > 0 {
            return peer.answer_all().await;
        }
        peer.request().await;
        peer.send(OK).await;
        peer.request().await;
        peer.send(before_the_end).await;
    })
    .await
}

fn notes(wanted: &[(usize, &str)]) -> Vec<(usize, String)> {
    let wanted = wanted.iter();
    wanted.map(|(at, body)| (*at, (*body).to_owned())).collect()
}

#[tokio::test]
async fn a_request_whose_reused_connection_dies_goes_out_again_on_a_fresh_one() {
    let server = dies_at_the_second("").await;
    let client = client();

    for body in ["first", "second"] {
        assert_eq!(ask(&client, server.post(body)).await.unwrap(), "ok");
    }

    let wanted = notes(&[(0, "first"), (0, "second"), (1, "second")]);
    assert_eq!(server.notes(), wanted);
}

/// llama.cpp's server does so 25 to 54 ms after each stream.
#[tokio::test]
async fn a_server_that_closes_soon_after_each_answer_fails_no_call() {
    let server = Server::start(|mut peer: Peer| async move {
        if peer.request().await.is_some() {
            peer.send(OK).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    })
    .await;
    let lanes = (0..8).map(|lane| {
        let (client, server) = (client(), &server);
        async move {
            for call in 0..25 {
                let body = format!("{lane}-{call}");
                assert_eq!(
                    ask(&client, server.post(&body)).await.unwrap(),
                    "ok",
                    "{body}"
                );
                // About when the server closes.
                tokio::time::sleep(Duration::from_micros(29_000 + call * 125)).await;
            }
        }
    });

    futures_util::future::join_all(lanes).await;

    // What a connection answered is never sent again.
    let mut bodies: Vec<_> = server.notes().into_iter().map(|(_, body)| body).collect();
    bodies.sort();
    assert_eq!(bodies.len(), 200);
    bodies.dedup();
    assert_eq!(bodies.len(), 200);
}

/// A request that waits for its connection may get that of an answer which ended meanwhile. What
/// was read of that answer is none to the request.
#[tokio::test]
async fn a_request_that_waited_for_the_connection_that_dies_goes_out_again() {
    let server = Server::start(|peer| async move {
        // The second connection comes too late for the request that asked for it.
        if peer.number == 1 {
            return std::future::pending().await;
        }
        let mut peer = peer.behind_tls(acceptor()).await.unwrap();
        peer.request().await;
        if peer.number == 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            peer.send(OK).await;
            peer.request().await;
            // The connection ends without a byte.
            return;
        }
        peer.send(OK).await;
    })
    .await;
    let client = HyperService::builder().tls_config(trusting());
    let client = client.build().unwrap();
    let post = |body: &str| {
        let request = Request::post(format!("https://localhost:{}/v1", server.addr.port()));
        request.body(ReplayBody::from(body.to_owned())).unwrap()
    };

    let (first, second) = tokio::join!(ask(&client, post("first")), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ask(&client, post("second")).await
    });

    assert_eq!(
        (first.unwrap(), second.unwrap()),
        ("ok".into(), "ok".into())
    );
    let wanted = notes(&[(0, "first"), (0, "second"), (2, "second")]);
    assert_eq!(server.notes(), wanted);
}

#[tokio::test]
async fn a_service_that_is_told_so_sends_nothing_again() {
    let server = dies_at_the_second("").await;
    let client = HyperService::builder().resends(false).build().unwrap();
    ask(&client, server.post("first")).await.unwrap();

    let error = ask(&client, server.post("second")).await.unwrap_err();

    assert!(TransportError::is_in(&*error), "{error:?}");
    assert_eq!(server.notes(), notes(&[(0, "first"), (0, "second")]));
}

#[tokio::test]
async fn the_request_goes_out_again_once() {
    let server = Server::start(|mut peer| async move {
        let first = peer.request().await;
        if peer.number == 0 && first.is_some() {
            peer.send(OK).await;
            peer.request().await;
        }
    })
    .await;
    let client = client();
    ask(&client, server.post("first")).await.unwrap();

    let error = ask(&client, server.post("second")).await.unwrap_err();

    assert!(TransportError::is_in(&*error), "{error:?}");
    let wanted = notes(&[(0, "first"), (0, "second"), (1, "second")]);
    assert_eq!(server.notes(), wanted);
}

/// "Refused" says that nothing was sent, and layers send such a call again without an attempt.
#[tokio::test]
async fn a_repeat_that_cannot_connect_fails_as_the_request_did() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 4096];
        assert!(io.read(&mut buffer).await.unwrap() > 0);
        io.write_all(OK.as_bytes()).await.unwrap();
        let length = io.read(&mut buffer).await.unwrap();
        // The process crashes.
        drop(listener);
        drop(io);
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    });
    let client = client();
    let post = |body: &str| {
        let request = Request::post(format!("http://{at}/v1"));
        request.body(ReplayBody::from(body.to_owned())).unwrap()
    };
    ask(&client, post("first")).await.unwrap();

    let error = ask(&client, post("second")).await.unwrap_err();

    assert!(serving.await.unwrap().ends_with("second"));
    assert!(TransportError::is_in(&*error), "{error:?}");
    assert!(!TransportError::is_refused(&*error), "{error:?}");
}

#[tokio::test]
async fn the_death_of_a_first_connection_is_not_repeated() {
    let server = Server::start(|mut peer| async move {
        peer.request().await;
    })
    .await;

    let error = ask(&client(), server.post("first")).await.unwrap_err();

    assert!(TransportError::is_in(&*error), "{error:?}");
    assert_eq!(server.notes(), notes(&[(0, "first")]));
}

#[tokio::test]
async fn a_request_that_got_a_byte_of_an_answer_is_not_repeated() {
    for bytes in ["H", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\n"] {
        let server = dies_at_the_second(bytes).await;
        let client = client();
        ask(&client, server.post("first")).await.unwrap();

        let error = ask(&client, server.post("second")).await.unwrap_err();

        assert!(TransportError::is_in(&*error), "{error:?}");
        assert_eq!(server.notes(), notes(&[(0, "first"), (0, "second")]));
    }
}

#[tokio::test]
async fn a_body_that_cannot_be_replayed_is_not_repeated() {
    let server = dies_at_the_second("").await;
    let client = client();
    ask(&client, server.post("first")).await.unwrap();

    let request = server.post("").map(|_| Full::<Bytes>::from("second"));
    let error = within(client.clone().oneshot(request)).await.unwrap_err();

    assert!(TransportError::is_in(&*error), "{error:?}");
    assert_eq!(server.notes(), notes(&[(0, "first"), (0, "second")]));
}

#[tokio::test]
async fn an_empty_body_of_any_type_is_replayed() {
    let server = dies_at_the_second("").await;
    let client = client();
    ask(&client, server.post("first")).await.unwrap();

    let request = server.post("").map(|_| http_body_util::Empty::new());
    let answer = within(client.clone().oneshot(request)).await.unwrap();

    assert_eq!(answer.status(), 200);
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn a_death_after_the_bound_is_not_repeated() {
    for (waits, repeats) in [
        (RESEND_WITHIN - Duration::from_millis(500), true),
        (RESEND_WITHIN + Duration::from_millis(1), false),
    ] {
        let (arrived, mut arrivals) = mpsc::unbounded_channel();
        let server = Server::start(move |mut peer| {
            let arrived = arrived.clone();
            async move {
                if peer.number > 0 {
                    return peer.answer_all().await;
                }
                peer.request().await;
                peer.send(OK).await;
                peer.request().await;
                arrived.send(peer).ok().unwrap();
            }
        })
        .await;
        let client = client();
        ask(&client, server.post("first")).await.unwrap();

        let second = tokio::spawn({
            let (client, request) = (client.clone(), server.post("second"));
            async move {
                ask(&client, request)
                    .await
                    .map_err(|error| error.to_string())
            }
        });
        let peer = within(arrivals.recv()).await.unwrap();
        tokio::time::pause();
        tokio::time::advance(waits).await;
        tokio::time::resume();
        drop(peer);

        assert_eq!(within(second).await.unwrap().is_ok(), repeats, "{waits:?}");
        assert_eq!(server.connections(), 1 + usize::from(repeats));
    }
}

/// The body's end is known by its length, so the connection is free at the last byte.
#[tokio::test]
async fn a_connection_is_used_again_while_it_lives() {
    let server = Server::start(Peer::answer_all).await;
    let client = client();
    for _ in 0..5 {
        ask(&client, server.post("")).await.unwrap();
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn the_error_of_a_callers_body_is_not_repeated() {
    let server = Server::start(Peer::answer_all).await;
    let client = client();
    ask(&client, server.post("first")).await.unwrap();
    let failing = futures_util::stream::iter([Err::<http_body::Frame<Bytes>, _>("cut")]);
    let failing = http_body_util::StreamBody::new(failing);

    let request = server.post("").map(|_| failing);
    let error = within(client.clone().oneshot(request)).await.unwrap_err();

    let causes = causes(&error).concat();
    assert!(causes.contains("cut"), "{causes}");
}
