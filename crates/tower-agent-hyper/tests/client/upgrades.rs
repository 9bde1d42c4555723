//! Upgrades: the connection is the caller's after a 101.

use std::sync::Arc;

use http::{HeaderValue, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tower_agent::ReplayBody;
use tower_agent_hyper::HyperService;

use crate::{
    proxy::{acceptor, trusting},
    upstream::{Peer, Server, client, send, within},
};

const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nfirst";

fn upgrade(uri: String) -> Request<ReplayBody> {
    let request = Request::get(uri).header(header::UPGRADE, "echo");
    let request = request.header(header::CONNECTION, HeaderValue::from_static("upgrade"));
    request.body(ReplayBody::default()).unwrap()
}

#[tokio::test]
async fn an_upgraded_connection_is_the_callers_and_closes_with_its_drop() {
    let server = Server::start(|mut peer: Peer| async move {
        let head = peer.head().await.unwrap();
        peer.note(head);
        peer.send(SWITCHED).await;
        let mut sent = [0; 4];
        peer.io.read_exact(&mut sent).await.unwrap();
        peer.send(sent).await;
        let end = peer.io.read(&mut sent).await;
        peer.note(format!("{end:?}"));
        peer.send("gone").await;
    })
    .await;
    let request = upgrade(format!("http://{}/v1", server.addr));

    let mut answer = send(&client(), request).await.unwrap();

    assert_eq!(answer.status(), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(answer.headers()[header::UPGRADE], "echo");
    let upgraded = within(hyper::upgrade::on(&mut answer)).await.unwrap();
    let mut io = TokioIo::new(upgraded);
    let mut read = [0; 9];
    io.write_all(b"echo").await.unwrap();
    within(io.read_exact(&mut read)).await.unwrap();
    assert_eq!(&read, b"firstecho");
    drop((io, answer));
    let closed = async {
        while server.notes().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    within(closed).await;
    assert_eq!(server.notes()[1].1, "Ok(0)");
}

/// An upstream that prefers HTTP/2 must not get to choose it.
#[tokio::test]
async fn a_service_of_http1_only_offers_no_http2() {
    let mut config = (**acceptor().config()).clone();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Server::start(move |peer: Peer| {
        let acceptor = acceptor.clone();
        async move {
            let mut peer = peer.behind_tls(acceptor).await.unwrap();
            if peer.head().await.is_some() {
                peer.send(SWITCHED).await;
            }
            peer.hang().await;
        }
    })
    .await;
    let client = HyperService::builder().tls_config(trusting()).http1_only();
    let request = upgrade(format!("https://localhost:{}/v1", server.addr.port()));

    let mut answer = send(&client.build().unwrap(), request).await.unwrap();

    let upgraded = within(hyper::upgrade::on(&mut answer)).await.unwrap();
    let mut read = [0; 5];
    let mut io = TokioIo::new(upgraded);
    within(io.read_exact(&mut read)).await.unwrap();
    assert_eq!(&read, b"first");
}
