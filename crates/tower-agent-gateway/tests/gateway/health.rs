//! An upstream that restarts.
//!
//! covers: E4

use std::{convert::Infallible, time::Duration};

use axum::{Router, routing::any};
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
