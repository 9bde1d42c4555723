//! Lets calls wait while the upstream restarts, and makes them once it is healthy.
//!
//! A local model server is restarted, swaps its model, or is killed for want of
//! memory, and is back within a minute. Meanwhile each call of each agent is
//! refused at once: the retries are spent in seconds, the candidate is cooled for
//! minutes, and a turn of half an hour's work is lost to forty-five seconds. The
//! gate knows the two failures that say "not yet", keeps the call, and asks after
//! the upstream instead of knocking with every call.
//!
//! # What is waited for
//!
//! A connection that was [refused](crate::llm::failure::TransportError::is_refused),
//! and an answer that is judged
//! [`NotReady`](crate::llm::failure::FailureClass::NotReady), such as llama.cpp's 503
//! while it loads; a [`judgement`](HealthGateLayer::judgement) adds a proxy's own
//! words. In both the request has not reached the model. Nothing else is waited
//! for: what broke after it was sent may have been served, and is the affair of a
//! retry. A failed answer is read for that, up to 64 KiB or one second, and handed
//! on unchanged if it is another.
//!
//! The gate then closes for all calls through it. One of them asks the probe,
//! [every](HealthGateLayer::every) five seconds and first after that time, in its
//! own polls; if it leaves, or is not polled when it should be, another takes its
//! turn. When a probe says healthy all calls are made, with the same request, on
//! the same node: no attempt is counted, no budget pays, no cooldown hears of it.
//! When the last who waits has left nothing is known any more, and the next call
//! is made at once.
//!
//! A probe may be green in front of a model that is dead. A call that failed three
//! times right after a healthy probe waits no more: its failure is handed on, to the
//! retries and candidates further out.
//!
//! # When the clock runs
//!
//! The wait is a [`pause`](crate::Run::pause): step windows stand, ceilings and
//! the caller's deadlines do not. So do the step windows of the run above the call:
//! while one call waits here, the silence of a sibling is not seen by the run's
//! window, nor a silence of the run itself. The upload of a request is a pause too,
//! and only ceilings and the caller's deadlines bound it. [`patience`](HealthGateLayer::patience) bounds
//! it further; the failure is then handed on as it was.
//!
//! With [`watch_silence`](HealthGateLayer::watch_silence) the probe is also asked
//! beside a call or a body of which nothing came for a while, in the polls that
//! wait for it: two failed probes in a row end the node as
//! [`StepTimeout`](crate::TerminalReason::StepTimeout). So a model that is slow
//! and well is let alone, however slow, and one that is dead behind an open
//! connection is found.
//!
//! # Same instant
//!
//! A stored reason, then an answer or a frame that is ready, then a deadline,
//! then the health of the upstream, then the end of patience.
//!
//! # Order
//!
//! Innermost, around the transport, inside of
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer) and
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer), whose share of the time
//! still bounds the wait. A layer is about one upstream: where calls go to several
//! say which by [`upstream`](HealthGateLayer::upstream), and give each local one a
//! gate of its own. It works alone too. Services that one layer made share what
//! they know.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the call, the wait and the probe that is
//! under way; another call begins a new one. The end of the node does the same, in
//! the same poll.
//!
//! # Panics
//!
//! Polling panics outside of a tokio runtime with its timer enabled, once
//! something is waited for.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! use std::{io, time::Duration};
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tokio::time::Instant;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{HealthGateLayer, ReplayBody};
//!
//! let start = Instant::now();
//! let is_up = move || start.elapsed() >= Duration::from_secs(45);
//! let model = ServiceBuilder::new()
//!     .layer(HealthGateLayer::new(service_fn(move |()| async move {
//!         Ok::<_, io::Error>(is_up())
//!     })))
//!     .service(service_fn(move |_: Request<ReplayBody>| async move {
//!         match is_up() {
//!             true => Ok(Response::new(Full::new(Bytes::from("42")))),
//!             false => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
//!         }
//!     }));
//!
//! model.oneshot(Request::new(ReplayBody::from("6 * 7"))).await.unwrap();
//! assert_eq!(start.elapsed(), Duration::from_secs(45));
//! # }
//! ```
//!
//! A llama.cpp beside other candidates, asked over HTTP with the client that calls
//! it, and also while it is silent:
//!
//! ```
//! use std::time::Duration;
//! use http::{Uri, uri::Authority};
//! use tower_agent::HealthGateLayer;
//!
//! # fn gate<C>(client: C) -> HealthGateLayer<tower_agent::layers::health_gate::HttpProbe<C>> {
//! HealthGateLayer::get(client, Uri::from_static("http://127.0.0.1:8080/health"))
//!     .upstream(Authority::from_static("127.0.0.1:8080"))
//!     .patience(Duration::from_secs(300))
//!     .watch_silence(Duration::from_secs(20))
//! # }
//! ```

mod body;
mod gate;
mod layer;
mod passage;
mod policy;
mod probe;
mod reading;
mod rounds;
mod seat;
mod service;
mod silence;
mod trip;

pub use self::{
    layer::HealthGateLayer,
    probe::{HttpProbe, HttpProbeFuture},
    service::{HealthGate, HealthGateBody, HealthGateFuture},
};
