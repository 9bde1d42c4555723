//! An axum server of which several processes share their runs: an abort at one ends the run at all.
//!
//! ```text
//! redis-server --port 6379 &
//! export REDIS_URL=redis://127.0.0.1:6379 REPLICA_SECRET=$(openssl rand -hex 32)
//! cargo run -p tower-agent-redis --example two_servers -- 127.0.0.1:3001 &
//! cargo run -p tower-agent-redis --example two_servers -- 127.0.0.1:3002 &
//!
//! curl -N http://127.0.0.1:3001/v1/chat/completions -H 'x-run-id: nightly' \
//!     -d '{"model":"sim-slow","stream":true,"messages":[]}' &
//! curl -X POST http://127.0.0.1:3002/runs/nightly/abort
//! ```

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, Uri},
    routing::post,
};
use tokio::net::TcpListener;
use tower_agent::{
    AgentStack, BoxError, Candidate, Owner, RunId, RunRegistry,
    registry::{AbortOutcome, SharedSecret},
};
use tower_agent_hyper::HyperService;
use tower_agent_redis::{RedisOptions, RedisRunStore};

/// The turns of a run, over all processes.
const MAX_TURNS: u32 = 30;

/// Serves until the process ends, with a simulated model.
#[allow(
    clippy::disallowed_methods,
    reason = "a task of the process, off the request path"
)]
pub(crate) async fn serve(
    listener: TcpListener,
    url: &str,
    secret: &str,
    wait: std::time::Duration,
) -> Result<(), BoxError> {
    // First of all: owners and candidates are digests by the secret.
    let secret = SharedSecret::new(secret.as_bytes())?;
    let store = RedisRunStore::connect(url, &secret, RedisOptions::new()).await?;
    let registry = RunRegistry::new().share(store);
    let listening = tokio::spawn(registry.listen());

    let model: Uri = format!("http://{}/v1", tower_agent_simulator::spawn().await?).parse()?;
    let candidates =
        ["sim-slow", "sim-healthy"].map(|name| Candidate::new(name).base_url(model.clone()));
    let candidates = candidates.into_iter().collect::<Result<Vec<_>, _>>()?;
    let stack = AgentStack::server(&registry)
        .run_store(|store| store.wait(wait))
        .max_turns(MAX_TURNS)
        .fallback(candidates)
        .service(HyperService::new()?);

    println!("listening on http://{}", listener.local_addr()?);
    let app = Router::new()
        .route("/runs/{id}/abort", post(abort))
        .with_state(registry)
        .fallback_service(stack);
    axum::serve(listener, app).await?;
    listening.abort();
    Ok(())
}

/// Ends the caller's run of this id, wherever it is.
async fn abort(
    State(registry): State<RunRegistry>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<&'static str>, StatusCode> {
    let id: RunId = id.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
    Ok(Json(
        match registry.abort(Owner::of_headers(&headers), &id) {
            AbortOutcome::Ended => "ended here",
            AbortOutcome::AlreadyOver => "over before",
            AbortOutcome::Told => "told the others",
            AbortOutcome::Unknown => return Err(StatusCode::NOT_FOUND),
        },
    ))
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let address = std::env::args()
        .nth(1)
        .ok_or("give an address, such as 127.0.0.1:3001")?;
    let [url, secret] = ["REDIS_URL", "REPLICA_SECRET"].map(std::env::var);
    let listener = TcpListener::bind(address).await?;
    serve(
        listener,
        &url?,
        &secret?,
        std::time::Duration::from_millis(50),
    )
    .await
}
