//! The listener: accepts connections, and closes those that are idle or stuck in a head.
//!
//! hyper's own timeout for heads is not enough: it starts when a connection becomes idle, and does
//! not run before the first bytes tell its protocol. So one clock for each connection covers all the
//! time without a request in flight.

mod activity;
mod connection;
mod frame_cursor;
mod open_files;
mod protocol;
mod threads;

use std::{
    convert::Infallible, future::Future, io, net::SocketAddr, pin::pin, task::Poll, time::Duration,
};

use axum::body::Body;
use futures_util::future::{Either, poll_fn, select};
use http::{Request, Response};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Handle,
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::Service;

pub(crate) use self::{
    activity::SocketMeter,
    threads::{ServerThreads, thread_number},
};
use self::{protocol::Protocols, threads::ServerPlace};
use crate::config::ServerLimits;

/// The pause after a failed accept, for example for lack of file descriptors. Without it the
/// loop would use a whole core.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest time that an HTTP/2 peer has to answer a ping; a shorter `keep_alive` shortens it.
const PING: Duration = Duration::from_secs(20);

/// The least time between two lines of the log that say that connections wait.
const WARN_EVERY: Duration = Duration::from_secs(60);

enum ServerEvent {
    Accepted(io::Result<(TcpStream, SocketAddr)>),
    Full,
    Stop,
}

/// Serves until `stop` is ready, and then until the connections are closed.
///
/// Connections finish their requests in flight; the others close within 5 s. Without `threads` the
/// runtime of the caller serves them.
///
/// At the cap, further connections wait in the kernel's queue, which costs this process
/// nothing. If they were accepted and closed, their clients would reconnect at once. An idle
/// connection frees its place within the limits for heads and for idleness. A limit of open files that
/// has no room for as many connections as the cap lowers it.
pub(crate) async fn serve<S>(
    listener: TcpListener,
    app: S,
    limits: ServerLimits,
    threads: Option<&ServerThreads>,
    stop: impl Future<Output = ()>,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let protocols = Protocols::new(limits);
    let (stopping, stopped) = watch::channel(false);
    let mut open = JoinSet::new();
    let mut stop = pin!(stop);
    let mut last_warned: Option<Instant> = None;
    let most_connections = most_connections(limits);
    loop {
        let is_warned = last_warned.is_some_and(|at| at.elapsed() < WARN_EVERY);
        let event = poll_fn(|cx| {
            if stop.as_mut().poll(cx).is_ready() {
                return Poll::Ready(ServerEvent::Stop);
            }
            // Wakes this task when a connection ends.
            while let Poll::Ready(Some(_)) = open.poll_join_next(cx) {}
            let most = most_connections.and_then(|most| most.try_into().ok());
            if most.is_some_and(|most: usize| open.len() >= most) {
                return match is_warned {
                    true => Poll::Pending,
                    false => Poll::Ready(ServerEvent::Full),
                };
            }
            listener.poll_accept(cx).map(ServerEvent::Accepted)
        });
        match event.await {
            ServerEvent::Accepted(Ok((stream, peer))) => {
                set(&stream, limits.keep_alive);
                let (protocols, app) = (protocols.clone(), app.clone());
                let stopped = stopped.clone();
                let serve = move |stream, caller| {
                    connection::serve(protocols, stream, peer, app, limits, caller, stopped)
                };
                match threads.and_then(ServerThreads::place) {
                    Some(place) => spawn_on(&mut open, place, stream, serve),
                    None => drop(open.spawn(serve(stream, None))),
                }
            }
            ServerEvent::Accepted(Err(error)) if is_of_peer(&error) => {}
            ServerEvent::Accepted(Err(error)) => {
                tracing::error!(%error, "cannot accept connections");
                if let Either::Left(_) = select(stop.as_mut(), pin!(sleep(PAUSE))).await {
                    break;
                }
            }
            ServerEvent::Full => {
                last_warned = Some(Instant::now());
                tracing::warn!(
                    max_connections = most_connections,
                    "connections wait to be accepted"
                );
            }
            ServerEvent::Stop => break,
        }
    }
    drop(listener);
    stopping.send_replace(true);
    while open.join_next().await.is_some() {}
}

/// The cap on connections that `max_connections` and the limit of open files leave; `None` if the file
/// switches it off.
///
/// Warns where the limit leaves less than half of the cap: 20,000 open files, which have room for all but
/// a few of the default's connections, need no hand.
fn most_connections(limits: ServerLimits) -> Option<u32> {
    let wanted = limits.max_connections?;
    let room =
        open_files::most_connections(limits.threads.unwrap_or(0)).filter(|room| *room < wanted);
    let Some(room) = room else {
        return Some(wanted);
    };
    macro_rules! log {
        ($level:ident) => {
            tracing::$level!(
                max_connections = wanted,
                room,
                "the limit of open files has no room for max_connections, which each need two: fewer are accepted"
            )
        };
    }
    match room < wanted / 2 {
        true => log!(warn),
        false => log!(debug),
    }
    Some(room)
}

/// Serves a connection on its thread, whose runtime must have the socket.
fn spawn_on<F>(
    open: &mut JoinSet<()>,
    place: ServerPlace,
    stream: TcpStream,
    serve: impl FnOnce(TcpStream, Option<Handle>) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send,
{
    let Ok(stream) = stream.into_std() else {
        return;
    };
    let runtime = place.runtime.clone();
    let connection = async move {
        let caller = place.caller.clone();
        let _held = place;
        if let Ok(stream) = TcpStream::from_std(stream) {
            serve(stream, Some(caller)).await;
        }
    };
    open.spawn_on(connection, &runtime);
}

fn set(stream: &TcpStream, keep_alive: Option<Duration>) {
    // Nagle's algorithm is off: small frames must not wait for one another.
    let _ = stream.set_nodelay(true);
    if let Some(after) = keep_alive {
        let after = after.max(Duration::from_secs(1));
        let interval = (after / 6).max(Duration::from_secs(1));
        let probes = TcpKeepalive::new().with_time(after).with_interval(interval);
        // The error is ignored: without probes a vanished peer is only noticed later.
        let _ = SockRef::from(stream).set_tcp_keepalive(&probes);
    }
}

/// Whether the error concerns one connection, not the listener.
fn is_of_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}
