//! Keeps requests away from a candidate for a while after it has failed.
//!
//! The handle of a program and the identity of a candidate stand here.

mod windows;

pub(crate) use self::windows::{
    CooldownBackoff, CooldownKey, CooldownProbe, CooldownState, CooldownWindows, Keys,
};

use std::{
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderMap, HeaderValue, request::Parts};
use tokio::time::Instant;

use crate::{
    attempt::{ApiKey, Candidate, CompletionObserver, WITHIN_ACCOUNT},
    headers::CREDENTIALS,
    llm::failure::{Failure, FailureClass},
    lock::Lock,
    run::TerminalReason,
};

/// The cooldowns of failed candidates: for a window, no call is sent to them.
///
/// | [class of the failure](FailureClass::cool) | windows in a row |
/// |---|---|
/// | mostly passes by itself | 30 s, 60 s, then 5 min |
/// | a person has to fix it | 10 min, doubling to a day |
/// | an exhausted quota | 5 h, doubling to a day |
///
/// A window is never shorter than the wait that the upstream asked for, up to a day. A
/// window that is running is not extended. A call that was served to its end resets the row.
///
/// | failure | what cools down |
/// |---|---|
/// | a rate limit, a model that is gone | the model on one account |
/// | a refused key, an exhausted quota | the account |
/// | an untrusted certificate, a refused region | the host |
/// | any other | the model, on all accounts |
///
/// In the last two minutes of a window one call in 30 s is sent as a probe.
///
/// Cooldowns are cheap to clone; clones share the windows, of which at most 256 are
/// remembered. The clock is tokio's.
///
/// ```
/// use std::time::Duration;
/// use tower_agent::{Candidate, Cooldowns, ModelFallbackLayer};
///
/// let cooldowns = Cooldowns::new().short([5, 15, 60].map(Duration::from_secs));
/// let layer = ModelFallbackLayer::new([Candidate::new("large"), Candidate::new("small")])
///     .cooldowns(cooldowns.clone());
/// ```
#[derive(Clone, Debug)]
pub struct Cooldowns {
    shared: Arc<SharedCooldowns>,
    backoff: CooldownBackoff,
    probe: CooldownProbe,
}

#[derive(Debug)]
struct SharedCooldowns {
    opened: Instant,
    hasher: RandomState,
    windows: Lock<CooldownWindows>,
    /// The number of windows: mostly none, and then no call takes the lock.
    known: AtomicUsize,
}

impl Cooldowns {
    /// Makes cooldowns with the default windows; no candidate is in one yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(SharedCooldowns {
                opened: Instant::now(),
                hasher: RandomState::new(),
                windows: Lock::default(),
                known: AtomicUsize::new(0),
            }),
            backoff: CooldownBackoff::new(),
            probe: CooldownProbe {
                every: Duration::from_secs(30),
                margin: Duration::from_secs(120),
            },
        }
    }

    /// The lengths of the windows after a failure that mostly passes by itself.
    ///
    /// The three windows follow the first failure in a row, the second, and every later one.
    #[must_use]
    pub const fn short(mut self, windows: [Duration; 3]) -> Self {
        self.backoff.short = windows;
        self
    }

    /// The length of the first window after a failure that a person has to fix.
    #[must_use]
    pub const fn long(mut self, first: Duration) -> Self {
        self.backoff.long = first;
        self
    }

    /// The length of the first window after a quota was exhausted.
    #[must_use]
    pub const fn quota(mut self, first: Duration) -> Self {
        self.backoff.quota = first;
        self
    }

    /// The limit on windows that double, and on those for which an upstream asks.
    #[must_use]
    pub const fn most(mut self, window: Duration) -> Self {
        self.backoff.most = window;
        self
    }

    /// When a candidate in a cooldown is probed by one call.
    ///
    /// The probe is made once in the time `every`, while at most `margin` of its window
    /// is left; never if `margin` is zero.
    #[must_use]
    pub const fn probe(mut self, every: Duration, margin: Duration) -> Self {
        self.probe = CooldownProbe { every, margin };
        self
    }

    /// The number of remembered windows, including those that have ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.known.load(Ordering::Acquire)
    }

    /// Whether these cooldowns remember no window.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A keyed digest of a value, which no caller can predict.
    pub(crate) fn digest(&self, of: impl Hash) -> u64 {
        self.shared.hasher.hash_one(of)
    }

    fn now(&self) -> Duration {
        self.shared.opened.elapsed()
    }

    /// The state of the candidate with these keys: open, due for a probe, or cooling down. It
    /// claims no probe.
    pub(crate) fn state(&self, keys: &Keys) -> CooldownState {
        let now = self.now();
        self.shared.windows.lock().state(keys, self.probe, now)
    }

    /// Whether the candidate with these keys may be tried now; of concurrent calls one alone may
    /// probe.
    pub(crate) fn claim(&self, keys: &Keys) -> bool {
        let now = self.now();
        let mut windows = self.shared.windows.lock();
        let state = windows.state(keys, self.probe, now);
        if state == CooldownState::Probe {
            windows.probe(keys, now);
        }
        !matches!(state, CooldownState::Cooling { .. })
    }

    pub(crate) fn fail(&self, keys: &Keys, failure: &Failure) {
        // Without a message it may be a firewall's page about this one prompt, which must
        // not keep the host from all callers.
        if failure.class == FailureClass::Region && failure.message.is_empty() {
            return;
        }
        self.note(keys, failure.class, failure.retry_after);
    }

    /// Ends the windows before `began`, the start of an attempt that serves.
    fn lift(&self, keys: &Keys, began: Duration) {
        if !self.is_empty() {
            let now = self.now();
            self.shared.windows.lock().lift(keys, began, now);
        }
    }

    fn succeed(&self, keys: &Keys, began: Duration) {
        if !self.is_empty() {
            let mut windows = self.shared.windows.lock();
            windows.succeed(keys, began);
            self.shared.known.store(windows.len(), Ordering::Release);
        }
    }

    fn note(&self, keys: &Keys, class: FailureClass, asked: Option<Duration>) {
        let now = self.now();
        let mut windows = self.shared.windows.lock();
        windows.fail(keys, class, asked, &self.backoff, now);
        self.shared.known.store(windows.len(), Ordering::Release);
    }
}

impl Default for Cooldowns {
    fn default() -> Self {
        Self::new()
    }
}

/// Records in the cooldowns how an attempt that serves a call ends.
#[derive(Debug)]
pub(crate) struct CooldownWatch {
    cooldowns: Cooldowns,
    keys: Keys,
    began: Duration,
}

impl CooldownWatch {
    /// Makes the observer of an attempt that serves, and began the time `ago` before now.
    pub(crate) fn new(cooldowns: Cooldowns, keys: Keys, ago: Duration) -> Self {
        let began = cooldowns.now().saturating_sub(ago);
        cooldowns.lift(&keys, began);
        Self {
            cooldowns,
            keys,
            began,
        }
    }
}

impl CompletionObserver for CooldownWatch {
    fn ended(self: Box<Self>, reason: &TerminalReason) {
        let class = match reason {
            TerminalReason::Completed => return self.cooldowns.succeed(&self.keys, self.began),
            TerminalReason::Failed(class) => *class,
            TerminalReason::StepTimeout => FailureClass::Silence,
            // A limit or an end from outside says nothing about the next request.
            _ => return,
        };
        self.cooldowns.note(&self.keys, class, None);
    }
}

/// The cooldowns of a layer, with the keys of its candidates.
#[derive(Clone, Debug)]
pub(crate) struct CandidateCooldowns {
    pub(crate) handle: Cooldowns,
    identities: Vec<CooldownIdentity>,
}

/// The digests of one candidate that do not depend on a request.
#[derive(Clone, Copy, Debug)]
struct CooldownIdentity {
    model: u64,
    provider: u64,
    /// The digest of the candidate's account; `None` if the caller's account is used.
    account: Option<u64>,
    /// Whether the candidate also gets the caller's credentials.
    forwards: bool,
}

impl CandidateCooldowns {
    pub(crate) fn new(cooldowns: Cooldowns, candidates: &[Arc<Candidate>]) -> Self {
        let identities = candidates
            .iter()
            .map(|it| CooldownIdentity::of(it, &cooldowns));
        Self {
            identities: identities.collect(),
            handle: cooldowns,
        }
    }

    /// The cooldown keys of the candidate at `at`, for a caller with this head.
    pub(crate) fn keys(&self, at: usize, caller: &Parts) -> Option<Keys> {
        let identity = self.identities.get(at)?;
        Some(identity.keys(&self.handle, &caller.headers, caller.uri.query()))
    }
}

impl CooldownIdentity {
    fn of(candidate: &Candidate, cooldowns: &Cooldowns) -> Self {
        let origin = candidate.base_url.as_ref().map(|url| url.origin());
        let host = candidate.base_url.as_ref().map(|url| url.authority());
        let base_url = candidate.base_url.as_ref().map(ToString::to_string);
        let account = match &candidate.credential {
            Some(id) => Some(cooldowns.digest(("account", id))),
            // No caller's account is sent to its upstream, so all callers share one.
            None if candidate.has_own_account() || candidate.is_sent_no_account() => {
                let key = candidate.api_key.as_ref().map(ApiKey::as_bytes);
                Some(cooldowns.digest((origin, key, account(&candidate.headers))))
            }
            None => None,
        };
        Self {
            model: cooldowns.digest((candidate.label(), candidate.model(), base_url)),
            provider: cooldowns.digest(("provider", host)),
            account,
            forwards: candidate.forward_credentials,
        }
    }

    fn keys(&self, cooldowns: &Cooldowns, caller: &HeaderMap, query: Option<&str>) -> Keys {
        let forwarded = self.forwards.then(|| account(caller));
        let forwarded = forwarded.filter(|headers| headers.iter().any(Option::is_some));
        let (account, is_callers) = match self.account {
            // The upstream may refuse what the caller adds, on an account that is in order.
            Some(own) if forwarded.is_some() || query.is_some() => {
                (cooldowns.digest((own, forwarded, query)), true)
            }
            Some(own) => (own, false),
            None => (
                cooldowns.digest((self.provider, account(caller), query)),
                true,
            ),
        };
        let key = |digest, is_callers| CooldownKey { digest, is_callers };
        Keys {
            model: key(self.model, false),
            model_of_account: key(cooldowns.digest((self.model, account)), is_callers),
            account: key(account, is_callers),
            provider: key(self.provider, false),
        }
    }
}

/// The values of the headers that name the account of a call.
fn account(headers: &HeaderMap) -> [Option<&[u8]>; 6] {
    let value = |name| headers.get(name).map(HeaderValue::as_bytes);
    let [bearer, key, plain, google] = CREDENTIALS.each_ref().map(value);
    let [organization, project] = WITHIN_ACCOUNT.each_ref().map(value);
    [bearer, key, plain, google, organization, project]
}
