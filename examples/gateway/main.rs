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
mod config;
mod control;
mod forward;
mod routes;
mod stack;
mod upstream;

use std::{net::SocketAddr, pin::pin, process::ExitCode, sync::Arc, time::Duration};

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
        .with_max_level(tracing::Level::WARN)
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
    let embedded = args.config.is_none();
    let config = match &args.config {
        Some(path) => Config::load(path)?,
        None => embedded_config().await?,
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
    let models = if embedded {
        upstream::behaviour::MODELS
            .iter()
            .map(|name| simulated(name))
            .collect()
    } else {
        vec![routes::Model {
            name: config.candidate.name.clone(),
            model: config.candidate.model.clone(),
            context_window: config.candidate.context_window,
        }]
    };
    let registry = RunRegistry::new();
    let gateway = stack::gateway(&config, registry.clone())?;
    let control = control::Control::new(registry.clone(), config.control_token.clone());
    let app = routes::app(gateway, control, &models);

    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let address = listener.local_addr()?;
    // Before anybody can know that there is somebody to stop.
    let terminated = terminated()?;
    println!("listening on http://{address}");
    if embedded {
        greet(address);
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

/// Short limits, in front of a simulated upstream, to see every end in seconds.
async fn embedded_config() -> Result<Config, BoxError> {
    let upstream = upstream::spawn(upstream::Delays::default()).await?;
    let text = format!(
        "[attempt]\n\
         step_timeout = \"2s\"\n\
         first_token_timeout = \"5s\"\n\
         [run]\n\
         max_turn_time = \"5m\"\n\
         [[candidates]]\n\
         model = \"{}\"\n\
         base_url = \"http://{upstream}/v1\"\n",
        upstream::behaviour::HEALTHY,
    );
    Ok(Config::parse(&text, "the embedded configuration")?)
}

fn simulated(name: &str) -> routes::Model {
    routes::Model {
        name: name.to_owned(),
        model: name.to_owned(),
        context_window: None,
    }
}

fn greet(address: SocketAddr) {
    let models = upstream::behaviour::MODELS.join(", ");
    println!(
        "\nIn front of a simulated upstream, whose models are\n  {models}\n\n\
         Try:\n\n  \
         curl -N http://{address}/v1/chat/completions -H 'content-type: application/json' \\\n    \
         -d '{{\"model\":\"sim-stall-stream\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}'\n  \
         curl http://{address}/runs\n\n\
         Or with any SDK:\n\n  \
         export OPENAI_BASE_URL=http://{address}/v1 OPENAI_API_KEY=none\n  \
         export ANTHROPIC_BASE_URL=http://{address} ANTHROPIC_API_KEY=none\n"
    );
}
