//! Serves the gateway until a signal, and bounds the time of its shutdown.

use std::{convert::Infallible, pin::pin, time::Duration};

use axum::body::Body;
use futures_util::future::select;
use http::{Request, Response};
use tokio::net::TcpListener;
use tower::Service;

use crate::{
    config::Config,
    http::server::{self, ServerThreads},
    runs::Runs,
};

/// The time that connections have to close after the runs have ended.
const GRACE: Duration = Duration::from_secs(5);

/// Serves an [`app`](crate::app), or the [service](crate::App::service) of an `App`, until `signal` is
/// ready, and then ends its runs.
///
/// Threads of this function's own serve the connections, as many as `server.threads`; with 0, or if
/// they cannot be started, the caller's runtime does.
///
/// `[server]` limits the connections. From the first signal on no run and no call is admitted; with
/// `control.drain` running work may go on for that long, or until `signal` is ready again. Then all
/// open runs end as `Shutdown`, and connections have 5 s to close.
///
/// # Cancel safety
///
/// Dropping the future closes the listener and all connections at once; their answers are cut
/// without a reason.
pub async fn serve<S>(
    listener: TcpListener,
    app: S,
    config: &Config,
    runs: &Runs,
    mut signal: impl AsyncFnMut(),
) where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let registry = runs.registry();
    let mut settled = None;
    let stop = async {
        signal().await;
        runs.begin_drain();
        if let Some(limit) = config.shutdown_drain {
            let drained = pin!(registry.drain(limit));
            // A second signal cuts the drain short.
            let again = pin!(signal());
            let _ = select(drained, again).await;
        }
        // The runs end before connections close, so that open streams and repeated requests get
        // the reason.
        settled = Some(registry.drain(Duration::ZERO));
        runs.shutdown();
    };
    let mut stopped = runs.stopped();
    let threads = config.server.threads.map(ServerThreads::start).transpose();
    // Kept until the end: what their connections left behind runs on them.
    let threads = threads.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot start the threads of [server]: one runtime serves all");
        None
    });
    let served = server::serve(listener, app, config.server, threads.as_ref(), stop);
    let grace = async {
        let _ = stopped.wait_for(|stopping| *stopping).await;
        tokio::time::sleep(GRACE).await;
        // The registry shuts down again, for runs that began while connections were closing.
        registry.shutdown();
    };
    {
        let (served, grace) = (pin!(served), pin!(grace));
        select(served, grace).await;
    }
    if let Some(settled) = settled {
        // Another task may drop the rest of a cut call, write the log's line about the call and
        // close its spans. The wait for that ends one second after the runs have ended, at the
        // latest.
        settled.await;
    }
    // The other gateways of `[replicas]` would count the parts of runs here until these expire.
    runs.leave().await;
}
