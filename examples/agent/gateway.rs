//! A gateway of a few lines, in this process, with a simulated model behind it.

use std::{io::Write, net::Ipv4Addr, time::Duration};

use axum::{Router, body::Body, serve::ListenerExt};
use http::Uri;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower_agent::{
    BoxError, Candidate, HardCeilingLayer, LoopGuardLayer, ModelFallbackLayer, PumpLayer, RunLayer,
    RunRegistry, Scope, StepTimeoutLayer, TerminalResponseLayer, Trajectory, TurnCapLayer,
};
use tower_agent_reqwest::ReqwestService;

use crate::{AGENT, POLLING, SILENCE};

/// How many turns a run may have.
const MAX_TURNS: u32 = 12;

/// Serves on a free port, until the process ends; answers where.
pub(crate) async fn start() -> Result<String, BoxError> {
    let behind = tower_agent_simulator::spawn().await?;
    let base_url: Uri = format!("http://{behind}/v1").parse()?;
    let candidates = [AGENT, POLLING]
        .into_iter()
        .map(|model| Candidate::new(model).base_url(base_url.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    let registry = RunRegistry::new().trajectory(&Trajectory::new(Record));
    let stack = ServiceBuilder::new()
        .map_response(|answer: http::Response<_>| answer.map(Body::new))
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(registry))
        .layer(PumpLayer::new())
        .layer(HardCeilingLayer::new(Duration::from_secs(300)).scope(Scope::Run))
        .layer(TurnCapLayer::new(MAX_TURNS))
        .layer(LoopGuardLayer::new().observe())
        .layer(ModelFallbackLayer::new(candidates))
        .layer(StepTimeoutLayer::new(SILENCE))
        .service(ReqwestService::new(reqwest::Client::builder())?);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let app = Router::new().fallback_service(stack);
    #[expect(
        clippy::disallowed_methods,
        reason = "a server of its own, off the request path"
    )]
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(format!("http://{address}"))
}

/// Prints what the harness did, a line of JSON each.
#[derive(Debug)]
struct Record;

impl Write for Record {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        print!("record: {}", String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush()
    }
}
