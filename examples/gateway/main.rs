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

mod access;
mod args;
mod candidates;
mod config;
mod control;
mod embedded;
mod events;
mod host;
mod metrics;
mod records;
mod routes;
mod server;
mod stack;
mod upload;
mod upstream;

use std::{io::IsTerminal, pin::pin, process::ExitCode, time::Duration};

use tokio::{net::TcpListener, signal::unix, sync::watch};
use tower_agent::{BoxError, RunRegistry, Trajectory};

use self::{
    args::Args, config::Config, events::Events, metrics::Metrics, records::Records,
    routes::Watched, stack::Gateway,
};

/// How long connections have to close after a signal to stop.
const GRACE: Duration = Duration::from_secs(5);

/// How long the last records have to be written to a reader who is slow.
const LAST_LINES: Duration = Duration::from_secs(1);

/// SIGTERM and Ctrl-C.
struct Signals {
    term: unix::Signal,
    interrupt: unix::Signal,
}

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
    if !args.listen.ip().is_loopback() && config.auth.is_none() {
        return Err(format!(
            "refusing to listen on {}: without [auth] it serves loopback only",
            args.listen
        )
        .into());
    }
    // Several providers may be linked in; the example needs one chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let records = Records::new(std::io::stdout())?;
    let registry = RunRegistry::new().trajectory(&Trajectory::new(records.clone()));
    let names = config.candidates.iter().map(|it| it.name.clone());
    let metrics = Metrics::new(names);
    count(&metrics, &registry);
    let gateway = Gateway::new(&config, registry.clone(), metrics.clone())?;
    let (stopping, stopped) = watch::channel(false);
    let watched = Watched {
        events: Events::new(registry.clone(), stopped.clone()),
        registry: registry.clone(),
        metrics,
    };
    let app = routes::app(gateway, watched, &config);

    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let address = listener.local_addr()?;
    // Before anybody can know that there is somebody to stop.
    let mut signals = Signals::new()?;
    println!("listening on http://{address}");
    if let Some(upstream) = embedded {
        embedded::greet(address, upstream);
    }
    let stop = {
        let registry = registry.clone();
        async move {
            signals.next().await;
            if let Some(limit) = config.shutdown_drain {
                let drained = pin!(registry.drain(limit));
                let again = pin!(signals.next());
                // Whoever says it twice does not want to wait.
                let _ = futures_util::future::select(drained, again).await;
            }
            // Streams that are under way learn why, and so does whoever retries.
            registry.shutdown();
            stopping.send_replace(true);
        }
    };
    let served = server::serve(listener, app, config.server, stop);
    let grace = async {
        let mut stopped = stopped;
        let _ = stopped.wait_for(|stopping| *stopping).await;
        tokio::time::sleep(GRACE).await;
        // Whatever began while connections were being closed.
        registry.shutdown();
    };
    let (served, grace) = (pin!(served), pin!(grace));
    futures_util::future::select(served, grace).await;
    records.written(LAST_LINES);
    Ok(())
}

/// Has somebody count how runs end, while there are any.
#[allow(
    clippy::disallowed_methods,
    reason = "it lives as long as the process, beside all requests"
)]
fn count(metrics: &Metrics, registry: &RunRegistry) {
    drop(tokio::spawn(metrics.clone().watch(registry.subscribe())));
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let term = unix::signal(unix::SignalKind::terminate())?;
        let interrupt = unix::signal(unix::SignalKind::interrupt())?;
        Ok(Self { term, interrupt })
    }

    async fn next(&mut self) {
        let (term, interrupt) = (pin!(self.term.recv()), pin!(self.interrupt.recv()));
        let _ = futures_util::future::select(term, interrupt).await;
    }
}
