//! Adapters for web frameworks, each behind a feature of its name.
//!
//! Those for client libraries are crates of their own, `tower-agent-reqwest` and `tower-agent-hyper`.
//! With both kinds a handler calls a model under the run of its own request, so that
//! the end of the run ends that call as well.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! # let _ = rustls::crypto::ring::default_provider().install_default();
//! use std::time::Duration;
//! use axum::{Router, body::Body, routing::post};
//! use bytes::Bytes;
//! use http::{Request, StatusCode};
//! use http_body_util::{BodyExt, Full};
//! use tower::{ServiceBuilder, ServiceExt};
//! use tower_agent::{
//!     Run, RunLayer, RunRegistry, StepTimeoutLayer, TerminalResponseLayer,
//!
//! };
//! use tower_agent_reqwest::ReqwestService;
//!
//! # let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let url = format!("http://{}/v1/chat/completions", listener.local_addr()?);
//! # let upstream = Router::new().route("/v1/chat/completions", post(|said: String| async { said }));
//! # tokio::spawn(async move { axum::serve(listener, upstream).await });
//! let client = ServiceBuilder::new()
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)))
//!     .service(ReqwestService::new(reqwest::Client::builder())?);
//! let ask = move |run: Run| async move {
//!     let request = Request::post(url).body(Full::<Bytes>::from("a prompt")).unwrap();
//!     let answer = client.oneshot(run.attach(request)).await;
//!     let body = answer.map_err(|_| StatusCode::BAD_GATEWAY)?.into_body();
//!     Ok::<_, StatusCode>(Body::new(body))
//! };
//! let app: Router = Router::new()
//!     .route("/", post(ask))
//!     .layer(
//!         ServiceBuilder::new()
//!             .layer(TerminalResponseLayer::new())
//!             .layer(RunLayer::new(RunRegistry::new())),
//!     );
//!
//! let request = Request::post("/").header("x-run-id", "r-1").body(Body::empty())?;
//! let answer = app.oneshot(request).await?;
//!
//! assert_eq!((answer.status(), &answer.headers()["x-run-id"]), (StatusCode::OK, &"r-1".parse()?));
//! assert_eq!(answer.into_body().collect().await?.to_bytes(), "a prompt");
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub mod axum;
