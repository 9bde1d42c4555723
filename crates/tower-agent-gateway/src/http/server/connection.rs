//! One connection, from its accept to its end.

use std::{convert::Infallible, future::Future, net::SocketAddr, pin::pin, sync::Arc, task::Poll};

use axum::{body::Body, extract::ConnectInfo};
use futures_util::future::poll_fn;
use http::{Request, Response, header};
use http_body_util::{BodyExt, combinators::MapErr};
use hyper::{body::Incoming, service::service_fn};
use tokio::{
    net::TcpStream,
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep_until},
};
use tower::{Service, ServiceExt};

use super::{
    activity::{Activity, Due, InFlight, ObservedIo, SocketMeter},
    protocol::{HttpConnection, Protocol, Protocols},
    threads::{is_long, run_on},
};
use crate::config::ServerLimits;

/// Serves the requests of one connection, and enforces its deadlines.
///
/// `of_long_requests` is the runtime that handles those, if it is another. After an upgrade the future
/// waits until the socket is dropped, so that it counts as a connection.
pub(super) async fn serve<S>(
    protocols: Protocols,
    stream: TcpStream,
    peer: SocketAddr,
    app: S,
    limits: ServerLimits,
    of_long_requests: Option<Handle>,
    mut stopped: watch::Receiver<bool>,
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let activity = Activity::new();
    let of_requests = Arc::clone(&activity);
    let service = service_fn(move |request: Request<Incoming>| {
        let in_flight = of_requests.begin(request.version());
        let held = Arc::clone(&in_flight);
        let mut request = request.map(|body| Body::new(holding(held, body)));
        request.extensions_mut().insert(ConnectInfo(peer));
        if request.headers().contains_key(header::UPGRADE) {
            let meter = SocketMeter(Arc::clone(&of_requests));
            request.extensions_mut().insert(meter);
        }
        let app = app.clone();
        let elsewhere = of_long_requests.clone().filter(|_| is_long(request.body()));
        async move {
            let answer = app.oneshot(request);
            let Ok(answer) = match elsewhere {
                Some(runtime) => run_on(&runtime, answer).await,
                None => answer.await,
            };
            Ok::<_, Infallible>(answer.map(|body| holding(in_flight, body)))
        }
    });
    let mut waiting = Some((stream, service));
    let mut connection = pin!(None::<HttpConnection<_>>);
    let mut stopped = pin!(stopped.wait_for(|stopped| *stopped));
    let mut timer = pin!(sleep_until(Instant::now()));
    let mut closing = false;
    poll_fn(|cx| {
        activity.register(cx.waker());
        if !closing && stopped.as_mut().poll(cx).is_ready() {
            closing = true;
            activity.close();
            if let Some(connection) = connection.as_mut().as_pin_mut() {
                connection.graceful_shutdown();
            }
        }
        loop {
            if let Some((stream, service)) = waiting.take() {
                if closing {
                    // Before its first byte there is no request to finish.
                    return Poll::Ready(());
                }
                match Protocol::poll_peek(&stream, cx) {
                    Poll::Ready(protocol) => {
                        let io = ObservedIo::new(stream, Arc::clone(&activity));
                        let serving = HttpConnection::new(&protocols, protocol, peer, io, service);
                        connection.set(Some(serving));
                    }
                    Poll::Pending => waiting = Some((stream, service)),
                }
            }
            // The connection is polled before its deadline is read: bytes that have arrived count
            // first.
            let is_over = match connection.as_mut().as_pin_mut() {
                Some(serving) => serving.poll(cx).is_ready(),
                None if waiting.is_some() => false,
                // The socket that was upgraded is a connection as long as it is open.
                None if activity.is_open() => return Poll::Pending,
                None => return Poll::Ready(()),
            };
            if is_over {
                connection.set(None);
                continue;
            }
            let Some((at, due)) = activity.deadline(&limits) else {
                return Poll::Pending;
            };
            if at > Instant::now() {
                if timer.deadline() != at {
                    timer.as_mut().reset(at);
                }
                // The timer is polled outside tokio's coop budget: a timer that is `Pending` because
                // the budget is exhausted has not registered its waker.
                let mut timer = pin!(tokio::task::unconstrained(timer.as_mut()));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                continue;
            }
            if due == Due::Drop {
                return Poll::Ready(());
            }
            closing = true;
            activity.close();
            if let Some(serving) = connection.as_mut().as_pin_mut() {
                serving.graceful_shutdown();
            }
        }
    })
    .await;
}

/// Keeps a request in flight as long as the body of it or of its answer lives.
fn holding<B: http_body::Body>(
    request: Arc<InFlight>,
    body: B,
) -> MapErr<B, impl FnMut(B::Error) -> B::Error> {
    body.map_err(move |error| {
        let _held = &request;
        error
    })
}
