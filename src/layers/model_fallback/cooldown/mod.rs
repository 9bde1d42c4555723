//! Keeps calls away from a candidate for a while after it has failed.
//!
//! This file has the program's handle, [`Cooldowns`], and the keys by which a candidate cools down.

mod digests;
mod replicas;
mod windows;

pub(crate) use self::{
    digests::{digest_owner, digest_prompt},
    replicas::digest_candidate,
    windows::{
        CooldownBackoff, CooldownKey, CooldownProbe, CooldownState, CooldownWindows, Keys, Witness,
    },
};

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, request::Parts};
use tokio::time::Instant;

use self::digests::account_headers;
use crate::{
    attempt::{Candidate, CompletionObserver, Operation},
    guarded::guarded,
    llm::{
        Rest,
        failure::{ActiveCooldown, Failure, FailureClass},
    },
    lock::Lock,
    registry::store::{RunNews, RunStore},
    run::TerminalReason,
};

/// The cooldowns of failed candidates: during a window, a candidate gets probes only.
///
/// | [class of the failure](FailureClass::cooldown) | lengths of consecutive windows |
/// |---|---|
/// | mostly passes by itself | 30 s, 60 s, then 5 min |
/// | a person has to fix it | 10 min, doubling to a day |
/// | an exhausted quota | 5 h, doubling to a day |
///
/// A window lasts exactly as long as the upstream states, up to a day; one that a person has to fix
/// at least so long. For an exhausted quota a delay of up to a minute does not count, which some
/// upstreams add to each 429. A failure during a window does not extend it; but a refused key or an
/// exhausted quota replaces a rate limit of the account. A window ends early once an attempt that
/// began in it serves a call.
///
/// Two windows after failures of one kind are consecutive if the second begins before the first has
/// been over for its own length. A call that begins no earlier than a window, and that the candidate
/// serves to its end, removes the window: the next failure begins a new sequence.
///
/// | failure | what cools down |
/// |---|---|
/// | a rate limit, a model that is gone | the model on one account |
/// | rate limits of two models of an account at a time | the account |
/// | a refused key, an exhausted quota | the account |
/// | an untrusted certificate, a refused region | the host |
/// | any other that begins a window | the model, on all accounts |
///
/// A window of a model holds for one operation, such as chat completions or the count of a prompt's
/// tokens: a model may offer one and not another.
///
/// # Evidence
///
/// One caller's answer rests a candidate for all. So what counts is who can have written it:
///
/// - A name of the error, another field that only the upstream fills, or a header counts at once.
/// - A status alone counts if it is 401, 402, 429 or a 5xx other than 501.
/// - A phrase in a message may quote a caller. It counts once two calls have met it within a minute,
///   of two owners, or with two prompts if the last hour had one owner; no call that the candidate
///   served may lie in between. It does not count after the commit, in quotation marks, or if the
///   request has the same words, or could not be searched for them: a body that is compressed or
///   over 1 MiB.
///
/// A time that the upstream states is kept exactly. Without one, the first window of a candidate that
/// alone can serve the request lasts for one second after a rate limit, a failure of the upstream or
/// a cut answer, then doubles up to the usual windows.
///
/// By default a candidate gets at most one call as a probe every 30 s, in the last two minutes of a
/// window. The first probe comes 30 s after the last failure, or later.
///
/// Processes may share their windows, as they share their runs: see
/// [`registry::store`](crate::registry::store#candidates).
///
/// Cooldowns are cheap to clone; clones share the windows, of which at most 256 are stored. The
/// clock is tokio's.
///
/// ```
/// use std::time::Duration;
/// use tower_agent::{Candidate, Cooldowns, ModelFallbackLayer};
///
/// let cooldowns = Cooldowns::new().short([5, 15, 60].map(Duration::from_secs));
/// let layer = ModelFallbackLayer::new([Candidate::new("large"), Candidate::new("small")])
///     .cooldowns(cooldowns.clone());
/// ```
#[derive(Clone)]
pub struct Cooldowns {
    shared: Arc<SharedCooldowns>,
    backoff: CooldownBackoff,
    probe: CooldownProbe,
    on_begin: Option<BeginHook>,
}

type BeginHook = Arc<dyn Fn(&ActiveCooldown) + Send + Sync>;

#[derive(Debug)]
struct SharedCooldowns {
    opened: Instant,
    windows: Lock<CooldownWindows>,
    /// The candidates of all layers that use the windows, each once.
    candidates: Lock<Vec<CooldownIdentity>>,
    /// The number of stored windows: mostly 0, and then a call without a failure takes no lock.
    known: AtomicUsize,
    owners: RecentOwners,
    /// The store of the replicas that share the windows.
    store: OnceLock<Arc<dyn RunStore>>,
}

/// Whether the calls of the last hour had one owner.
#[derive(Debug, Default)]
struct RecentOwners {
    /// The owner of the last call; 0 before the first.
    last: AtomicU64,
    /// One more than the second at which a call had another owner than the call before it; 0 if
    /// none had.
    changed: AtomicU64,
}

/// The time for which an owner counts as one of the recent ones, in seconds.
const RECENT: u64 = 60 * 60;

impl fmt::Debug for Cooldowns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cooldowns")
            .field("backoff", &self.backoff)
            .field("probe", &self.probe)
            .field("windows", &self.shared.known)
            .finish_non_exhaustive()
    }
}

impl Cooldowns {
    /// Makes cooldowns with the default windows; no candidate is in one yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(SharedCooldowns {
                opened: Instant::now(),
                windows: Lock::default(),
                candidates: Lock::default(),
                known: AtomicUsize::new(0),
                owners: RecentOwners::default(),
                store: OnceLock::new(),
            }),
            backoff: CooldownBackoff::new(),
            probe: CooldownProbe {
                every: Duration::from_secs(30),
                margin: Duration::from_secs(120),
            },
            on_begin: None,
        }
    }

    /// Sets the lengths of the windows after failures that mostly pass by themselves.
    ///
    /// The first length holds after the first such failure, the second after the next in a row,
    /// the third after every later one.
    #[must_use]
    pub const fn short(mut self, windows: [Duration; 3]) -> Self {
        self.backoff.short = windows;
        self
    }

    /// Sets the first window after failures that a person has to fix; later ones double, up to
    /// [`most`](Self::most).
    #[must_use]
    pub const fn long(mut self, first: Duration) -> Self {
        self.backoff.long = first;
        self
    }

    /// Sets the first window after an exhausted quota; later ones double, up to
    /// [`most`](Self::most).
    #[must_use]
    pub const fn quota(mut self, first: Duration) -> Self {
        self.backoff.quota = first;
        self
    }

    /// Sets the maximum length of windows that double, and of waits that an upstream asks for.
    #[must_use]
    pub const fn most(mut self, window: Duration) -> Self {
        self.backoff.most = window;
        self
    }

    /// Sets when one call may probe a candidate that is in a cooldown.
    ///
    /// A candidate gets at most one probe per `every`, the first at least `every` after the last
    /// failure, and only while at most `margin` of the window is left. With a `margin` of zero
    /// there are no probes.
    #[must_use]
    pub const fn probe(mut self, every: Duration, margin: Duration) -> Self {
        self.probe = CooldownProbe { every, margin };
        self
    }

    /// Sets a hook that is called with each cooldown that begins by a failure at this handle or a later
    /// clone of it, instead of an earlier hook.
    ///
    /// A cooldown of a caller's own account does not count: the candidate serves others. Nor does one
    /// that another replica began. The hook is called in the task of the call that failed, outside of
    /// any lock; its panic is caught.
    ///
    /// ```
    /// use tower_agent::Cooldowns;
    ///
    /// let cooldowns = Cooldowns::new()
    ///     .on_begin(|cooling| eprintln!("{} rests for {:?}", cooling.candidate, cooling.left));
    /// # drop(cooldowns);
    /// ```
    #[must_use]
    pub fn on_begin(mut self, hook: impl Fn(&ActiveCooldown) + Send + Sync + 'static) -> Self {
        self.on_begin = Some(Arc::new(hook));
        self
    }

    /// The number of stored windows; some of them may have ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.known.load(Ordering::Acquire)
    }

    /// Whether no window is stored, running or ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The cooldowns that run now, the one that ends first at the front.
    ///
    /// Each names the candidate that began it by a failure. A cooldown may also hold calls back
    /// from other candidates on the same account or host.
    ///
    /// ```
    /// use tower_agent::Cooldowns;
    ///
    /// fn report(cooldowns: &Cooldowns) {
    ///     for cooling in cooldowns.list() {
    ///         println!("{} for {:?} ({})", cooling.candidate, cooling.left, cooling.class);
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn list(&self) -> Vec<ActiveCooldown> {
        self.shared.windows.lock().list(self.now())
    }

    /// Ends the cooldowns of the candidate with this [label](Candidate::label).
    ///
    /// The method also ends those of the candidate's account and host, at all
    /// [replicas](crate::registry::store), and returns how many were running here. Calls go to the candidate at once, and its next failure begins a new row. A
    /// cooldown of a caller's own account ends only if a failure of this candidate began it.
    #[allow(clippy::must_use_candidate, reason = "callers may not need the count")]
    pub fn clear(&self, candidate: &str) -> usize {
        let known = self.shared.candidates.lock();
        let named = known.iter().filter(|it| *it.label == *candidate);
        let digests = named.flat_map(|it| [Some(it.model), Some(it.provider), it.account]);
        let digests: Vec<_> = digests.flatten().collect();
        drop(known);
        let now = self.now();
        let mut windows = self.shared.windows.lock();
        let running = windows.clear(candidate, &digests, now);
        self.shared.known.store(windows.len(), Ordering::Release);
        if let Some(store) = self.shared.store.get() {
            store.tell(RunNews::CooldownsCleared {
                candidate: candidate.into(),
                keys: digests,
                at: Instant::now(),
            });
        }
        running
    }

    fn now(&self) -> Duration {
        self.shared.opened.elapsed()
    }

    /// Whether the candidate with these keys is open, due for a probe, or cooling down. The
    /// method claims no probe.
    pub(crate) fn state(&self, keys: &Keys) -> CooldownState {
        let now = self.now();
        self.shared.windows.lock().state(keys, self.probe, now)
    }

    /// Whether a call may go to the candidate with these keys now. If a probe is due, the call
    /// claims it, so that concurrent calls get false.
    pub(crate) fn claim(&self, keys: &Keys) -> bool {
        let now = self.now();
        let mut windows = self.shared.windows.lock();
        let state = windows.state(keys, self.probe, now);
        if state == CooldownState::Probe {
            windows.probe(keys, now);
        }
        !matches!(state, CooldownState::Cooling { .. })
    }

    /// Records a failure before the commit. `witness` tells the call as a witness of what these
    /// words of the upstream say, or `None` if they may be the call's own.
    pub(crate) fn fail(
        &self,
        keys: &Keys,
        failure: &Failure,
        is_sole: bool,
        witness: impl Fn(&str) -> Option<Witness>,
    ) {
        if failure.is_slow {
            return;
        }
        let eased = failure.easing();
        let eased = eased.filter(|easing| witness(&easing.words).is_some());
        let rest = eased.map_or(failure.rest(), |easing| easing.rest);
        if let Some(rest) = rest {
            self.note(keys, rest, is_sole);
        }
        let suspicion = failure.suspicion();
        let suspected = suspicion.and_then(|it| Some((it.rest, witness(&it.words)?)));
        if let Some((rest, witness)) = suspected {
            let now = self.now();
            let has_one_owner = self.has_one_owner(witness.owner, now);
            let mut windows = self.shared.windows.lock();
            let is_confirmed = windows.suspect(keys, rest, witness, has_one_owner, now);
            self.shared.known.store(windows.len(), Ordering::Release);
            drop(windows);
            if is_confirmed {
                self.note(keys, rest, is_sole);
            }
        }
    }

    /// Notes the owner of a call: what one owner's upstream says in a text may quote that owner.
    pub(crate) fn note_owner(&self, owner: u64) {
        let owners = &self.shared.owners;
        let last = owners.last.load(Ordering::Relaxed);
        if last != owner {
            self.note_another_owner(last, owner);
        }
    }

    #[cold]
    fn note_another_owner(&self, last: u64, owner: u64) {
        let owners = &self.shared.owners;
        owners.last.store(owner, Ordering::Relaxed);
        if last != 0 {
            let now = self.now().as_secs() + 1;
            owners.changed.store(now, Ordering::Relaxed);
        }
    }

    fn has_one_owner(&self, owner: u64, now: Duration) -> bool {
        self.note_owner(owner);
        let changed = self.shared.owners.changed.load(Ordering::Relaxed);
        changed == 0 || now.as_secs() + 1 > changed + RECENT
    }

    /// Ends the windows that began no later than `began`, the start of an attempt that serves.
    fn lift(&self, keys: &Keys, began: Duration) {
        if !self.is_empty() {
            let now = self.now();
            let mut windows = self.shared.windows.lock();
            self.shared.tell_lifted(windows.lift(keys, began, now));
        }
    }

    fn succeed(&self, keys: &Keys, began: Duration) {
        if !self.is_empty() {
            let mut windows = self.shared.windows.lock();
            windows.succeed(keys, began);
            self.shared.known.store(windows.len(), Ordering::Release);
        }
    }

    fn note(&self, keys: &Keys, rest: Rest, is_sole: bool) {
        let now = self.now();
        let mut windows = self.shared.windows.lock();
        let begins = windows.fail(keys, rest, is_sole, &self.backoff, now);
        self.shared.known.store(windows.len(), Ordering::Release);
        if let Some(store) = self.shared.store.get().filter(|_| begins) {
            self.shared.tell_begun(&mut windows, &**store);
        }
        let is_callers = keys.of(rest.concern).is_some_and(|key| key.is_callers);
        let hook = self.on_begin.as_ref().filter(|_| begins && !is_callers);
        let begun = hook.and_then(|hook| Some((hook, windows.longest(keys, rest.class, now)?)));
        drop(windows);
        if let Some((hook, cooling)) = begun {
            guarded(|| hook(&cooling));
        }
        #[cfg(feature = "metrics")]
        if begins {
            crate::metrics::cooldown(&keys.candidate, rest.class.as_str());
        }
    }
}

impl Default for Cooldowns {
    fn default() -> Self {
        Self::new()
    }
}

/// Reports to the cooldowns the end of an attempt that serves a call.
///
/// Only a completion, a failure and a step timeout are reported: any other end says nothing about
/// the candidate. A failure before the attempt serves the call goes to `Cooldowns::fail` instead.
#[derive(Debug)]
pub(crate) struct CooldownWatch {
    cooldowns: Cooldowns,
    keys: Keys,
    began: Duration,
    is_sole: bool,
}

impl CooldownWatch {
    /// Makes the observer of an attempt that began `ago` before now, and ends the windows that
    /// began before the attempt.
    pub(crate) fn new(cooldowns: Cooldowns, keys: Keys, ago: Duration, is_sole: bool) -> Self {
        let began = cooldowns.now().saturating_sub(ago);
        cooldowns.lift(&keys, began);
        Self {
            cooldowns,
            keys,
            began,
            is_sole,
        }
    }
}

impl CompletionObserver for CooldownWatch {
    fn ended(self: Box<Self>, reason: &TerminalReason, failure: Option<&Failure>) {
        // After the commit a text is no evidence, not even with a second witness.
        if let Some(failure) = failure {
            if let Some(rest) = failure.rest() {
                self.cooldowns.note(&self.keys, rest, self.is_sole);
            }
            return;
        }
        let class = match reason {
            TerminalReason::Completed => return self.cooldowns.succeed(&self.keys, self.began),
            TerminalReason::Failed(class) => *class,
            TerminalReason::StepTimeout => FailureClass::StepTimeout,
            TerminalReason::Slow => FailureClass::Slow,
            // Any other limit, or an end from outside, says nothing about the candidate.
            _ => return,
        };
        if let Some(rest) = Failure::new(class).rest() {
            self.cooldowns.note(&self.keys, rest, self.is_sole);
        }
    }
}

/// The cooldowns of a layer, with the identities of its candidates.
#[derive(Clone, Debug)]
pub(crate) struct CandidateCooldowns {
    pub(crate) handle: Cooldowns,
    identities: Vec<CooldownIdentity>,
}

/// The digests of one candidate's model, host and account, which depend on no request.
#[derive(Clone, Debug, PartialEq)]
struct CooldownIdentity {
    label: Arc<str>,
    model: u64,
    provider: u64,
    /// The digest of the candidate's account; `None` if requests use the caller's account.
    account: Option<u64>,
    /// The candidate's setting `forward_credentials`.
    forwards: bool,
}

impl CandidateCooldowns {
    pub(crate) fn new(cooldowns: Cooldowns, candidates: &[Arc<Candidate>]) -> Self {
        let identities = candidates.iter().map(|it| CooldownIdentity::of(it));
        let identities: Vec<_> = identities.collect();
        let mut known = cooldowns.shared.candidates.lock();
        for identity in &identities {
            if !known.contains(identity) {
                known.push(identity.clone());
            }
        }
        drop(known);
        Self {
            identities,
            handle: cooldowns,
        }
    }

    /// The cooldown keys of candidate `at`, for a request with the head `caller`.
    pub(crate) fn keys(
        &self,
        at: usize,
        caller: &Parts,
        operation: Option<Operation>,
    ) -> Option<Keys> {
        let identity = self.identities.get(at)?;
        let (headers, query) = (&caller.headers, caller.uri.query());
        Some(identity.keys(headers, query, operation))
    }
}

impl CooldownIdentity {
    fn of(candidate: &Candidate) -> Self {
        let account = match &candidate.credential {
            Some(id) => Some(digests::named_account(id)),
            // The account is not the caller's, so all callers share one cooldown, unless `keys`
            // adds the caller's headers or query.
            None if candidate.has_own_account() || candidate.hides_credentials() => {
                Some(digests::own_account(candidate))
            }
            None => None,
        };
        Self {
            label: candidate.label().into(),
            model: digests::model(candidate),
            provider: digests::provider(candidate),
            account,
            forwards: candidate.forward_credentials,
        }
    }

    fn keys(&self, caller: &HeaderMap, query: Option<&str>, operation: Option<Operation>) -> Keys {
        let forwarded = self.forwards.then(|| account_headers(caller));
        let forwarded = forwarded.filter(|headers| headers.iter().any(Option::is_some));
        let (account, is_callers) = match self.account {
            // A refusal may be due to the caller's headers or query, though the candidate's
            // account works.
            Some(own) if forwarded.is_some() || query.is_some() => {
                let forwarded = forwarded.unwrap_or_default();
                (digests::forwarded_account(own, query, forwarded), true)
            }
            Some(own) => (own, false),
            None => {
                let caller = account_headers(caller);
                (digests::callers_account(self.provider, query, caller), true)
            }
        };
        let key = |digest, is_callers| CooldownKey { digest, is_callers };
        let model = self.model ^ mark(operation);
        Keys {
            candidate: Arc::clone(&self.label),
            model: key(model, false),
            model_of_account: key(digests::model_of_account(model, account), is_callers),
            account: key(account, is_callers),
            provider: key(self.provider, false),
        }
    }
}

/// A number that tells the operations apart: a model may offer one and not another.
const fn mark(operation: Option<Operation>) -> u64 {
    match operation {
        // The products differ, and the digest is keyed.
        Some(operation) => (operation as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        None => 0,
    }
}
