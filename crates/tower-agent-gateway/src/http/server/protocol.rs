//! HTTP/1 and HTTP/2 on one port, told apart by their first bytes.
//!
//! hyper-util reads the first 24 bytes to tell the two apart, and hands them to hyper as a read of
//! their own. hyper then finds less than 8 KiB left in its buffer, and doubles it for as long as the
//! connection lives. A peek leaves the bytes where they are.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use axum::BoxError;
use http::{Request, Response};
use http_body::Body;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::{HttpService, Service},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use pin_project_lite::pin_project;
use tokio::{io::ReadBuf, net::TcpStream, time::Instant};

use super::activity::ObservedIo;
use crate::config::ServerLimits;

/// The most bytes of the head of a request over HTTP/2; over HTTP/1 hyper takes some 400 KiB.
const MAX_HEAD: u32 = 64 * 1024;

/// The first bytes of a client that speaks HTTP/2 without an upgrade.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The first byte of a client that speaks TLS: the type of a handshake's record. No method of HTTP has it.
const TLS_HANDSHAKE: u8 = 0x16;

/// The settings of connections, by protocol.
#[derive(Clone, Debug)]
pub(super) struct Protocols {
    /// When the log last said that a client speaks TLS.
    warned_of_tls: Arc<Mutex<Option<Instant>>>,
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
    either: auto::Builder<TokioExecutor>,
}

/// What the first bytes of a client are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
    /// A part of the preface: what follows decides.
    Either,
    /// TLS, of which this port has none: HTTP/1 refuses it.
    Tls,
}

impl Protocols {
    pub(super) fn new(limits: ServerLimits) -> Self {
        let interval = limits.keep_alive;
        let timeout = interval.map_or(super::PING, |every| every.min(super::PING));
        // hyper's own timeout for request heads is off: each connection has a clock instead.
        // That clock covers all the time without a request in flight: see the module.
        let mut http1 = http1::Builder::new();
        http1.timer(TokioTimer::new()).header_read_timeout(None);
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEAD)
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout);
        let mut either = auto::Builder::new(TokioExecutor::new());
        either
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None);
        either
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEAD)
            .keep_alive_interval(interval)
            .keep_alive_timeout(timeout);
        Self {
            warned_of_tls: Arc::default(),
            http1,
            http2,
            either,
        }
    }

    /// Logs, once in a while, that a client speaks TLS: all that the client sees is a failed handshake.
    fn warn_of_tls(&self, peer: SocketAddr) {
        let last = self.warned_of_tls.lock();
        let mut last = last.unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= super::WARN_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!(
                %peer,
                "a caller uses https, and this port has no TLS: its URL must begin with http://, or a proxy in \
                 front must bring TLS"
            );
        }
    }
}

impl Protocol {
    /// Reads the first bytes of a client, and leaves them in the socket.
    ///
    /// An error of the socket is found by the connection's own read.
    pub(super) fn poll_peek(stream: &TcpStream, cx: &mut Context<'_>) -> Poll<Self> {
        let mut bytes = [0; PREFACE.len()];
        let mut bytes = ReadBuf::new(&mut bytes);
        let peeked = ready!(stream.poll_peek(cx, &mut bytes));
        Poll::Ready(match peeked {
            Ok(_) => Self::of(bytes.filled()),
            Err(_) => Self::Http1,
        })
    }

    fn of(bytes: &[u8]) -> Self {
        match bytes {
            PREFACE => Self::Http2,
            // What has ended sends no preface.
            [] => Self::Http1,
            [TLS_HANDSHAKE, ..] => Self::Tls,
            part if PREFACE.starts_with(part) => Self::Either,
            _ => Self::Http1,
        }
    }
}

pin_project! {
    /// A connection, of either protocol.
    #[project = HttpConnectionProj]
    pub(super) enum HttpConnection<S>
    where
        S: HttpService<Incoming>,
    {
        Http1 { #[pin] connection: http1::UpgradeableConnection<Io, S> },
        Http2 { #[pin] connection: http2::Connection<Io, S, TokioExecutor> },
        Either { #[pin] connection: auto::UpgradeableConnection<'static, Io, S, TokioExecutor> },
    }
}

type Io = TokioIo<ObservedIo<TcpStream>>;

impl<S, B> HttpConnection<S>
where
    S: Service<
            Request<Incoming>,
            Response = Response<B>,
            Error = Infallible,
            Future: Send + 'static,
        >,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    /// Starts a connection, whose first bytes have come.
    pub(super) fn new(
        protocols: &Protocols,
        protocol: Protocol,
        peer: SocketAddr,
        io: ObservedIo<TcpStream>,
        service: S,
    ) -> Self {
        let Protocols {
            http1,
            http2,
            either,
            ..
        } = protocols;
        if protocol == Protocol::Tls {
            protocols.warn_of_tls(peer);
        }
        let io = TokioIo::new(io);
        match protocol {
            Protocol::Http1 | Protocol::Tls => Self::Http1 {
                connection: http1.serve_connection(io, service).with_upgrades(),
            },
            Protocol::Http2 => Self::Http2 {
                connection: http2.serve_connection(io, service),
            },
            Protocol::Either => {
                let connection = either.serve_connection_with_upgrades(io, service);
                Self::Either {
                    connection: connection.into_owned(),
                }
            }
        }
    }

    /// Lets the requests that are under way finish, and takes no more.
    pub(super) fn graceful_shutdown(self: Pin<&mut Self>) {
        match self.project() {
            HttpConnectionProj::Http1 { connection } => connection.graceful_shutdown(),
            HttpConnectionProj::Http2 { connection } => connection.graceful_shutdown(),
            HttpConnectionProj::Either { connection } => connection.graceful_shutdown(),
        }
    }

    /// Serves the connection, until it is closed or upgraded.
    ///
    /// Errors are dropped: they concern the client of the connection alone.
    pub(super) fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project() {
            HttpConnectionProj::Http1 { connection } => connection.poll(cx).map(drop),
            HttpConnectionProj::Http2 { connection } => connection.poll(cx).map(drop),
            HttpConnectionProj::Either { connection } => connection.poll(cx).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_are_those_of_a_protocol() {
        assert_eq!(Protocol::of(PREFACE), Protocol::Http2);
        for part in [&PREFACE[..1], &PREFACE[..23]] {
            assert_eq!(Protocol::of(part), Protocol::Either);
        }
        for head in [
            &b""[..],
            b"POST / HTTP/1.1\r\nhost: h",
            b"PRI / HTTP/1.1\r\n",
        ] {
            assert_eq!(Protocol::of(head), Protocol::Http1);
        }
        for hello in [&b"\x16"[..], b"\x16\x03\x01"] {
            assert_eq!(Protocol::of(hello), Protocol::Tls);
        }
    }
}
