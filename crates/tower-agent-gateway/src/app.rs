//! The gateway's routes as one service, and the exchange of its configuration.

use std::{
    convert::Infallible,
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use axum::{Router, body::Body, extract::Request, response::Response};
use futures_util::stream;
use pin_project_lite::pin_project;
use tokio::sync::{mpsc, watch};
use tower::{Service, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_agent::{BoxError, ReplayBody, Watchdog};

use crate::{
    background::{BackgroundTask, spawn_background},
    config::{Config, ServerLimits},
    http_client::{Roots, http_client},
    routes::{self, OwnerNames, RoutedAnswer, Routes, Watched},
    runs::Runs,
    stacks::{Gateway, Stacks, watchdog_client},
    webhooks::WebhookClient,
};

/// The gateway's routes, with a configuration that can be replaced while they serve.
///
/// A run keeps the stack in which it began, so a new configuration cuts nothing. The runs, the
/// counts of owners and of `/metrics`, the events and the cooldowns stay. The budget of repeats
/// that all runs share, the candidates of sticky sessions and the state of a health gate begin
/// anew.
///
/// ```
/// use tower_agent_gateway::{App, Config, Runs};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), tower_agent::BoxError> {
/// let candidate = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"";
/// let app = App::new(&Config::parse(candidate, "first.toml")?, &Runs::new())?;
/// let router = app.router();
///
/// let capped = format!("[run]\nmax_turns = 30\n{candidate}");
/// app.reload(&Config::parse(&capped, "second.toml")?)?;
/// # drop(router);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct App {
    watched: Watched,
    gateway: Gateway,
    routes: Arc<ArcSwap<Routes>>,
    /// The first configuration, of which no reload changes the [`fixed`] settings.
    first: Config,
    /// How often the configuration was replaced: the sockets of callers then close.
    reloads: watch::Sender<u64>,
    /// The watchdog, if a configuration had one so far. A reload holds the lock until it returns.
    watchdog: Mutex<Option<RunningWatchdog>>,
}

/// Builds the gateway's routes: those of its callers, and those of its operator.
///
/// The operator's routes need axum's `ConnectInfo<SocketAddr>` in each request. A server other than
/// [`serve`](crate::serve) must give it. [`App`] is for a server that replaces its configuration.
///
/// If the process has no default TLS provider of rustls, this function installs ring. If it has no
/// recorder of the `metrics` facade, this function installs one for Prometheus.
///
/// # Errors
///
/// If an HTTP client cannot be built, or `config` has `[replicas]` and the runs are not
/// [shared](Runs::share).
///
/// # Panics
///
/// With `[watchdog]`, `[replicas]` or `[[webhooks]]` in `config`, the function panics outside of a
/// tokio runtime.
pub fn app(config: &Config, runs: &Runs) -> Result<Router, BoxError> {
    let app = App::new(config, runs)?;
    Ok(app.router())
}

impl App {
    /// Builds the routes, as [`app`] does.
    ///
    /// # Errors
    ///
    /// If an HTTP client cannot be built, or `config` has `[replicas]` and the runs are not
    /// [shared](Runs::share).
    ///
    /// # Panics
    ///
    /// With `[watchdog]`, `[replicas]` or `[[webhooks]]` in `config`, the function panics outside of a
    /// tokio runtime.
    pub fn new(config: &Config, runs: &Runs) -> Result<Self, BoxError> {
        if config.replicas.is_some() && runs.peers().is_none() {
            return Err("[replicas] needs runs that are shared: call `Runs::share` first".into());
        }
        if runs.peers().is_none() && config.auth.as_ref().is_some_and(|auth| auth.uses_calendar) {
            tracing::warn!(
                "caps per day, week and month are counted in memory: a restart resets them, unless \
                 [replicas] is set"
            );
        }
        let (reloads, reloaded) = watch::channel(0);
        let mut watched = Watched::new(config, runs, reloaded);
        let answers = routes::answers(&watched);
        watched.answering = answers.map(BackgroundTask::spawn);
        let gateway = Gateway::new(stacks(config, &watched)?, &watched.registry);
        let watchdog = watchdog_client::watchdog(config, &watched.registry)?.map(watch);
        let client = webhooks_client(config)?;
        let routes = routes::routes(gateway.clone(), watched.clone(), config);
        set_webhooks(&watched, config, client.as_ref());
        Ok(Self {
            watched,
            gateway,
            routes: Arc::new(ArcSwap::from_pointee(routes)),
            first: config.clone(),
            reloads,
            watchdog: Mutex::new(watchdog),
        })
    }

    /// Waits until all webhooks about what happened so far have been tried once, for at most `limit`.
    ///
    /// At the end of a process its receivers learn so of the ends that the shutdown caused.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops no webhook.
    pub async fn send_webhooks(&self, limit: Duration) {
        let registry = &self.watched.registry;
        self.watched.webhooks.settle(limit, registry).await;
    }

    /// The routes as a service of axum, to merge with others.
    ///
    /// A request of a run gets the stack of the configuration with which the run began.
    pub fn router(&self) -> Router {
        Router::new().fallback_service(self.service())
    }

    /// The routes as a service of their own, which [`serve`](crate::serve) calls with less work than a
    /// [`router`](Self::router).
    pub fn service(&self) -> AppService {
        AppService {
            routes: Arc::clone(&self.routes),
        }
    }

    /// Replaces the configuration for all runs that begin from now on.
    ///
    /// A question of the watchdog to a person stays open, and is not asked again. An open run goes on
    /// under the configuration with which it began: its limits, its caps and its candidates. Keys,
    /// `[cors]` and `[known_agents]` hold for all requests from now on, and `[[webhooks]]` for all
    /// events. A task keeps the stacks of a replaced configuration until the last of its runs has ended. A
    /// run that opens in the instant of the exchange may begin under the replaced configuration and
    /// go on under the new one. The sockets of callers close between two responses, so that their next
    /// upgrade is checked anew. If `[auth]` comes or goes, the owners of all runs are others: then
    /// only the calls that are under way go on as they began.
    ///
    /// `server.head_timeout`, `server.keep_alive`, `server.max_connections`, `server.threads`,
    /// `control.drain`, `[telemetry]` and `[replicas]` stay as they were, and the log says so if the new
    /// configuration has others.
    ///
    /// # Errors
    ///
    /// If an HTTP client cannot be built; then nothing changes.
    ///
    /// # Panics
    ///
    /// The method may panic outside of a tokio runtime, in which it spawns tasks.
    pub fn reload(&self, config: &Config) -> Result<(), BoxError> {
        let mut watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner);
        let registry = &self.watched.registry;
        let stacks = stacks(config, &self.watched)?;
        let next = watchdog_client::watchdog(config, registry)?;
        let client = webhooks_client(config)?;
        match &*watchdog {
            // A question to a person stays open, so the task of the watchdog goes on.
            Some(running) => running.replace(next.unwrap_or_else(|| Watchdog::new(registry))),
            None => *watchdog = next.map(watch),
        }
        let generations = &self.gateway.stacks;
        // With other owners, a request under the id of an open run belongs to another run.
        let has_same_owners = generations.present().has_keys == stacks.has_keys;
        if let Some(kept) = generations.replace(stacks, has_same_owners) {
            drop(spawn_background(kept));
        }
        // Before the routes are made: a socket that the old ones let in closes, one of the new stays.
        self.reloads.send_modify(|reloads| *reloads += 1);
        let routes = routes::routes(self.gateway.clone(), self.watched.clone(), config);
        self.routes.store(Arc::new(routes));
        set_webhooks(&self.watched, config, client.as_ref());
        if fixed(config) != fixed(&self.first) {
            tracing::warn!("connection limits and drain stay as they were until a restart");
        }
        if config.telemetry != self.first.telemetry {
            tracing::warn!("[telemetry] stays as it was until a restart");
        }
        if config.replicas != self.first.replicas {
            tracing::warn!("[replicas] stays as it was until a restart");
        }
        Ok(())
    }
}

/// The routes of an [`App`], as the last reload left them.
#[derive(Clone, Debug)]
pub struct AppService {
    routes: Arc<ArcSwap<Routes>>,
}

impl Service<Request> for AppService {
    type Response = Response;
    type Error = Infallible;
    type Future = AppFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> AppFuture {
        AppFuture {
            answer: self.routes.load().answer(request),
        }
    }
}

pin_project! {
    /// The response future of an [`AppService`].
    pub struct AppFuture {
        #[pin]
        answer: RoutedAnswer,
    }
}

impl Future for AppFuture {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().answer.poll(cx)
    }
}

impl fmt::Debug for AppFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppFuture").finish_non_exhaustive()
    }
}

fn stacks(config: &Config, watched: &Watched) -> Result<Stacks, BoxError> {
    let (registry, cooldowns) = (&watched.registry, &watched.cooldowns);
    if let Some(auth) = &config.auth {
        registry.set_calendar(auth.time_zone.clone());
    }
    // The store and its settings are those of the first configuration.
    let replicas = watched.peers.as_ref().map(|peers| &peers.settings);
    let (journal, is_traced) = (&watched.journal, watched.is_traced);
    Stacks::new(config, registry, cooldowns, replicas, journal, is_traced)
}

/// The task of a watchdog, which ends with the registry.
#[derive(Debug)]
struct RunningWatchdog(mpsc::UnboundedSender<Watchdog>);

impl RunningWatchdog {
    /// Replaces the services that the watchdog asks from now on.
    fn replace(&self, watchdog: Watchdog) {
        // The task has ended only if the registry is gone, and then there is nothing to watch.
        let _ = self.0.send(watchdog);
    }
}

fn watch(watchdog: Watchdog) -> RunningWatchdog {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let replacements = stream::poll_fn(move |cx| receiver.poll_recv(cx));
    drop(spawn_background(watchdog.run_with(replacements)));
    RunningWatchdog(sender)
}

/// Sends the webhooks of this configuration from now on.
fn set_webhooks(watched: &Watched, config: &Config, client: Option<&WebhookClient>) {
    let names = OwnerNames::of(config.auth.as_ref());
    let show = Arc::new(move |owner| names.show(owner));
    let webhooks = &watched.webhooks;
    webhooks.replace(&config.webhooks, client, show, &watched.registry);
}

/// The client of the webhooks, if there are any.
fn webhooks_client(config: &Config) -> Result<Option<WebhookClient>, BoxError> {
    if config.webhooks.is_empty() {
        return Ok(None);
    }
    let urls = config.webhooks.iter().map(|webhook| &webhook.url);
    let client = http_client(&config.proxy, Roots::of(urls))?;
    let client = service_fn(move |request: http::Request<ReplayBody>| {
        let answer = client.clone().oneshot(request);
        async { Ok::<_, BoxError>(answer.await?.map(Body::new)) }
    });
    Ok(Some(BoxCloneSyncService::new(client)))
}

/// The limits of connections, and the drain, of the first configuration.
fn fixed(config: &Config) -> (ServerLimits, Option<Duration>) {
    // The routes enforce these limits, and a reload replaces them.
    let server = ServerLimits {
        upload_idle: None,
        max_buffered: None,
        websocket: None,
        ..config.server
    };
    (server, config.shutdown_drain)
}

#[cfg(test)]
mod tests {
    use tokio::{runtime::Handle, task::yield_now};
    use tower_agent::{Owner, TerminalReason};

    use super::*;
    use crate::config::Auth;

    /// A gateway reloads for months, so replaced stacks and their tasks must not pile up.
    #[tokio::test]
    async fn a_reload_leaves_no_task_and_no_stack_behind() {
        let text = "[loops]\n[watchdog]\nchecker = \"http://127.0.0.1:9/\"\n\
                    [health]\nurl = \"http://127.0.0.1:9/health\"\n\
                    [[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"";
        let config = Config::parse(text, "test").unwrap();
        let app = App::new(&config, &Runs::new()).unwrap();
        let router = app.router();
        yield_now().await;
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        assert!(before > 0, "the watchdog and the metrics have tasks");
        for _ in 0..10 {
            let replaced = Arc::downgrade(&app.gateway.stacks.present());
            app.reload(&config).unwrap();
            assert!(replaced.upgrade().is_none());
        }
        // An aborted task is gone once the runtime has polled it.
        for _ in 0..100 {
            yield_now().await;
        }
        assert_eq!(tasks(), before);
        drop(router);
    }

    #[tokio::test]
    async fn the_stacks_of_a_replaced_configuration_go_with_the_last_of_their_runs() {
        let text = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"";
        let config = Config::parse(text, "test").unwrap();
        let runs = Runs::new();
        let app = App::new(&config, &runs).unwrap();
        let open = |id: &str| {
            let id = id.parse().unwrap();
            runs.registry().open(Owner::default(), id)
        };
        let (first, second) = (open("first"), open("second"));
        app.reload(&config).unwrap();
        let third = open("third");
        app.reload(&config).unwrap();
        // No run began with this configuration.
        app.reload(&config).unwrap();
        let kept = || app.gateway.stacks.earlier();
        assert_eq!(kept(), 2);

        for (run, left) in [(first, 2), (third, 1), (second, 0)] {
            run.end(TerminalReason::Aborted);
            for _ in 0..10 {
                yield_now().await;
            }
            assert_eq!(kept(), left);
        }
    }

    /// The end of the other owner's run must not move an open run to another configuration.
    #[tokio::test]
    async fn an_id_of_two_owners_keeps_its_stacks_until_both_runs_have_ended() {
        let text = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"";
        let config = Config::parse(text, "test").unwrap();
        let runs = Runs::new();
        let app = App::new(&config, &runs).unwrap();
        let open = |owner: &[u8]| {
            let id = "shared".parse().unwrap();
            runs.registry().open(Owner::of(owner), id)
        };
        let (one, other) = (open(b"one"), open(b"other"));
        app.reload(&config).unwrap();

        for (run, left) in [(one, 1), (other, 0)] {
            run.end(TerminalReason::Aborted);
            for _ in 0..10 {
                yield_now().await;
            }
            assert_eq!(app.gateway.stacks.earlier(), left);
        }
    }

    #[tokio::test]
    async fn stacks_without_keys_are_not_kept_once_there_are_keys() {
        let text = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"";
        let open = Config::parse(text, "test").unwrap();
        let mut closed = open.clone();
        closed.auth = Some(Auth::default());
        let runs = Runs::new();
        let app = App::new(&open, &runs).unwrap();
        let _run = runs.registry().open(Owner::default(), "r".parse().unwrap());
        app.reload(&open).unwrap();
        assert_eq!(app.gateway.stacks.earlier(), 1);
        app.reload(&closed).unwrap();
        assert_eq!(app.gateway.stacks.earlier(), 0);
    }
}
