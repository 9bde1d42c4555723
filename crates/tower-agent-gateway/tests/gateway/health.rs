//! An upstream that restarts.
//!
//! covers: E4

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::ConnectInfo, routing::any};
use http::Uri;
use tokio::{net::TcpSocket, time::sleep};

use crate::{
    net::{Ask, CHAT, chat, run},
    support::Config,
};

#[test]
fn a_call_waits_until_its_upstream_is_back() {
    run(async {
        // Bound and not listening: connections are refused.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = socket.local_addr().unwrap();
        let health = format!("[health]\nurl = \"http://{addr}/health\"\nevery = \"100ms\"");
        let gateway = Config::new(health).candidate("m", addr).start().await;
        let call = tokio::spawn(gateway.post(CHAT, chat("ok")).ask());

        sleep(Duration::from_millis(400)).await;
        assert!(!call.is_finished(), "it waits");
        let json = ([("content-type", "application/json")], "{\"ok\": true}");
        let model = Router::new().fallback(any(async move || Ok::<_, Infallible>(json)));
        let listener = socket.listen(16).unwrap();
        tokio::spawn(async { axum::serve(listener, model).await });

        let answer = call.await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.text()), (200, json.1));
    });
}

/// A probe on a connection of the calls would wait behind their streams, and keep the connection
/// from the silence by which it is found dead.
#[test]
fn probes_have_connections_of_their_own() {
    run(async {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = socket.local_addr().unwrap();
        let health = format!("[health]\nurl = \"http://{addr}/health\"\nevery = \"100ms\"");
        let gateway = Config::new(health).candidate("m", addr).start().await;
        let call = tokio::spawn(gateway.post(CHAT, chat("ok")).ask());
        sleep(Duration::from_millis(200)).await;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let json = ([("content-type", "application/json")], "{\"ok\": true}");
        let note = Arc::clone(&asked);
        let model = any(
            async move |ConnectInfo(peer): ConnectInfo<SocketAddr>, uri: Uri| {
                let is_probe = uri.path() == "/health";
                note.lock().unwrap().push((is_probe, peer.port()));
                json
            },
        );
        let model = Router::new().fallback(model);
        let model = model.into_make_service_with_connect_info::<SocketAddr>();
        let listener = socket.listen(16).unwrap();
        tokio::spawn(async { axum::serve(listener, model).await });

        assert_eq!(call.await.unwrap().status, 200);

        let asked = asked.lock().unwrap().clone();
        let of = |probes: bool| {
            asked
                .iter()
                .filter(move |(is_probe, _)| *is_probe == probes)
        };
        assert!(of(true).count() > 0 && of(false).count() > 0, "{asked:?}");
        for (_, port) in of(true) {
            assert!(of(false).all(|(_, other)| other != port), "{asked:?}");
        }
    });
}
