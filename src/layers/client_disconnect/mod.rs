//! Ends a call when its caller goes away before the answer was delivered.
//!
//! The user closes the tab, and the gateway goes on paying for tokens; worse,
//! it takes the cut for a failure, retries, and falls back to a second model,
//! for nobody. hyper drops the response future or the body within a
//! millisecond of a close or reset; this layer turns that drop into
//! [`ClientDisconnect`](crate::TerminalReason::ClientDisconnect), stored before
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
//! [`Run::end`](crate::Run::end).
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

mod layer;
mod policy;
mod service;

pub use self::{
    layer::ClientDisconnectLayer,
    service::{ClientDisconnect, ClientDisconnectBody, ClientDisconnectFuture},
};

pub(crate) use self::policy::DropPolicy;
