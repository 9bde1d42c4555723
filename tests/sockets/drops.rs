//! Drops that are not the client's, and what is seen inside of one.
//!
//! covers: C1

use std::{
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use tower::{service_fn, util::BoxCloneSyncService};
use tower_agent::{BoxError, Run, TerminalReason};

use crate::net::{Back, Front, Play, Proxy, Raw, Setup, Upstream, boxed, eventually, post, run};

const SETUP: Setup = Setup::new(Front::Axum, Back::Reqwest);

/// Serves on a runtime of its own, opens a stream, lets `before` act, and
/// drops all tasks of the server: why is the run over?
fn reason_of_a_server_that_is_dropped(before: impl FnOnce(&Proxy)) -> TerminalReason {
    run(async {
        let upstream = Upstream::http1(Play::Tokens(1)).await;
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let gateway = server.spawn(SETUP.serve(upstream.addr)).await.unwrap();
        let mut raw = Raw::request(gateway.addr, &post("one")).await;
        raw.until(|text| text.contains("data:")).await;

        before(&gateway);
        server.shutdown_background();
        upstream.released("one").await;
        gateway.reason("one").await
    })
}

/// Nothing tells the two apart.
#[test]
fn a_server_that_is_dropped_looks_like_a_client_that_left() {
    let reason = reason_of_a_server_that_is_dropped(|_| {});
    assert_eq!(reason, TerminalReason::ClientDisconnect);
}

/// covers: T7
#[test]
fn a_server_that_stores_its_reason_before_it_drops_is_believed() {
    let reason = reason_of_a_server_that_is_dropped(|gateway| {
        assert_eq!(gateway.registry.shutdown(), 1);
    });
    assert_eq!(reason, TerminalReason::Shutdown);
}

/// A body that never ends, and notes what its node says when it is dropped.
struct Witness {
    run: Run,
    sent: bool,
    seen: Arc<Mutex<Option<Option<TerminalReason>>>>,
}

impl http_body::Body for Witness {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if std::mem::replace(&mut self.sent, true) {
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"first")))))
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        *self.seen.lock().unwrap() = Some(self.run.terminal_reason());
    }
}

/// covers: T8
#[test]
fn what_is_dropped_with_the_client_can_read_why() {
    run(async {
        for setup in [SETUP, SETUP.without_pump()] {
            let seen = Arc::new(Mutex::new(None));
            let witness = Arc::clone(&seen);
            let inner = service_fn(move |request: Request<Body>| {
                let body = Witness {
                    run: request.extensions().get::<Run>().unwrap().clone(),
                    sent: false,
                    seen: Arc::clone(&witness),
                };
                async { Ok::<_, BoxError>(boxed(Response::new(body))) }
            });
            let gateway = setup
                .serve_in_front_of(BoxCloneSyncService::new(inner))
                .await;
            let mut raw = Raw::request(gateway.addr, &post("one")).await;
            raw.until(|text| text.contains("first")).await;
            drop(raw);

            let reason = eventually(async || seen.lock().unwrap().clone()).await;
            assert_eq!(reason, Some(TerminalReason::ClientDisconnect));
        }
    });
}
