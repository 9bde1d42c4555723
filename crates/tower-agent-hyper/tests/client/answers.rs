//! What the service makes of a request and of its answer.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Version, header};
use tower::ServiceExt;
use tower_agent::{Run, llm::failure::TransportError};
use tower_agent_hyper::{HyperService, UnsupportedUri};

use crate::{
    http2::{Frames, http2},
    upstream::{Peer, Server, causes, client, send, within},
};

async fn answers(bytes: &'static str) -> Server {
    Server::start(move |mut peer: Peer| async move {
        if let Some(head) = peer.request().await {
            peer.note(head);
            peer.send(bytes).await;
        }
    })
    .await
}

#[tokio::test]
async fn the_versions_of_upstream_and_caller_do_not_meet() {
    for head in ["HTTP/1.0 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
        let server = answers(head).await;
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            let mut request = server.post("");
            *request.version_mut() = version;
            let answer = send(&client(), request).await.unwrap();
            assert_eq!(answer.version(), Version::HTTP_11);
        }
        let sent = server.notes();
        let mut sent = sent.iter().filter(|(_, note)| !note.is_empty());
        assert!(sent.all(|(_, head)| head.starts_with("POST /v1 HTTP/1.1\r\n")));
    }
    let server = Server::start(|peer| async move {
        Frames::accept(peer).await.unwrap().answer_all().await;
    })
    .await;
    let answer = send(&http2().build().unwrap(), server.post("")).await;
    assert_eq!(answer.unwrap().version(), Version::HTTP_11);
}

#[tokio::test]
async fn the_framing_of_the_upstreams_connection_is_not_handed_on() {
    let server = answers(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\nx: y\r\n\r\n0\r\n\r\n",
    )
    .await;
    let answer = send(&client(), server.post("")).await.unwrap();
    assert!(!answer.headers().contains_key(header::TRANSFER_ENCODING));
    assert!(!answer.headers().contains_key(header::CONTENT_LENGTH));
    assert_eq!(answer.headers()["x"], "y");
}

#[tokio::test]
async fn the_run_goes_onto_the_answer() {
    let server = answers("HTTP/1.1 200 OK\r\n\r\n").await;
    let run = Run::open();
    let answer = send(&client(), run.attach(server.post(""))).await.unwrap();
    let found = answer.extensions().get::<Run>().unwrap();
    assert_eq!(found.id(), run.id());
}

/// A server of the answer would send some of them to its caller.
#[tokio::test]
async fn the_upstreams_extensions_are_not_handed_on() {
    let server = answers("HTTP/1.1 200 Of the upstream\r\ncontent-length: 0\r\n\r\n").await;
    let answer = send(&client(), server.post("")).await.unwrap();
    assert!(answer.extensions().is_empty(), "{:?}", answer.extensions());
}

#[tokio::test]
async fn a_refused_connection_is_one_of_the_transport_and_names_no_url() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = closed.local_addr().unwrap();
    drop(closed);
    let request = Request::post(format!("http://{at}/secret?key=secret"));

    let error = send(&client(), request.body("".into()).unwrap())
        .await
        .unwrap_err();

    assert!(error.is::<TransportError>());
    assert!(TransportError::is_refused(&*error), "{error:?}");
    let causes = causes(&error).concat();
    assert!(!causes.contains("secret"), "{causes}");
}

#[tokio::test]
async fn a_connection_that_is_not_made_in_time_is_one_of_the_transport() {
    // TLS belongs to the connection.
    let server = Server::start(Peer::hang).await;
    let limit = Duration::from_millis(100);
    let client = HyperService::builder().connect_timeout(limit).build();
    let request = Request::post(format!("https://{}/v1", server.addr)).body("".into());

    let error = send(&client.unwrap(), request.unwrap()).await.unwrap_err();

    assert!(error.is::<TransportError>());
    assert!(!TransportError::is_refused(&*error));
    let causes = causes(&error).concat();
    assert!(causes.contains("no connection within 100ms"), "{causes}");
}

#[tokio::test]
async fn a_host_without_an_address_is_one_of_the_transport() {
    let request = Request::post("http://upstream.invalid/v1").body("".into());
    let error = send(&client(), request.unwrap()).await.unwrap_err();
    assert!(error.is::<TransportError>());
    assert!(!TransportError::is_refused(&*error));
    let causes = causes(&error).concat();
    assert!(causes.contains("dns error"), "{causes}");
}

#[tokio::test]
async fn a_uri_that_is_not_http_is_no_failure_of_the_transport() {
    for uri in ["/v1", "ftp://h/v1", "h:80", "http://u:secret@h/v1"] {
        let request = Request::post(uri).body("".into());
        let error = send(&client(), request.unwrap()).await.unwrap_err();
        assert!(error.is::<UnsupportedUri>(), "{uri}: {error:?}");
        assert!(!format!("{error} {error:?}").contains("secret"));
        assert!(!TransportError::is_in(&*error));
    }
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let server = answers("HTTP/1.1 307 Elsewhere\r\nlocation: /other\r\ncontent-length: 0\r\n\r\n");
    let server = server.await;
    let answer = send(&client(), server.post("")).await.unwrap();
    assert_eq!(answer.status(), 307);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn the_error_of_a_callers_body_is_in_the_calls() {
    let server = Server::start(|peer| async move {
        if let Some(mut frames) = Frames::accept(peer).await {
            while frames.next().await.is_some() {}
        }
    })
    .await;
    let failing = [
        Ok(http_body::Frame::data(Bytes::from("x"))),
        Err::<http_body::Frame<Bytes>, _>("cut"),
    ];
    let failing = http_body_util::StreamBody::new(futures_util::stream::iter(failing));

    let request = server.post("").map(|_| failing);
    let error = within(http2().build().unwrap().oneshot(request)).await;

    let causes = causes(&error.unwrap_err()).concat();
    assert!(causes.contains("cut"), "{causes}");
}
