//! hyper-util's client as a Tower service, for the layers of [`tower_agent`].
//!
//! A client under layers that count attempts must not make attempts of its own, and must not serve
//! two tries of a call by the same dead connection. [`HyperService`] repeats a request in two cases
//! alone, and never after a byte that may belong to its answer; and it takes connections out of its
//! pool that have been silent for as long as a call waited for them. For programs that have a
//! reqwest client there is `tower-agent-reqwest`, which does less.
//!
//! # What is sent again
//!
//! A request is sent again at once, without counting as an attempt, and no layer sees it:
//!
//! - The peer says that it did not process the request: an HTTP/2 stream that was reset with
//!   `REFUSED_STREAM`, or one above the last id of a `GOAWAY`. The repeat takes the next connection
//!   of the pool.
//! - The connection ended, or failed by an error of I/O, within [`RESEND_WITHIN`] of the call; it
//!   had served a request before; and nothing was read on it since it got this one, on HTTP/2 not
//!   for another stream either. A timeout is no such failure. Some servers close their connections
//!   some milliseconds after an answer without saying so, and a request that is on its way then
//!   finds no reader. The repeat has a connection made for it. If that cannot be made, the call fails
//!   by the error of the first send, which says that the request may have been read.
//!
//! It goes out once more at most, and only if its body can be sent twice: a
//! [`ReplayBody`](tower_agent::ReplayBody), as the layers that repeat make one, or an empty body of
//! any type. In the second case the first request may have been processed: a server that processes
//! a request and crashes before a byte of the answer gets it twice, as by an attempt of a layer.
//! [`resends`](HyperServiceBuilder::resends) switches both off.
//!
//! One repeat of the client itself stays. A connection of the pool can turn out to be closed before
//! a byte of the request was written on it; then the next one takes the request.
//!
//! # Connections
//!
//! An HTTP/1 connection has one request at a time. On HTTP/2 the requests to an origin share one
//! connection until a hundred are under way, by default, and further ones take another: see
//! [`max_streams_per_connection`](HyperServiceBuilder::max_streams_per_connection).
//!
//! # Silence
//!
//! A connection of which nothing comes can be that of a slow model, or its peer is dead: a machine
//! that lost its power, a balancer that forgot the connection, a process that hangs while its kernel
//! acknowledges. If a call is dropped before the end of its answer, and nothing was read on its
//! connection for a while although the call waited, then that connection takes no further request.
//! Requests that are under way on it go on. While an answer waits for a slow caller, the call waits
//! for nothing.
//!
//! The while is [`SILENCE`]. It is half a second if the call's [`Run`](tower_agent::Run) was ended by
//! a [`StepTimeoutLayer`](tower_agent::StepTimeoutLayer); then all connections of the same origin on
//! which nothing was read since take no further request either, and the next try has a fresh one. A
//! caller that leaves early costs no connection.
//!
//! On HTTP/2 the service also sends PINGs, 30 s after the last byte by default, and closes the
//! connection if no answer comes within 20 s.
//!
//! # What the answer has
//!
//! The run of the request's extensions is in the answer's, and nothing else is but what an
//! [upgrade](#upgrades) needs. The answer has the
//! version HTTP/1.1, whichever the upstream spoke, and no `transfer-encoding`: both are of the
//! upstream's connection. The version of the request is dropped too: TLS negotiates HTTP/2 or
//! HTTP/1.1, and without TLS it is HTTP/1.1, or HTTP/2 with
//! [`http2_prior_knowledge`](HyperServiceBuilder::http2_prior_knowledge).
//!
//! The client follows no redirect, sends no header of its own but `host`, what frames the body and,
//! to a proxy, its credential, and decompresses nothing.
//!
//! # Upgrades
//!
//! The answer 101 to a request with an `upgrade` has what `hyper::upgrade::on` takes the connection
//! from. HTTP/2 has no upgrades: [`http1_only`](HyperServiceBuilder::http1_only) is for a service
//! that makes them. The connection of an upgrade is in no pool, and a drop of the answer, or of what
//! came of it, closes it. An `http` URI that is reached through a proxy needs one that passes upgrades
//! on.
//!
//! # Timeouts
//!
//! The service sets no limit to a call, because its timeout would count as a failure of the
//! provider; the layers have theirs. TCP keep-alive finds a peer that is gone while the connection
//! waits for it. What was sent and is never acknowledged fails when the system gives up, on Linux
//! after about 15 minutes: a peer that reads slowly keeps its connection.
//!
//! # Cancel safety
//!
//! Once the request is sent, dropping the future, or the body before its end, drops the connection
//! (HTTP/1) or resets the stream (HTTP/2).
//!
//! # Errors
//!
//! An error of the client is a [`TransportError`](tower_agent::llm::failure::TransportError),
//! without the URL, which may hold a secret. A request whose URI is not an absolute `http` or
//! `https` one, or has userinfo, fails with [`UnsupportedUri`].
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use tower::ServiceBuilder;
//! use tower_agent::StepTimeoutLayer;
//! use tower_agent_hyper::HyperService;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = ServiceBuilder::new()
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)))
//!     .service(HyperService::new()?);
//! # let _ = tower::Service::<http::Request<Full<Bytes>>>::call(&mut client.clone(), http::Request::default());
//! # Ok(())
//! # }
//! ```
//!
//! With settings:
//!
//! ```
//! use std::time::Duration;
//! use tower_agent_hyper::{HyperService, UpstreamProxy};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = HyperService::builder()
//!     .proxy(UpstreamProxy::all("http://user:password@proxy.example:3128")?)
//!     .connect_timeout(Duration::from_secs(5))
//!     .http2_keep_alive_interval(Duration::from_secs(20))
//!     .build()?;
//! # drop(client);
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
mod builder;
mod clients;
mod connection;
mod connector;
mod exchange;
mod future;
mod proxy;
mod request_body;
mod resend;
mod service;
mod uri;

/// Compiles the example of the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct ReadmeExample;

pub use self::{
    body::HyperBody,
    builder::HyperServiceBuilder,
    exchange::SILENCE,
    future::HyperFuture,
    proxy::{InvalidProxyUrl, UpstreamProxy},
    resend::RESEND_WITHIN,
    service::HyperService,
    uri::UnsupportedUri,
};
