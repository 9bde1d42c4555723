//! The gateway as a program: its arguments, its signals, its log and its exit status.
//!
//! ```text
//! cargo run -p tower-agent-gateway
//! cargo run -p tower-agent-gateway -- --demo-load
//! cargo run -p tower-agent-gateway -- --config FILE --listen 127.0.0.1:8787
//! cargo run -p tower-agent-gateway -- --check FILE --probe
//! cargo run -p tower-agent-gateway -- --print-config FILE
//! cargo run -p tower-agent-gateway -- runs --watch
//! ```

mod args;
mod open_files;
mod service_manager;

use std::{
    error::Error,
    io::{self, Write},
    net::SocketAddr,
    path::Path,
    pin::pin,
    process::ExitCode,
    thread,
    time::Duration,
};

use clap::Parser as _;
use futures_util::future::select;
use tokio::{
    net::TcpListener,
    signal::unix::{self, SignalKind},
    sync::oneshot,
    time::timeout,
};
use tower_agent::BoxError;
use tower_agent_gateway::{
    App, Config, ConfigError, LineWriter, LogFields, LogTime, Runs, Telemetry, complain, demo,
    print, probe, serve,
};
use tracing::{Dispatch, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    Layer, filter::filter_fn, fmt, layer::SubscriberExt, registry, registry::LookupSpan,
    util::SubscriberInitExt,
};

use self::args::Args;

/// Most remembered runs are freed by another thread than the one that allocated them. In glibc's
/// allocator the threads then wait for each other's arenas, for a quarter of a request's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A guard that waits on its drop for the last lines of the log, also if the program panics.
struct LogGuard(LineWriter);

/// The time that a slow reader has for the last lines of the log.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The longest that the file system may take to read a configuration.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// The time in which the last webhooks must have had their first try.
const LAST_WEBHOOKS: Duration = Duration::from_secs(2);

/// The time in which the last spans must be sent.
const LAST_SPANS: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(command) = &args.command {
        let result = command.run().await;
        return result.map_or_else(|error| failure(&*error), |()| ExitCode::SUCCESS);
    }
    let log = match LineWriter::log(io::stderr()) {
        Ok(log) => LogGuard(log),
        Err(error) => return failure(&error),
    };
    let result = run(args, &log.0).await;
    drop(log);
    result.map_or_else(|error| failure(&*error), |()| ExitCode::SUCCESS)
}

/// Sends events of the process to the log, and spans to the receiver of `[telemetry]`.
fn subscriber(log: &LineWriter, telemetry: Option<&Telemetry>) -> Dispatch {
    let lines = registry().with(lines(log));
    // A layer that is `None` would count as one that wants every span.
    match telemetry {
        Some(telemetry) => lines.with(telemetry.layer()).into(),
        None => lines.into(),
    }
}

/// The part of the subscriber that writes the log.
fn lines<S>(log: &LineWriter) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let writer = log.clone();
    // The log takes no span, so that without a receiver no span is made. The test is not
    // `is_event`, because the metadata of `tracing::enabled!` is neither a span nor an event.
    let lines = filter_fn(|it| !it.is_span() && *it.level() <= Level::INFO);
    fmt::layer()
        .with_timer(LogTime)
        .fmt_fields(LogFields)
        .with_writer(move || writer.clone())
        // The log has no colors: a reader of a pipe is a program, and a terminal would need a feature.
        .with_ansi(false)
        .with_filter(lines.with_max_level_hint(LevelFilter::INFO))
}

/// Prints the error with its causes.
fn failure(error: &(dyn Error + 'static)) -> ExitCode {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line = format!("{line}: {error}");
        cause = error.source();
    }
    // A configuration has a line for each of its mistakes.
    for line in line.lines() {
        complain(line);
    }
    ExitCode::FAILURE
}

async fn run(args: Args, log: &LineWriter) -> Result<(), BoxError> {
    if let Some(shell) = args.completions {
        print(|out| args::write_completions(shell, out))?;
        return Ok(());
    }
    if args.man {
        print(|out| args::write_manual_page(out))?;
        return Ok(());
    }
    if args.schema {
        print(|out| out.write_all(Config::schema().as_bytes()))?;
        return Ok(());
    }
    if let Some(path) = &args.check {
        return check(path, args.probe).await;
    }
    if let Some(path) = &args.print_config {
        let text = Config::print(path)?;
        print(|out| out.write_all(text.as_bytes()))?;
        return Ok(());
    }
    let (config, embedded) = match &args.config {
        Some(path) => (load(path).await?, None),
        None => {
            if args.demo_load && !args.listen.ip().is_loopback() {
                let message = "--demo-load serves this machine alone: --listen must name loopback";
                return Err(message.into());
            }
            let upstream = demo::spawn().await?;
            let config = match args.demo_load {
                true => demo::load::config(upstream)?,
                false => demo::config(upstream)?,
            };
            (config, Some(upstream))
        }
    };
    open_files::raise();
    let telemetry = Telemetry::new(&config)?;
    subscriber(log, telemetry.as_ref()).init();
    check_reach(args.listen, &config)?;
    log_warnings(&config);
    let runs = Runs::with_records(io::stdout())?.listening_at(args.listen);
    let runs = runs.share(&config).await?;
    let app = App::new(&config, &runs)?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}", args.listen))?;
    let address = listener.local_addr()?;
    // The signals are registered before the address is printed: a reader of the address may send
    // one at once.
    let mut term = unix::signal(SignalKind::terminate())?;
    let mut interrupt = unix::signal(SignalKind::interrupt())?;
    let hangups = unix::signal(SignalKind::hangup())?;
    // The gateway serves even if the reader of its output has left.
    let _ = writeln!(io::stdout(), "listening on http://{address}");
    service_manager::ready();
    match embedded {
        Some(upstream) if args.demo_load => {
            demo::load::spawn(address)?;
            let _ = writeln!(io::stdout(), "{}", demo::load::greeting(address, upstream));
        }
        Some(upstream) => {
            let _ = writeln!(io::stdout(), "{}", demo::greeting(address, upstream));
        }
        // Programs read the records on stdout: the page is named in the log.
        None => tracing::info!(url = %format_args!("http://{address}/ui"), "page of the runs"),
    }
    let served = serve(listener, app.service(), &config, &runs, async || {
        select(pin!(term.recv()), pin!(interrupt.recv())).await;
        service_manager::stopping();
    });
    let reloads = reload_at(hangups, &app, &args);
    select(pin!(served), pin!(reloads)).await;
    app.send_webhooks(LAST_WEBHOOKS).await;
    runs.flush();
    if let Some(telemetry) = telemetry {
        telemetry.shut_down(LAST_SPANS);
    }
    Ok(())
}

/// Checks a configuration, and with `probes` asks the upstreams of its candidates.
async fn check(path: &Path, probes: bool) -> Result<(), BoxError> {
    let config = Config::load(path)?;
    for warning in config.warnings() {
        complain(format_args!("warning: {warning}"));
    }
    print(|out| writeln!(out, "{} can be used", path.display()))?;
    if !probes {
        return Ok(());
    }
    let probes = probe(&config).await?;
    print(|out| probes.iter().try_for_each(|probe| writeln!(out, "{probe}")))?;
    match probes.iter().filter(|probe| probe.fails()).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} candidates cannot serve", probes.len()).into()),
    }
}

fn log_warnings(config: &Config) {
    for warning in config.warnings() {
        tracing::warn!(%warning, "suspicious setting");
    }
}

/// Loads a configuration on a thread of its own.
///
/// The file system may hang. It then holds up neither the task that accepts connections nor, as one
/// of the runtime's threads would, the end of the process.
async fn load(path: &Path) -> Result<Config, BoxError> {
    let (loaded, result) = oneshot::channel();
    let owned = path.to_owned();
    thread::Builder::new().spawn(move || drop(loaded.send(Config::load(owned))))?;
    match timeout(READ_LIMIT, result).await {
        Ok(config) => Ok(config??),
        Err(_) => Err(format!("{}: was not read within {READ_LIMIT:?}", path.display()).into()),
    }
}

/// Refuses to listen beyond loopback without `[auth]`.
fn check_reach(listen: SocketAddr, config: &Config) -> Result<(), BoxError> {
    if listen.ip().is_loopback() || config.needs_key() {
        return Ok(());
    }
    let message = format!("refusing to listen on {listen}: without [auth] it serves loopback only");
    Err(message.into())
}

/// Reads the configuration again at each SIGHUP. A mistake is logged, and changes nothing.
async fn reload_at(mut hangups: unix::Signal, app: &App, args: &Args) {
    let reload = async |path: &Path| {
        let config = load(path).await?;
        check_reach(args.listen, &config)?;
        app.reload(&config)?;
        log_warnings(&config);
        Ok::<_, BoxError>(())
    };
    while hangups.recv().await.is_some() {
        let Some(path) = &args.config else {
            tracing::warn!("nothing to reload: there is no configuration file");
            continue;
        };
        service_manager::reloading();
        let reloaded = reload(path).await;
        // After a mistake the gateway goes on with what it had.
        service_manager::ready();
        match reloaded {
            Ok(()) => tracing::info!("configuration reloaded"),
            Err(error) => match error.downcast_ref::<ConfigError>() {
                Some(mistakes) => mistakes
                    .each()
                    .for_each(|error| tracing::error!(%error, "configuration not reloaded")),
                None => tracing::error!(%error, "configuration not reloaded"),
            },
        }
    }
    // No further signal can come; the gateway goes on.
    std::future::pending().await
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.flush_within(LAST_LINES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A span costs an allocation and a lock, for each call and each of its attempts.
    #[test]
    fn without_a_receiver_no_span_is_made() {
        let log = LineWriter::log(std::io::sink()).unwrap();
        tracing::dispatcher::with_default(&subscriber(&log, None), || {
            let span = tracing::info_span!(target: "tower_agent", "call");
            assert!(span.is_disabled());
        });
    }
}
