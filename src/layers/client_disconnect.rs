//! Ends a call when its caller goes away before the answer was delivered.
//!
//! The user closes the tab, and the gateway goes on paying for tokens; worse,
//! it takes the cut for a failure, retries, and falls back to a second model,
//! for nobody. hyper drops the response future or the body within a
//! millisecond of a close or reset; this layer turns that drop into
//! [`ClientDisconnect`], stored before
//! anything inside is dropped, so that whatever runs then can read why.
//!
//! # What is counted
//!
//! A response future dropped before it was ready, or a body dropped before it
//! was complete, while no reason is stored. Complete is a body that ended or
//! says that it has, of which all announced bytes were handed over, to which
//! there is nothing (HEAD, 204, 304), or whose dialect's terminator was handed
//! over. A server is free to drop those without asking for their end.
//!
//! A drop proves nothing about the client: an aborted server task looks the
//! same. Whoever else drops must store its reason first, with
//! [`Run::end`].
//!
//! # What cannot be seen
//!
//! With HTTP/1, a byte that the client pipelined, or a request body that was
//! not read to its end, hides the close until a write fails. Read request
//! bodies up front, and have a [`HardCeilingLayer`](crate::HardCeilingLayer).
//!
//! # Same instant
//!
//! A reason that is stored already stays; the drop is not even noted.
//!
//! # Order
//!
//! Outside of retry and fallback layers. With a
//! [`PumpLayer`](crate::PumpLayer) further out the pump sees the drop, and this
//! layer adds nothing; it does no harm. Outside of one that
//! [drains](crate::PumpLayer::drain) it sees the drop first, and cancels.
//!
//! # Cancel safety
//!
//! That is what it is about: a drop ends the found node, or with
//! [`scope`](ClientDisconnectLayer::scope) its run, and drops what is inside.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Service, ServiceBuilder, service_fn};
//! use tower_agent::{ClientDisconnectLayer, Run, TerminalReason};
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(ClientDisconnectLayer::new())
//!     .service(service_fn(|_: Request<()>| {
//!         std::future::pending::<Result<Response<Full<Bytes>>, std::io::Error>>()
//!     }));
//!
//! let run = Run::open();
//! let request = run.attach(Request::new(()));
//! let call = request.extensions().get::<Run>().unwrap().clone();
//! drop(service.call(request));
//!
//! assert_eq!(call.terminal_reason(), Some(TerminalReason::ClientDisconnect));
//! assert_eq!(run.terminal_reason(), None, "the run may have other calls");
//! # }
//! ```
//!
//! The run is nothing without this caller:
//!
//! ```
//! use tower_agent::{ClientDisconnectLayer, Scope};
//!
//! let layer = ClientDisconnectLayer::new().scope(Scope::Run);
//! ```

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    error::BoxError,
    run::{Run, Scope, TerminalReason},
    supervise::{Claim, Policy, SupervisedBody, SupervisedFuture},
};

/// Ends a call when its caller goes away: see the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientDisconnectLayer {
    scope: Scope,
}

impl ClientDisconnectLayer {
    /// Ends the node that is found in the request.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            scope: Scope::Found,
        }
    }

    /// Which node is ended. By default the one found.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}

impl<S> Layer<S> for ClientDisconnectLayer {
    type Service = ClientDisconnect<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ClientDisconnect::new(inner, self.scope)
    }
}

/// The service of a [`ClientDisconnectLayer`].
#[derive(Clone, Copy, Debug)]
pub struct ClientDisconnect<S> {
    inner: S,
    scope: Scope,
}

impl<S> ClientDisconnect<S> {
    const fn new(inner: S, scope: Scope) -> Self {
        Self { inner, scope }
    }
}

/// The response future of [`ClientDisconnect`].
pub type ClientDisconnectFuture<F> = SupervisedFuture<F, DropPolicy>;

/// The response body of [`ClientDisconnect`].
pub type ClientDisconnectBody<B> = SupervisedBody<B, DropPolicy>;

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for ClientDisconnect<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ClientDisconnectBody<ResBody>>;
    type Error = BoxError;
    type Future = ClientDisconnectFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let entry = Claim::of(&mut request);
        let policy = DropPolicy::new(self.scope);
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}

/// Turns a drop into a reason.
#[derive(Debug)]
#[doc(hidden)]
pub struct DropPolicy {
    scope: Scope,
}

impl DropPolicy {
    pub(crate) const fn new(scope: Scope) -> Self {
        Self { scope }
    }
}

impl Policy for DropPolicy {
    const READS: bool = true;

    fn dropped(&mut self, found: &Run) {
        // Dropped because it was over: nobody learns anything from that.
        if found.terminal_reason().is_none() {
            let target = found.in_scope(self.scope);
            drop(target.end(TerminalReason::ClientDisconnect, None, found.now()));
        }
    }
}
