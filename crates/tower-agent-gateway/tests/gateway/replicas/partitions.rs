//! Three gateways, each with a proxy of its own before the store, which cuts, delays and freezes at
//! random while clients ask and abort.
//!
//! `SEED` in the environment repeats the choices of an earlier run, though not their instants.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    Cluster, health, metric, of, outcome, post,
    proxy::{Fault, FaultyProxy},
    raise,
};
use crate::{
    net::{Ask, CHAT, asks, eventually, run_alone, within},
    support::Gateway,
};

const SITES: usize = 3;

/// The caps of a run, and of an owner in an hour: the hour has room for a run at each gateway.
const TURNS: usize = 40;
const HOUR: usize = 150;

/// The owners, each with a key of its own, and those whose runs are aborted.
const OWNERS: usize = 1500;
const ABORTERS: usize = 40;

/// How long a request waits for the store.
const WAIT: Duration = Duration::from_millis(50);

/// How much longer a request may take on a machine that also cuts and connects, beside twice its time.
const MARGIN: Duration = Duration::from_millis(100);

/// The cuts that must have met live requests, or the test shows nothing.
const CUTS: usize = 20;

/// A gateway behind its proxy.
struct Site {
    gateway: Gateway,
    proxy: FaultyProxy,
    /// The requests that have no answer yet.
    live: AtomicUsize,
    /// Odd while the gateway may be without the store; changes when that does.
    doubts: AtomicU64,
}

impl Site {
    async fn start(cluster: &Cluster) -> Self {
        let proxy = FaultyProxy::start(cluster.store.port()).await;
        let config = cluster.config.clone().env("STORE_URL", &proxy.url());
        Self {
            gateway: config.start().await,
            proxy,
            live: AtomicUsize::new(0),
            doubts: AtomicU64::new(0),
        }
    }

    fn is_in_doubt(&self) -> bool {
        self.doubts.load(SeqCst) % 2 == 1
    }

    fn doubt(&self) {
        if !self.is_in_doubt() {
            self.doubts.fetch_add(1, SeqCst);
        }
    }

    /// Waits until the gateway has the store: by both of its connections, so that neither is one that
    /// was cut and not noticed.
    async fn trust(&self) {
        while self.proxy.open() < 2 || health(&self.gateway).await != "up" {
            sleep(Duration::from_millis(20)).await;
        }
        if self.is_in_doubt() {
            self.doubts.fetch_add(1, SeqCst);
        }
    }
}

/// The turns of what comes under one cap: of a run, whose owner has no other, or of an owner.
#[derive(Debug, Default)]
struct Ledger {
    served: AtomicUsize,
    /// Those among them for which the gateway may not have asked the store.
    in_doubt: AtomicUsize,
    is_refused: AtomicBool,
}

/// The stream of a run that is aborted: which one it is, and the rest of its text.
type Stream = (String, JoinHandle<String>);

struct Load {
    sites: [Site; SITES],
    ledgers: Vec<Ledger>,
    /// The ledgers in use.
    active: [AtomicUsize; 6],
    next: AtomicUsize,
    is_over: AtomicBool,
    requests: AtomicUsize,
    longest: Mutex<Duration>,
    /// The runs whose abort was acknowledged, with the numbers of their owners, and their streams.
    aborted: Mutex<Vec<(String, usize)>>,
    streams: Mutex<Vec<Stream>>,
}

impl Load {
    /// Two of three owners have a run, and the third has requests without one.
    const fn has_run(ledger: usize) -> bool {
        ledger % 3 != 0
    }

    const fn cap(ledger: usize) -> usize {
        if Self::has_run(ledger) { TURNS } else { HOUR }
    }

    /// Takes a turn. Returns whether it was served.
    async fn take(&self, site: usize, ledger: usize) -> bool {
        let (site, book) = (&self.sites[site], &self.ledgers[ledger]);
        let request = site.gateway.post(CHAT, asks("sim-healthy", false));
        let request = request.bearer_auth(format!("sk-{ledger}"));
        let request = match Self::has_run(ledger) {
            true => request.header("x-run-id", format!("run-{ledger}")),
            false => request,
        };
        let doubts = site.doubts.load(SeqCst);
        site.live.fetch_add(1, SeqCst);
        let since = Instant::now();
        let answer = request.ask().await;
        let took = since.elapsed();
        site.live.fetch_sub(1, SeqCst);
        self.requests.fetch_add(1, Relaxed);
        raise(&self.longest, took);
        if outcome(&answer) == (422, Some("turn_cap_reached")) {
            book.is_refused.store(true, SeqCst);
            return false;
        }
        assert_eq!(answer.status, 200, "{answer:?}");
        book.served.fetch_add(1, SeqCst);
        let is_certain = doubts % 2 == 0 && site.doubts.load(SeqCst) == doubts;
        // On a machine under load the store may be late without a fault.
        if !is_certain || took >= WAIT {
            book.in_doubt.fetch_add(1, SeqCst);
        }
        true
    }

    /// Takes turns at random gateways, of what is in use.
    async fn spend(self: Arc<Self>, mut random: fastrand::Rng) {
        while !self.is_over.load(Relaxed) {
            let active = &self.active[random.usize(..self.active.len())];
            let ledger = active.load(SeqCst);
            if !self.take(random.usize(..SITES), ledger).await {
                let next = self.next.fetch_add(1, SeqCst);
                assert!(next < OWNERS, "too few owners for so long a test");
                // Another client may have been faster.
                let _replaced = active.compare_exchange(ledger, next, SeqCst, SeqCst);
            }
            sleep(Duration::from_millis(random.u64(..10))).await;
        }
    }

    /// Opens a stream of this run, which begins, and then ends only with the run.
    async fn stream(&self, site: usize, run: &str, key: usize) -> Stream {
        let gateway = &self.sites[site].gateway;
        let request = gateway.post(CHAT, asks("sim-stall-stream", true));
        let request = request.bearer_auth(format!("sk-a{key}"));
        let sent = request.header("x-run-id", run).send();
        let mut answer = within(sent).await.unwrap();
        assert_eq!(answer.status(), 200, "{run} at {site}");
        assert!(within(answer.chunk()).await.unwrap().is_some());
        let rest = tokio::spawn(async move { answer.text().await.unwrap() });
        (format!("{run} at {site}"), rest)
    }

    /// Opens streams at random gateways, and aborts their runs at others.
    async fn abort(self: Arc<Self>, mut random: fastrand::Rng) {
        let number = random.u32(..);
        for call in 0.. {
            if self.is_over.load(Relaxed) {
                return;
            }
            let (run, key) = (format!("ended-{number}-{call}"), random.usize(..ABORTERS));
            let mut streams = vec![self.stream(random.usize(..SITES), &run, key).await];
            if random.bool() {
                streams.push(self.stream(random.usize(..SITES), &run, key).await);
            }
            self.streams.lock().unwrap().extend(streams);
            sleep(Duration::from_millis(random.u64(20..400))).await;
            let gateway = &self.sites[random.usize(..SITES)].gateway;
            let answer = post(gateway, &format!("/runs/{run}/abort")).await;
            assert_eq!(
                (answer.status.as_u16(), &answer.json()["aborted"]),
                (200, &json!(true))
            );
            self.aborted.lock().unwrap().push((run, key));
        }
    }

    /// Disturbs the connections of one gateway.
    async fn disturb(self: Arc<Self>, site: usize, mut random: fastrand::Rng) -> Faults {
        let (site, mut faults) = (&self.sites[site], Faults::default());
        let millis = Duration::from_millis;
        while !self.is_over.load(Relaxed) {
            site.doubt();
            match random.u8(..10) {
                kind @ 0..7 => {
                    let (live, open) = (site.live.load(SeqCst), site.proxy.open());
                    faults.cuts += 1;
                    faults.met += usize::from(live > 0 && open > 0);
                    if kind == 0 {
                        site.proxy.set(Fault::Refused);
                    }
                    site.proxy.cut().await;
                    if kind == 0 {
                        sleep(millis(random.u64(50..300))).await;
                    }
                }
                7..9 => {
                    faults.delays += 1;
                    site.proxy.set(Fault::Delayed(millis(random.u64(5..150))));
                    sleep(millis(random.u64(100..500))).await;
                }
                _ => {
                    faults.freezes += 1;
                    site.proxy.set(Fault::Frozen);
                    sleep(millis(random.u64(50..600))).await;
                }
            }
            site.proxy.set(Fault::None);
            let rest = sleep(millis(random.u64(50..300)));
            let _trusted = timeout(millis(300), site.trust()).await;
            rest.await;
        }
        faults
    }
}

/// How often each fault was made.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    cuts: usize,
    /// The cuts that met a connection of the gateway, and a request that waited for its answer.
    met: usize,
    delays: usize,
    freezes: usize,
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cuts,
            met,
            delays,
            freezes,
        } = self;
        write!(
            f,
            "{cuts} cuts, {met} of them met live requests, {delays} delays and {freezes} freezes"
        )
    }
}

impl std::iter::Sum for Faults {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, it| Self {
            cuts: sum.cuts + it.cuts,
            met: sum.met + it.met,
            delays: sum.delays + it.delays,
            freezes: sum.freezes + it.freezes,
        })
    }
}

impl Load {
    async fn start(cluster: &Cluster) -> Arc<Self> {
        let mut sites = Vec::new();
        for _ in 0..SITES {
            sites.push(Site::start(cluster).await);
        }
        Arc::new(Self {
            sites: sites.try_into().unwrap_or_else(|_| unreachable!()),
            ledgers: (0..OWNERS).map(|_| Ledger::default()).collect(),
            active: std::array::from_fn(AtomicUsize::new),
            next: AtomicUsize::new(6),
            is_over: AtomicBool::new(false),
            requests: AtomicUsize::new(0),
            longest: Mutex::default(),
            aborted: Mutex::default(),
            streams: Mutex::default(),
        })
    }

    /// Asks for more turns of a new run than it has, at once and at all gateways.
    async fn use_up(&self) {
        let ledger = loop {
            let next = self.next.fetch_add(1, SeqCst);
            if Self::has_run(next) {
                break next;
            }
        };
        join_all((0..2 * TURNS).map(|call| self.take(call % SITES, ledger))).await;
        self.check(ledger);
    }

    /// Holds that a ledger whose cap was reached has all of its turns, and beyond them at most those that
    /// a gateway served without the store.
    fn check(&self, ledger: usize) {
        let (book, cap) = (&self.ledgers[ledger], Self::cap(ledger));
        let (served, in_doubt) = (book.served.load(SeqCst), book.in_doubt.load(SeqCst));
        assert!(book.is_refused.load(SeqCst), "{ledger}: {book:?}");
        assert!(served >= cap, "{ledger} was refused too early: {book:?}");
        assert!(
            served <= cap + in_doubt,
            "{ledger} was served too often: {book:?}"
        );
        assert!(
            served <= SITES * cap,
            "{ledger} was served too often: {book:?}"
        );
    }

    fn served(&self) -> u64 {
        let served = self.ledgers.iter().map(|it| it.served.load(SeqCst) as u64);
        served.sum()
    }
}

/// Whether something holds, at the second look if the store may have been late for the first: a gateway
/// then serves what has ended elsewhere, and knows it at the next request.
async fn holds(look: impl AsyncFn() -> bool) -> bool {
    let since = Instant::now();
    look().await || (since.elapsed() >= WAIT && look().await)
}

/// covers: H4
#[test]
fn whatever_becomes_of_the_connections_ends_hold_and_caps_are_passed_by_what_was_cut_off_alone() {
    run_alone(async {
        let seed =
            std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |it| it.parse().unwrap());
        println!("SEED={seed}");
        let settings = format!(
            "[run]\nmax_turns = {TURNS}\n[auth]\nkeys_env = \"TEST_KEYS\"\nturns_per_hour = {HOUR}"
        );
        let Some(mut cluster) = Cluster::start(&settings, "").await else {
            return;
        };
        let owners = (0..OWNERS).map(|owner| format!("o-{owner}:sk-{owner}"));
        let aborters = (0..ABORTERS).map(|owner| format!("a-{owner}:sk-a{owner}"));
        let keys = owners.chain(aborters).collect::<Vec<_>>().join(",");
        let upstream = cluster.simulator.simulated_upstream();
        let config = cluster.config.candidate("sim-stall-stream", upstream);
        cluster.config = config.env("TEST_KEYS", &keys);
        let load = Load::start(&cluster).await;
        load.use_up().await;

        // How late this machine wakes a task that sleeps as long as a request waits.
        let late = Arc::new(Mutex::new(Duration::ZERO));
        let (noted, until) = (Arc::clone(&late), Arc::clone(&load));
        let noise = tokio::spawn(async move {
            while !until.is_over.load(Relaxed) {
                let since = Instant::now();
                sleep(WAIT).await;
                raise(&noted, since.elapsed().saturating_sub(WAIT));
            }
        });
        let random = |task: u64| fastrand::Rng::with_seed(seed.wrapping_add(task));
        let mut clients = Vec::new();
        for task in 0..6 {
            clients.push(tokio::spawn(Arc::clone(&load).spend(random(task))));
        }
        for task in 6..9 {
            clients.push(tokio::spawn(Arc::clone(&load).abort(random(task))));
        }
        *load.longest.lock().unwrap() = Duration::ZERO;
        sleep(Duration::from_secs(2)).await;
        let usual = std::mem::take(&mut *load.longest.lock().unwrap());
        let disturbances = (0..SITES).map(|site| {
            let disturbs = Arc::clone(&load).disturb(site, random(10 + site as u64));
            tokio::spawn(disturbs)
        });
        let disturbances: Vec<_> = disturbances.collect();
        sleep(Duration::from_secs(of(10, 60) as u64)).await;
        load.is_over.store(true, Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        noise.await.unwrap();
        let faults = join_all(disturbances).await.into_iter().map(Result::unwrap);
        let faults: Faults = faults.sum();
        let (disturbed, late) = (*load.longest.lock().unwrap(), *late.lock().unwrap());

        let is_quiet = late < WAIT / 2;
        assert!(
            disturbed < 2 * usual + late + WAIT + MARGIN || !is_quiet,
            "{disturbed:?}, {usual:?} without faults, up to {late:?} late"
        );
        let healed = Instant::now();
        for site in &load.sites {
            // The longest wait between two tries to connect is 36 s.
            let trusted = timeout(Duration::from_secs(45), site.trust()).await;
            trusted.expect("the store does not come back");
        }
        let settled = healed.elapsed();
        let streams = std::mem::take(&mut *load.streams.lock().unwrap());
        for (name, stream) in streams {
            let ended = timeout(Duration::from_secs(20), stream).await;
            let ended = ended.unwrap_or_else(|_| panic!("{name} goes on"));
            let text = ended.unwrap();
            assert!(text.contains("aborted"), "{name}: {text}");
        }
        let open = async || {
            cluster
                .simulator
                .simulated_count("sim-stall-stream", "open")
                .await
        };
        eventually(async || (open().await == 0).then_some(())).await;

        // Whatever is left of a cap is served, and no more.
        for active in &load.active {
            let mut site = 0;
            while load.take(site % SITES, active.load(SeqCst)).await {
                site += 1;
            }
        }
        let used = |it: &usize| load.ledgers[*it].is_refused.load(SeqCst);
        let used: Vec<_> = (0..OWNERS).filter(used).collect();
        let mut beyond = 0;
        for ledger in &used {
            load.check(*ledger);
            let served = load.ledgers[*ledger].served.load(SeqCst);
            beyond = beyond.max(served - Load::cap(*ledger));
        }
        let calls = async || cluster.simulator.simulated_calls("sim-healthy").await;
        assert_eq!(calls().await, load.served(), "each turn is one call");
        let aborted = std::mem::take(&mut *load.aborted.lock().unwrap());
        for site in 0..SITES {
            for ledger in &used {
                let is_refused = async || !load.take(site, *ledger).await;
                assert!(holds(is_refused).await, "{ledger} goes on at {site}");
            }
            for (run, key) in &aborted {
                let gateway = &load.sites[site].gateway;
                let is_refused = async || {
                    let request = gateway.post(CHAT, asks("sim-slow", false));
                    let request = request.bearer_auth(format!("sk-a{key}"));
                    let answer = request.header("x-run-id", run).ask().await;
                    outcome(&answer) == (499, Some("aborted"))
                };
                assert!(holds(is_refused).await, "{run} goes on at {site}");
            }
        }
        assert_eq!(calls().await, load.served());
        load.use_up().await;
        println!(
            "{faults}; {} requests, the slowest took {usual:?} before and {disturbed:?} meanwhile, on a \
             machine that wakes up to {late:?} late; {} caps, passed by at most {beyond} turns; {} aborts; \
             settled {settled:?} after the last fault",
            load.requests.load(Relaxed),
            used.len(),
            aborted.len(),
        );
        for site in &load.sites {
            let gateway = &site.gateway;
            assert_eq!(metric(gateway, "agent_store_dropped_total").await, 0.0);
        }
        assert!(faults.met >= CUTS, "the test shows too little: {faults}");
    });
}
