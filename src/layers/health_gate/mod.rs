//! Makes calls wait while the upstream restarts, until a probe finds it healthy.
//!
//! A local model server restarts, swaps its model, or is killed for lack of memory, and is back
//! within a minute. Meanwhile each call of each agent fails at once: the retries are used up in
//! seconds, the candidate cools down for minutes, and half an hour's work is lost to forty-five
//! seconds. This layer recognizes the two failures that mean "not yet", holds the call, and
//! probes the upstream instead of repeating every call.
//!
//! # What is waited for
//!
//! A call waits after a [refused](crate::llm::failure::TransportError::is_refused)
//! connection, and after an answer that is classified as
//! [`NotReady`](crate::llm::failure::FailureClass::NotReady), such as llama.cpp's 503
//! while it loads; a [`classifier`](HealthGateLayer::classifier) adds a proxy's own
//! messages. In both cases the request has not reached the model. After any other failure the
//! call does not wait: a request that broke after it was sent may have been served, and its
//! failure goes to the retry layers. To classify a failed answer the layer reads up to 64 KiB of
//! its body for up to one second; it returns any other failure unchanged.
//!
//! While a call waits, the gate is closed: new calls to the upstream wait, too. A waiting or silent
//! call runs the probe in its own polls. By default a probe starts [every](HealthGateLayer::every)
//! five seconds, for a waiting call the first after five seconds at the latest. If the call that
//! probes is dropped, or is not polled in time, another call takes over.
//!
//! When a probe succeeds, all waiting calls are sent, with the same request, on the same node:
//! there is no new attempt, no budget is charged, and no cooldown begins. When the last waiting
//! call is dropped or stops waiting, the gate opens again, and the next call is sent at once.
//!
//! A probe may succeed although the model is dead. A call that has failed three times, each time
//! after a successful probe, stops waiting: its failure goes to the retries and candidates
//! further out.
//!
//! # When the clock runs
//!
//! A wait at the gate is a [`pause`](crate::Run::pause): step windows stand still, ceilings and the
//! caller's deadlines do not. The step windows of the run above the call stand still too: while one
//! call waits here, the run's window does not notice the silence of a sibling or of the run itself.
//! The upload of a request is also a pause, bounded only by ceilings and the caller's deadlines.
//!
//! [`patience`](HealthGateLayer::patience) also bounds the wait at the gate; when it is used up,
//! the call returns its failure unchanged, or is sent once if it was never sent.
//!
//! With [`watch_silence`](HealthGateLayer::watch_silence) the layer also probes the upstream of a
//! call or body that has been silent for a while, in the polls of that call. Two failed probes in
//! a row end the node as [`StepTimeout`](crate::TerminalReason::StepTimeout). So this layer lets a
//! slow but healthy model work on, and detects a dead one behind an open connection.
//!
//! # Same instant
//!
//! A stored reason wins, then a ready answer or frame, then a deadline, then the health
//! of the upstream, then the end of patience.
//!
//! # Order
//!
//! This layer is the innermost, around the transport, inside of
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer) and
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer): the time share that the fallback gives an
//! attempt then also bounds the wait. A gate watches one upstream. If calls go to several, name
//! the upstream with [`upstream`](HealthGateLayer::upstream), and give each local one a gate of
//! its own. The layer also works without other layers. Services made by one layer share its
//! state.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the call, the wait and the probe in progress; another
//! waiting or silent call then starts a new probe. The poll that notices the end of the node does
//! the same.
//!
//! # Panics
//!
//! Polling panics outside of a tokio runtime with its timer enabled, as soon as the
//! layer sets a timer.
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
//! A gate for a llama.cpp server beside other candidates. An HTTP client sends the probes, while
//! the server restarts and while a call is silent:
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
mod held_call;
mod layer;
mod probe_schedule;
mod silence;

pub use self::layer::{HealthGate, HealthGateBody, HealthGateFuture, HealthGateLayer, HttpProbe};
