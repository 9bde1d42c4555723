//! Ends a call when its caller disconnects before the complete answer is delivered.
//!
//! A user closes the tab, and a gateway without this layer goes on paying for tokens. Worse, it
//! takes the disconnect for a failure, retries, and falls back to a second model, though no caller
//! waits. hyper drops the response future or the body when it notices a close or reset, mostly
//! within a millisecond. At that drop this layer stores
//! [`ClientDisconnect`](crate::TerminalReason::ClientDisconnect) as the reason of the call, before
//! it drops the inner future or body, so that the `Drop` code of these can read the reason.
//!
//! # What is counted
//!
//! The layer takes for a disconnect the drop of a response future that was not ready, or of a
//! body that was not complete, if no reason is stored yet. A server may drop a complete body
//! without a poll for its end, so that drop is not a disconnect. A body is complete if
//!
//! - it returned `None` or an error, or its `is_end_stream` is true,
//! - the caller got the trailers, or as many bytes as the answer announced,
//! - the answer has no body (HEAD, 204, 304), or
//! - the caller got the terminator of the stream's dialect, or the upstream's own error event.
//!
//! The layer does not know why a future or body is dropped: the drop by an aborted server task is a
//! disconnect, too. Code that drops the future for another reason must store that reason first,
//! with [`Run::end`](crate::Run::end). A panic of the service, caught outside or not, and a drop by the
//! unwinding of another one are no disconnects: the node ends as
//! [`Aborted`](crate::TerminalReason::Aborted).
//!
//! # What cannot be seen
//!
//! With HTTP/1, hyper does not notice a close before a write fails, if the client pipelined a
//! byte or the request body was not read to its end. Read request bodies up front, and add a
//! [`HardCeilingLayer`](crate::HardCeilingLayer).
//!
//! # Same instant
//!
//! A reason that is stored before the drop stays. A deadline that has passed, but that no poll or
//! check has noticed before the drop, loses to the disconnect.
//!
//! # Order
//!
//! This layer belongs outside of retry and fallback layers. Inside of a
//! [`PumpLayer`](crate::PumpLayer) it is not needed, because the pump itself ends or drains the
//! call when the caller drops it. Outside of a pump that [drains](crate::PumpLayer::drain) this
//! layer ends the call at once, so the pump drains nothing.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. A drop before the answer is complete also
//! ends the node in the request, or with [`scope`](ClientDisconnectLayer::scope) the node's run.
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
//! Ends the whole run, for a run that is useless without this caller:
//!
//! ```
//! use tower_agent::{ClientDisconnectLayer, Scope};
//!
//! let layer = ClientDisconnectLayer::new().scope(Scope::Run);
//! ```

use http::Request;
use tower_layer::Layer;

use crate::{
    run::Scope,
    supervise::{Claim, LayerSettings, SupervisedFuture, SupervisedService, SupervisesCalls},
};

/// Ends a call when its caller disconnects: see the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientDisconnectLayer {
    scope: Scope,
}

impl ClientDisconnectLayer {
    /// Makes a layer that ends the node found in the request when the caller disconnects.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            scope: Scope::Found,
        }
    }

    /// The node that a disconnect ends; by default the one found in the request.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}

impl<S> Layer<S> for ClientDisconnectLayer {
    type Service = ClientDisconnect<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SupervisedService::new(inner, *self)
    }
}

/// The service of a [`ClientDisconnectLayer`].
pub type ClientDisconnect<S> = SupervisedService<S, ClientDisconnectLayer>;

impl SupervisesCalls for ClientDisconnectLayer {
    #[inline]
    fn supervise<B, F>(
        &self,
        mut request: Request<B>,
        inner: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        let entry = Claim::of(&mut request);
        let settings = LayerSettings::disconnect(self.scope).reading();
        SupervisedFuture::new(entry, settings, request, inner)
    }
}
