//! More requests under way than a connection of HTTP/2 has streams for.

use std::time::Duration;

use tower::Service;

use crate::{
    http2::{Frames, SETTINGS, http2},
    upstream::{Server, ask, within},
};

/// The identifier of the setting.
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// A server that allows so many streams on a connection, and answers none.
async fn allows(streams: u32) -> Server {
    Server::start(move |peer| async move {
        let Some(mut frames) = Frames::accept(peer).await else {
            return;
        };
        let limit = [
            &MAX_CONCURRENT_STREAMS.to_be_bytes()[..],
            &streams.to_be_bytes(),
        ];
        frames.send(SETTINGS, 0, 0, &limit.concat()).await;
        while frames.request().await.is_some() {}
    })
    .await
}

/// Beyond a peer's limit a stream would wait, unsent, for the end of another.
#[tokio::test]
async fn more_requests_than_a_peer_allows_streams_are_sent_at_once() {
    let server = allows(100).await;
    let mut client = http2().build().unwrap();
    let calls: Vec<_> = (0..250)
        .map(|_| tokio::spawn(client.call(server.post("a"))))
        .collect();

    within(async {
        while server.notes().len() < 250 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;

    assert_eq!(server.connections(), 3);
    calls.iter().for_each(|call| call.abort());
}

#[tokio::test]
async fn requests_that_a_connection_has_place_for_share_it() {
    let server = Server::start(|peer| async move {
        if let Some(frames) = Frames::accept(peer).await {
            frames.answer_all().await;
        }
    })
    .await;
    let client = http2().build().unwrap();
    for _ in 0..3 {
        let calls = (0..100).map(|_| ask(&client, server.post("a")));
        for answer in futures_util::future::join_all(calls).await {
            answer.unwrap();
        }
    }
    assert_eq!(server.connections(), 1);
}
