//! The same server without axum: hyper serves the stack, over HTTP/1.1 and HTTP/2.
//!
//! ```text
//! cargo run --all-features --example hyper_server -- http://127.0.0.1:8000/v1
//! ```
#![allow(clippy::disallowed_methods, reason = "one task per connection")]

use hyper_util::{rt, server::conn::auto::Builder, service::TowerToHyperService};
use std::time::Duration;
use tower_agent::*;
use tower_agent_reqwest::ReqwestService;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt::init(); // Why each call ended is in the log.
    // reqwest's default features bring a provider along; those of this repository do not.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let upstream = std::env::args().nth(1).ok_or("give the upstream's URL")?;
    let stack = AgentStack::server(&RunRegistry::new())
        .ceiling(Duration::from_secs(1800))
        .fallback([Candidate::new("large").base_url(&*upstream)?])
        .retry(RetryBudget::new())
        .step(Duration::from_secs(120))
        .service(ReqwestService::new(reqwest::Client::builder())?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let socket = rt::TokioIo::new(listener.accept().await?.0);
        let service = TowerToHyperService::new(stack.clone());
        tokio::spawn(async move {
            let server = Builder::new(rt::TokioExecutor::new());
            server.serve_connection(socket, service).await
        });
    }
}
