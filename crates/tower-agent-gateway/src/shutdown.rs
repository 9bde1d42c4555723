//! The gateway from its first connection to its end, with the time that the end may take.

use std::{pin::pin, time::Duration};

use axum::Router;
use futures_util::future::select;
use tokio::net::TcpListener;

use crate::{config::Config, runs::Runs, server};

/// How long connections have to close after a signal to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Serves an [`app`](crate::app) until `signal` is ready, and then ends its runs.
///
/// Connections are limited as `[server]` says. After the first signal nothing is admitted;
/// with `control.drain` the runs that are under way may go on for so long, or until
/// `signal` is ready again. Then all runs end as `Shutdown`, and connections have 5 s to
/// close.
///
/// # Cancel safety
///
/// Dropping the future closes the listener and all connections at once, and no answer
/// says why.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    config: &Config,
    runs: &Runs,
    mut signal: impl AsyncFnMut(),
) {
    let registry = runs.registry();
    let stop = async {
        signal().await;
        if let Some(limit) = config.shutdown_drain {
            let drained = pin!(registry.drain(limit));
            // A second signal: the operator does not want to wait.
            let again = pin!(signal());
            let _ = select(drained, again).await;
        }
        // Streams that are under way learn why, and so do callers that try again.
        runs.shutdown();
    };
    let mut stopped = runs.stopped();
    let served = server::serve(listener, app, config.server, stop);
    let grace = async {
        let _ = stopped.wait_for(|stopping| *stopping).await;
        tokio::time::sleep(GRACE).await;
        // Ends runs that began while connections were being closed.
        registry.shutdown();
    };
    let (served, grace) = (pin!(served), pin!(grace));
    select(served, grace).await;
}
