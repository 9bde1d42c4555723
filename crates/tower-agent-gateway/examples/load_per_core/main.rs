//! The bare pass-through of `benches/load.py` on the gateway's allocator and threads: each thread has
//! its own connections, timers and client.
//!
//! ```text
//! cargo run --release -p tower-agent-gateway --example load_per_core -- 127.0.0.1:PORT
//! ```

#![allow(clippy::disallowed_methods, reason = "a task for each connection")]

#[path = "../load/passthrough.rs"]
mod passthrough;

use std::{net::SocketAddr, thread};

use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, rt::TokioTimer, service::TowerToHyperService};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};
use tower_agent::BoxError;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let upstream = std::env::args().nth(1);
    let upstream = upstream.ok_or("usage: load_per_core ADDRESS")?.parse()?;
    let count = thread::available_parallelism()?.get();
    let threads: Vec<_> = (0..count).map(|_| start(upstream)).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on http://{}", listener.local_addr()?);
    for thread in (0..count).cycle() {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        threads[thread].send(stream.into_std()?)?;
    }
    Ok(())
}

/// Starts a thread that serves the connections that it gets.
fn start(upstream: SocketAddr) -> UnboundedSender<std::net::TcpStream> {
    let (sender, connections) = unbounded_channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime
            .map_err(BoxError::from)
            .and_then(|runtime| runtime.block_on(serve(upstream, connections)))
            .expect("the thread serves its connections");
    });
    sender
}

async fn serve(
    upstream: SocketAddr,
    mut connections: UnboundedReceiver<std::net::TcpStream>,
) -> Result<(), BoxError> {
    let service = TowerToHyperService::new(passthrough::app(upstream)?);
    while let Some(stream) = connections.recv().await {
        let io = TokioIo::new(tokio::net::TcpStream::from_std(stream)?);
        let mut server = http1::Builder::new();
        let connection = server
            .timer(TokioTimer::new())
            .serve_connection(io, service.clone());
        tokio::spawn(async move {
            // A client that leaves is no fault of the server.
            let _ = connection.await;
        });
    }
    Ok(())
}
