//! An axum server that forwards agents' requests to a model server, with limits and a fallback.
//!
//! ```text
//! cargo run --all-features --example axum_server -- http://127.0.0.1:8000/v1
//! ```

use axum::Router;
use std::time::Duration;
use tower_agent::*;
use tower_agent_reqwest::ReqwestService;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt::init(); // Why each call ended is in the log.
    // reqwest's default features bring a provider along; those of this repository do not.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let upstream = std::env::args().nth(1).ok_or("give the upstream's URL")?;
    let model = |name| Candidate::new(name).base_url(&*upstream);
    let stack = AgentStack::server(&RunRegistry::new())
        .ceiling(Duration::from_secs(1800))
        .fallback([model("large")?, model("small")?])
        .retry(RetryBudget::new())
        .step(Duration::from_secs(120))
        .service(ReqwestService::new(reqwest::Client::builder())?);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, Router::new().fallback_service(stack)).await?;
    Ok(())
}
