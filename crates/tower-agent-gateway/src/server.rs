//! The listener: accepts connections, and closes one that is held and not used.
//!
//! hyper's own timeout for heads is not enough: it begins when a connection becomes idle,
//! and not at all while the version of a new one is being found out. So one clock per
//! connection covers all that is not a request under way.

mod activity;
mod connection;

use std::{future::Future, io, net::SocketAddr, pin::pin, task::Poll, time::Duration};

use axum::Router;
use futures_util::future::{Either, poll_fn, select};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto::Builder,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::config::ServerLimits;

/// How long nothing is accepted when that failed, for lack of files say: to try again at
/// once would take a processor.
const PAUSE: Duration = Duration::from_secs(1);

/// How long an HTTP/2 peer has to answer a ping.
const PING: Duration = Duration::from_secs(20);

/// How often it is logged that connections wait to be accepted.
const FULL_TOLD: Duration = Duration::from_secs(60);

enum Event {
    Accepted(io::Result<(TcpStream, SocketAddr)>),
    Full,
    Stop,
}

/// Serves until `stop` is ready, and then until the connections are closed: idle ones at
/// once, the others with the answers that are under way.
///
/// At the cap of connections the next ones wait in the kernel's queue, which costs this
/// process nothing: to accept and close them would have their clients come back at once.
/// A place is free again within the limits for heads and for idleness.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    limits: ServerLimits,
    stop: impl Future<Output = ()>,
) {
    let builder = builder(limits);
    let (stopping, stopped) = watch::channel(false);
    let mut open = JoinSet::new();
    let mut stop = pin!(stop);
    let mut told: Option<Instant> = None;
    loop {
        let is_told = told.is_some_and(|told| told.elapsed() < FULL_TOLD);
        let event = poll_fn(|cx| {
            if stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Event::Stop);
            }
            // Wakes this task when a connection ends.
            while let Poll::Ready(Some(_)) = open.poll_join_next(cx) {}
            let most = limits.max_connections.and_then(|most| most.try_into().ok());
            if most.is_some_and(|most: usize| open.len() >= most) {
                return match is_told {
                    true => Poll::Pending,
                    false => Poll::Ready(Event::Full),
                };
            }
            listener.poll_accept(cx).map(Event::Accepted)
        });
        match event.await {
            Event::Accepted(Ok((stream, peer))) => {
                set(&stream, limits.keep_alive);
                let builder = builder.clone();
                let connection =
                    connection::serve(builder, stream, peer, app.clone(), limits, stopped.clone());
                open.spawn(connection);
            }
            Event::Accepted(Err(error)) if is_of_peer(&error) => {}
            Event::Accepted(Err(error)) => {
                tracing::error!(%error, "cannot accept connections");
                if let Either::Left(_) = select(stop.as_mut(), pin!(sleep(PAUSE))).await {
                    break;
                }
            }
            Event::Full => {
                told = Some(Instant::now());
                tracing::warn!(
                    max_connections = limits.max_connections,
                    "connections wait to be accepted"
                );
            }
            Event::Stop => break,
        }
    }
    drop(listener);
    stopping.send_replace(true);
    while open.join_next().await.is_some() {}
}

fn builder(limits: ServerLimits) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // The clock of the connection is the one.
        .header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.keep_alive)
        .keep_alive_timeout(limits.keep_alive.map_or(PING, |every| every.min(PING)));
    builder
}

fn set(stream: &TcpStream, keep_alive: Option<Duration>) {
    // Small frames must not wait for one another.
    let _ = stream.set_nodelay(true);
    if let Some(after) = keep_alive {
        let after = after.max(Duration::from_secs(1));
        let interval = (after / 6).max(Duration::from_secs(1));
        let probes = TcpKeepalive::new().with_time(after).with_interval(interval);
        // Without it a peer that vanished is noticed later.
        let _ = SockRef::from(stream).set_tcp_keepalive(&probes);
    }
}

/// Whether one connection failed, and not the listener.
fn is_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}
