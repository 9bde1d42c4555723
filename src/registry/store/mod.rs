//! What several processes know of their runs together.
//!
//! A registry holds the runs of one process. Behind a balancer a run may have requests at several
//! processes, *replicas*, and each then has its own part of the run. A [`RunStore`] that the
//! replicas [share](crate::RunRegistry::share) makes them one:
//!
//! - an end that one replica stores ends the run on all, and its id stays refused;
//! - a cap on turns holds for the sum of all parts;
//! - a cap on tokens, or on their cost, holds for the sum of what the parts have told;
//! - the caps of an owner hold for the sum of all replicas, and outlive a restart;
//! - the age of a run counts from its first opening, wherever that was;
//! - an abort of a session ends its runs on all replicas;
//! - a cooldown keeps all replicas away from a candidate, for the time that is left, and a cleared
//!   one keeps none;
//! - a [sticky](crate::ModelFallbackLayer::sticky) session goes first to the candidate that served it
//!   elsewhere.
//!
//! A [`RunStoreLayer`](crate::layers::run_store::RunStoreLayer) asks the store before a request
//! finds its run, and about its owner in the same round trip; a replica that only tells and listens
//! lets the caps hold for itself alone. A shutdown, a completion and what a registry forgets are never told: a replica that stops ends no
//! run elsewhere.
//!
//! # Candidates
//!
//! A [`RunStoreLayer`](crate::layers::run_store::RunStoreLayer) connects the cooldowns and the
//! sticky sessions of a fallback layer with the store; [`AgentStack`](crate::AgentStack) does so for
//! its own. Replicas find a candidate by digests of its settings, under their common
//! [secret](crate::registry::SharedSecret), in whatever order they list theirs; one that a replica
//! does not have means nothing to it.
//!
//! | what | elsewhere |
//! |---|---|
//! | a window begins | it holds, with its class, for the time that is left; of two for one key the longer one |
//! | a call that a candidate serves ends its windows | they end, those that began after the call excepted |
//! | [`Cooldowns::clear`](crate::Cooldowns::clear) | the windows end that began before it |
//! | probes, suspicions, retry budgets, health | stay each replica's own |
//! | a session gets another candidate | a hint: a candidate in a cooldown is passed over |
//!
//! A replica reads the running windows when it begins to listen, and whenever it may have missed
//! news. A session's candidate comes with the news, and with the answer about a run that the session
//! opens. Of sessions without a name nothing is told.
//!
//! # The same instant
//!
//! The first end that reaches the store is the run's end: other replicas get that one. A replica
//! that has stored another reason before keeps its own.
//!
//! # Examples
//!
//! Two registries of one process, as in a test:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() -> Result<(), tower_agent::BoxError> {
//! use tower_agent::{
//!     Owner, RunRegistry, TerminalReason,
//!     registry::store::InMemoryRunStore,
//! };
//!
//! let store = InMemoryRunStore::new();
//! let [one, two] = [(); 2].map(|()| RunRegistry::new().share(store.replica()));
//! tokio::spawn(two.listen());
//!
//! let here = one.open(Owner::default(), "nightly".parse()?);
//! let there = two.open(Owner::default(), "nightly".parse()?);
//! here.end(TerminalReason::Aborted);
//!
//! assert_eq!(there.ended().await, TerminalReason::Aborted);
//! # Ok(())
//! # }
//! ```

mod candidates;
mod listen;
mod memory;
mod memory_candidates;
mod memory_owners;
mod owner_counts;
mod parts;

pub(crate) use self::{
    candidates::HearsOfCandidates,
    parts::{AskedRun, Parts, StoreCell},
};
pub use self::{
    candidates::{SharedCooldown, StickyCandidate, StoredCooldowns},
    memory::{InMemoryReplica, InMemoryRunStore},
    owner_counts::{
        OwnerCounts, OwnerElsewhere, OwnerMinute, OwnerPeriod, OwnerQuestion, PeriodElsewhere,
    },
};

use std::{error::Error, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Frozen, Owner};
use crate::run::{RunAdjustments, RunId, TerminalReason, Terminated, TokenMeasure, TokensSpent};

/// A future of a [`RunStore`].
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The store of one replica: what it asks, what it tells the others, and what it hears of them.
pub trait RunStore: fmt::Debug + Send + Sync + 'static {
    /// Asks what all replicas know of a run, for which this replica has a request.
    ///
    /// The first question about a run makes it known, and its age then counts from that time. One
    /// round trip.
    ///
    /// With [`turns`](RunQuestion::turns) the store grants turns: this part then has
    /// `max(taken, min(want, cap - elsewhere))` in all, unless a question or news of a higher number
    /// came before. So the same question twice grants nothing more, what nobody takes goes back, and
    /// the sum of all parts never exceeds the cap.
    ///
    /// The caller limits the time of the future, and drops it at that limit. A question that was
    /// dropped may have been answered.
    fn ask(self: Arc<Self>, question: RunQuestion) -> StoreFuture<Result<Recalled, StoreLost>>;

    /// Asks what the other replicas have counted for an owner. One round trip; a question about a
    /// run [carries](RunQuestion::owner) the same one with it.
    ///
    /// The store takes the [counts](OwnerQuestion::counts) over, and grants what they ask for: of
    /// the open runs, and of the turns of the present minute, this replica then has
    /// `min(have + asked, max(cap - others, have))`. So the sum of all replicas never exceeds a
    /// cap, and the same question twice grants nothing more.
    ///
    /// The open runs of a replica that gave no sign of life for 30 s do not count. Turns and tokens
    /// count for 61 minutes from the beginning of their minute, whatever became of the replica.
    fn ask_owner(
        self: Arc<Self>,
        question: OwnerQuestion,
    ) -> StoreFuture<Result<OwnerElsewhere, StoreLost>>;

    /// Tells the other replicas. Never waits: a store that cannot be reached keeps the news until
    /// it can.
    ///
    /// A replica tells [what it has spent](RunNews::Spent), and [counted](RunNews::Counted) for an
    /// owner, at each frame of a stream. Of one part, and of one owner, only the last such news
    /// count, so a store may leave out those before, and tell them at intervals of a quarter of a
    /// second or less.
    fn tell(&self, news: RunNews);

    /// Waits until other replicas have carried out what this one told about a run or a session.
    ///
    /// Resolves once all replicas that are known to live have, or after `wait`. A replica has
    /// carried it out when it [says so](RunNews::CarriedOut) of a [barrier](Heard::Barrier) that
    /// the store puts behind the news.
    fn reach(
        self: Arc<Self>,
        subject: NewsSubject,
        wait: Duration,
    ) -> StoreFuture<Result<Reach, StoreLost>>;

    /// Waits for news of the other replicas, in the order in which the store got them.
    ///
    /// The future must not lose news when it is dropped.
    fn next(self: Arc<Self>) -> StoreFuture<Heard>;

    /// Lists the cooldowns of all replicas.
    ///
    /// What this replica told before, and the store has taken, is among them.
    fn cooldowns(self: Arc<Self>) -> StoreFuture<Result<StoredCooldowns, StoreLost>>;

    /// Says whose new runs are refused at all replicas.
    ///
    /// What this replica told before, and the store has taken, is among them.
    fn frozen(self: Arc<Self>) -> StoreFuture<Result<StoredFreezes, StoreLost>>;
}

/// A run among those of all replicas: its owner, and its given id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// The owner of the run.
    pub owner: Owner,
    /// The id that the program or a request gave the run.
    pub id: RunId,
}

/// What news are about: see [`RunStore::reach`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NewsSubject {
    /// A run.
    Run(RunKey),
    /// A session.
    Session {
        /// The owner of the session.
        owner: Owner,
        /// The name of the session.
        session: Arc<str>,
    },
}

/// How many replicas have carried out what one of them told.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The number of replicas that have, with the one that told it.
    pub replicas: u32,
    /// The number of replicas that lived a moment ago and have not answered. They carry it out when
    /// they hear of it.
    pub silent: u32,
}

/// A question about a run: see [`RunStore::ask`].
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct RunQuestion {
    /// The run.
    pub run: RunKey,
    /// The part of the run that asks. Each part counts its own turns.
    pub part: u64,
    /// The session in which a new run is opened.
    pub session: Option<Arc<str>>,
    /// The run of the same owner whose child a new run is.
    pub parent: Option<RunId>,
    /// The turns that the part needs; `None` if nothing caps them.
    pub turns: Option<TurnsAsked>,
    /// Whether the candidates of the session are asked for, too.
    pub is_sticky: bool,
    /// What the request asks about its owner; `None` if no cap needs it.
    pub owner: Option<OwnerQuestion>,
}

impl RunQuestion {
    /// Makes a question about a run, for this part of it: without a session, a parent or turns.
    #[must_use]
    pub const fn new(run: RunKey, part: u64) -> Self {
        Self {
            run,
            part,
            session: None,
            parent: None,
            turns: None,
            is_sticky: false,
            owner: None,
        }
    }
}

/// The turns that a part of a run needs, in all, and the cap on those of all parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnsAsked {
    /// The number of the question among those of this part; later ones have higher numbers. A
    /// question that comes behind a later one changes nothing.
    pub number: u64,
    /// The turns that this part has taken. They stay its own, whatever the cap is.
    pub taken: u32,
    /// The turns that this part has taken, with those that requests are about to take.
    pub want: u32,
    /// The cap on the turns of all parts together.
    pub cap: u32,
    /// How much of the cap was [added](RunAdjustments::turns) to this part of the run. The store grants
    /// what was added elsewhere beyond that, too.
    pub added: u32,
}

/// What the replicas know of a run: the answer to a [`RunQuestion`].
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Recalled {
    /// Which run of this id it is: an id that is used anew has another number.
    pub incarnation: u64,
    /// The time from the run's first opening until now, or until its end.
    pub age: Duration,
    /// The end of the run; `None` while it lives.
    pub end: Option<RunEnd>,
    /// The end of the run's parent, if the question named one and that one has ended other than as
    /// completed.
    pub parent_end: Option<RunEnd>,
    /// The number of turns that this part may take, in all.
    pub granted: u32,
    /// The number of turns that the other parts were granted.
    pub turns_elsewhere: u32,
    /// What the other parts have spent, as far as they have told.
    pub spent_elsewhere: TokensSpent,
    /// What was changed about the run.
    pub adjusted: RunAdjustments,
    /// The candidates that served the question's session last, by the model that it asked for.
    pub candidates: Vec<StickyCandidate>,
    /// Whether another part of the run has not left.
    pub is_held_elsewhere: bool,
    /// What the other replicas have counted for the run's owner; `None` if that was not
    /// [asked](RunQuestion::owner), or cannot be read.
    pub owner: Option<OwnerElsewhere>,
}

/// The end of a run, as one replica stored it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct RunEnd {
    /// The reason of the end.
    pub reason: TerminalReason,
    /// How long the run had lasted. Zero if a replica that did not hold the run ended it: then
    /// the store knows its [`age`](Recalled::age).
    pub elapsed: Duration,
    /// The limit on time that passed; `None` if none did.
    pub limit: Option<Duration>,
    /// The cap on turns that was reached; `None` if none was.
    pub at_turn: Option<u32>,
    /// The cap on tokens, or on their cost, that was reached; `None` if none was.
    pub at_tokens: Option<TokenCapReached>,
    /// Whether a cap on turns ended the run. The calls that other replicas have admitted then go on, and
    /// their parts end after them.
    pub at_cap: bool,
}

impl RunEnd {
    /// Makes the end of a run for this reason, which no limit caused.
    #[must_use]
    pub const fn new(reason: TerminalReason) -> Self {
        Self {
            reason,
            elapsed: Duration::ZERO,
            limit: None,
            at_turn: None,
            at_tokens: None,
            at_cap: false,
        }
    }

    /// The error of a request for the run of this id, which has ended elsewhere at this `age`.
    pub(crate) fn refusal(self, run: RunId, age: Duration) -> Terminated {
        let elapsed = if self.elapsed.is_zero() {
            age
        } else {
            self.elapsed
        };
        let kind = self.limit_kind();
        Terminated::elsewhere(run, self.reason, elapsed, self.limit, kind)
    }
}

/// The cap on the tokens of a run, or on their cost, that ended it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenCapReached {
    /// What the cap counts.
    pub measure: TokenMeasure,
    /// The number of tokens, or the cost.
    pub cap: f64,
    /// Whether some of the tokens are an estimate.
    pub estimated: bool,
}

/// What one replica tells the others.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum RunNews {
    /// A run has ended.
    Ended {
        /// The run.
        run: RunKey,
        /// Which run of this id it is; `None` for the one that the store knows now.
        incarnation: Option<u64>,
        /// Whether the end holds only for a run that the store knows already: nobody here does. Without
        /// an incarnation, replicas hear of one that the store does not know, too: its id may be one
        /// that a replica has made.
        if_known: bool,
        /// Its end.
        end: RunEnd,
    },
    /// The live runs of a session were aborted.
    SessionEnded {
        /// The owner of the session.
        owner: Owner,
        /// The name of the session.
        session: Arc<str>,
        /// The run of the session that goes on.
        spared: Option<RunId>,
    },
    /// A part of a run has spent so much.
    Spent {
        /// The run.
        run: RunKey,
        /// The part.
        part: u64,
        /// Which run of this id it is; `None` for the one that the store knows now.
        incarnation: Option<u64>,
        /// What the part has spent since it began. It can be less than before, as what an upstream
        /// states replaces an estimate.
        spent: TokensSpent,
    },
    /// A run was extended, suspended or resumed at this replica.
    Adjusted {
        /// The run.
        run: RunKey,
        /// Which run of this id it is; `None` for the one that the store knows now.
        incarnation: Option<u64>,
        /// All that was changed about it there so far. The store [merges](RunAdjustments::merged) it.
        adjusted: RunAdjustments,
        /// Whether the run is suspended from now on. `None` if the replica only extended it: then this
        /// stays as it is.
        suspension: Option<bool>,
    },
    /// A replica has counted so much for an owner.
    ///
    /// Of the turns and runs for which its requests [ask](OwnerCounts::turns_asked), the replica
    /// keeps what it was granted before, and gets no more.
    Counted(OwnerCounts),
    /// A request of a part has left that had asked for a turn. The part keeps at most so many.
    GaveBack {
        /// The run.
        run: RunKey,
        /// The part.
        part: u64,
        /// The number of the news among the [questions](TurnsAsked::number) of the part.
        number: u64,
        /// The turns that the part has taken, with those that requests are about to take.
        turns: u32,
    },
    /// A replica no longer has this part of a run. What it took and spent stays counted.
    Left {
        /// The run.
        run: RunKey,
        /// The part.
        part: u64,
        /// The turns that the part has taken.
        turns: u32,
        /// Whether the part completed, as by being idle. Once no other part is left, the run is then
        /// over, and the next request of its id opens another one. A part that leaves otherwise, as at
        /// a shutdown, leaves the run to the requests that come.
        completed: bool,
    },
    /// The replica has carried out all that it heard before this [barrier](Heard::Barrier).
    CarriedOut {
        /// The barrier.
        barrier: Arc<str>,
    },
    /// The program opens the id of an ended run anew.
    Reopened {
        /// The run.
        run: RunKey,
    },
    /// An operator aborted these runs, of all owners.
    AbortedForAll(AbortTarget),
    /// A cooldown has begun. Told twice, it is one.
    CooldownBegan(SharedCooldown),
    /// A call that the candidate serves has ended this window, but no other one of the key.
    CooldownEnded {
        /// The key of the window.
        key: u64,
        /// The number of the window.
        window: u64,
    },
    /// The program clears the cooldowns of a candidate.
    CooldownsCleared {
        /// The label of the candidate.
        candidate: Arc<str>,
        /// The digests of its models, accounts and hosts.
        keys: Vec<u64>,
        /// When it did. A window that has begun later stays.
        at: Instant,
    },
    /// An operator refuses new runs, or admits them again. Every replica hears it, this one too.
    Frozen {
        /// Whose; `None` for those of all owners.
        whose: Option<Owner>,
        /// Whether they are refused from now on.
        is_frozen: bool,
    },
    /// A session has another candidate than before. A store that cannot be reached need not keep
    /// these news.
    SessionServed {
        /// The owner of the session.
        owner: Owner,
        /// The name of the session.
        session: Arc<str>,
        /// The candidate.
        served: StickyCandidate,
    },
}

/// What an operator aborts: the runs of an id, or those of a session, of all owners.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AbortTarget {
    /// The runs of this id.
    Run(RunId),
    /// The live runs of this session.
    Session(Arc<str>),
}

/// What a replica hears of the others.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum Heard {
    /// A run has ended.
    Ended {
        /// The run.
        run: RunKey,
        /// Which run of this id it is; 0 for one that the store does not know, as its id was made by a
        /// replica.
        incarnation: u64,
        /// Its end.
        end: RunEnd,
    },
    /// The live runs of a session were aborted.
    SessionEnded {
        /// The owner of the session.
        owner: Owner,
        /// The name of the session.
        session: Arc<str>,
        /// The run of the session that goes on.
        spared: Option<RunId>,
    },
    /// What the other parts of a run have spent, in answer to what this replica told of its own.
    Spent {
        /// The run.
        run: RunKey,
        /// Which run of this id it is.
        incarnation: u64,
        /// The sum of the other parts.
        elsewhere: TokensSpent,
    },
    /// Another replica asks who has come so far: the registry [answers](RunNews::CarriedOut) it.
    Barrier {
        /// The name of the barrier, which is the store's own.
        barrier: Arc<str>,
    },
    /// An operator aborted these runs, of all owners. Of a run that the store knows, its end was
    /// heard before.
    AbortedForAll(AbortTarget),
    /// A cooldown has begun. A replica hears its own, too: the store's order decides which number a
    /// window has.
    CooldownBegan(SharedCooldown),
    /// This window has ended before its time, by whichever replica.
    CooldownEnded {
        /// The key of the window.
        key: u64,
        /// The number of the window.
        window: u64,
    },
    /// New runs are refused, or admitted again, by whichever replica.
    Frozen {
        /// Whose; `None` for those of all owners.
        whose: Option<Owner>,
        /// Whether they are refused.
        is_frozen: bool,
        /// The [epoch](StoredFreezes::epoch) of the store.
        epoch: u64,
    },
    /// A session has this candidate.
    SessionServed(StickyCandidate),
    /// What the other replicas have counted for an owner, in answer to what this replica told.
    OwnerCounted {
        /// The owner.
        owner: Owner,
        /// The [number](OwnerCounts::number) of the counts that were told.
        number: u64,
        /// The counts of the others.
        elsewhere: OwnerElsewhere,
    },
    /// News that were told while this replica did not hear of them: an end, or an abort. Runs that
    /// the replica has opened since then go on.
    Missed {
        /// The time since the news were told.
        ago: Duration,
        /// The news.
        news: Box<Self>,
    },
    /// News were lost, or the store was away: the replica asks anew for each of its runs, and for the
    /// cooldowns and freezes, and tells its counts of owners again.
    Hole,
}

/// Whose new runs are refused at all replicas.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredFreezes {
    /// Whose.
    pub frozen: Frozen,
    /// A random number, from the first freeze or thaw that the store has heard on: a store that has lost
    /// what it had gets another one, by which a replica knows to tell it again. `None` before the first.
    pub epoch: Option<u64>,
}

/// The error of a store that does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreLost;

impl fmt::Display for StoreLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store of runs does not answer")
    }
}

impl Error for StoreLost {}
