//! A gateway for OpenAI- and Anthropic-compatible clients, made of this crate's
//! public API alone.
//!
//! ```text
//! cargo run --all-features --example gateway
//! cargo run --all-features --example gateway -- --config FILE --listen 127.0.0.1:8787
//! ```
//!
//! Without a configuration it starts a simulated upstream of its own, so that
//! any SDK can be pointed at it without a network or a key.

mod args;
mod candidates;
mod config;
mod control;
mod embedded;
mod routes;
mod stack;
mod upload;
mod upstream;

use std::{io::IsTerminal, pin::pin, process::ExitCode, sync::Arc, time::Duration};

use axum::serve::ListenerExt;
use tokio::{net::TcpListener, signal::unix, sync::Notify};
use tower_agent::{BoxError, RunRegistry};

use self::{args::Args, config::Config};

/// How long connections have to close after a signal to stop.
const GRACE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // What reads a pipe wants words, not colours.
        .with_ansi(std::io::stderr().is_terminal())
        .with_max_level(tracing::Level::INFO)
        .init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut line = format!("gateway: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                line = format!("{line}: {error}");
                cause = error.source();
            }
            eprintln!("{line}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let Some(args) = Args::parse(std::env::args().skip(1))? else {
        println!("{}", args::USAGE);
        return Ok(());
    };
    let (config, embedded) = match &args.config {
        Some(path) => (Config::load(path)?, None),
        None => {
            let upstream = upstream::spawn(upstream::Delays::default()).await?;
            (embedded::config(upstream)?, Some(upstream))
        }
    };
    if !args.listen.ip().is_loopback() {
        return Err(format!(
            "refusing to listen on {}: this version has no [auth], so it serves loopback only",
            args.listen
        )
        .into());
    }
    // Several providers may be linked in; the example needs one chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let registry = RunRegistry::new();
    let gateway = stack::gateway(&config, registry.clone())?;
    let control = control::Control::new(registry.clone(), config.control_token.clone());
    let app = routes::app(gateway, control, &config.candidates);

    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let address = listener.local_addr()?;
    // Before anybody can know that there is somebody to stop.
    let terminated = terminated()?;
    println!("listening on http://{address}");
    if let Some(upstream) = embedded {
        embedded::greet(address, upstream);
    }
    // Small frames must not wait for one another.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    let stopping = Arc::new(Notify::new());
    let stop = {
        let (stopping, registry) = (Arc::clone(&stopping), registry.clone());
        async move {
            terminated.await;
            // Streams that are under way learn why, and so does whoever retries.
            registry.shutdown();
            stopping.notify_one();
        }
    };
    let served = async {
        axum::serve(listener, app)
            .with_graceful_shutdown(stop)
            .await
    };
    let grace = async {
        stopping.notified().await;
        tokio::time::sleep(GRACE).await;
        // Whatever began while connections were being closed.
        registry.shutdown();
        Ok(())
    };
    let (served, grace) = (pin!(served), pin!(grace));
    let ended: std::io::Result<()> = futures_util::future::select(served, grace)
        .await
        .factor_first()
        .0;
    Ok(ended?)
}

/// Resolves at SIGTERM or Ctrl-C.
fn terminated() -> std::io::Result<impl Future<Output = ()>> {
    let mut term = unix::signal(unix::SignalKind::terminate())?;
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    Ok(async move {
        std::future::poll_fn(|cx| {
            if term.poll_recv(cx).is_ready() || interrupt.poll_recv(cx).is_ready() {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    })
}
