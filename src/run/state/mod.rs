//! What a run hangs on each node of its tree.

mod deposit;
mod failing;
mod identity;
mod run_state;
mod steps;

pub(crate) use self::{
    failing::Failing,
    identity::{EntryLocation, Identity, Membership, Place, Registration, RunGuard},
    run_state::{EVENTS, HEARTBEAT, RunState},
};

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use self::{deposit::FirstDeposit, steps::Steps};
use super::{
    id::RunId,
    kinds::NodeKind,
    limits::ErrorCounts,
    report::{AttemptTarget, Hooks, ReportedUsage},
    tree::Node,
};
use crate::registry::Held;

// What was opened below a run.
const NOTHING: u8 = 0;
const ONE_CALL: u8 = 1;
const MORE: u8 = 2;

/// What a run hangs on each node of its tree.
// In this order: what an end reads stands first, as in the node.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct NodeState {
    /// When the tree was opened: zero of the core's clock.
    pub(crate) epoch: Instant,
    identity: OnceLock<Box<Identity>>,
    harness: OnceLock<Box<RunState>>,
    /// Put into a request, and no layer has taken over its settling yet.
    unclaimed: AtomicBool,
    /// A run that whoever opened it settles: nobody gave it a name by which it
    /// could be found again.
    single: AtomicBool,
    /// The one call that a single run was opened for.
    sole: AtomicBool,
    /// A layer opened the run, and settles it itself.
    owned: AtomicBool,
    /// A request opened the run, and each call of it so far was refused before an
    /// upstream was asked.
    unused: AtomicBool,
    /// A stream of this node has shown a heartbeat.
    pings: AtomicBool,
    /// Whether there is another to go to than whom an attempt goes to.
    followed: AtomicBool,
    /// What it did must not be done twice.
    effects: AtomicBool,
    /// What a call was asked with cannot be sent, or is not whole yet.
    refused: AtomicBool,
    /// A line of the log stands for its end.
    logged: AtomicBool,
    /// What was opened below a run, but for attempts: nothing, one call, or more.
    opened: AtomicU8,
    /// A silent attempt was repeated.
    repeated_silence: AtomicBool,
    pub(in crate::run) hooks: OnceLock<Box<Hooks>>,
    errors: OnceLock<Box<ErrorCounts>>,
    failing: Mutex<Option<Box<Failing>>>,
    /// The number of the root, by which a foreign tree's errors are told.
    pub(crate) tree: u64,
    pub(crate) heartbeats: AtomicU64,
    pub(crate) changes: AtomicU64,
    /// How many tries the call has made.
    tries: AtomicU32,
    /// Which turn of its run the call is; none if 0.
    turn: AtomicU32,
    /// How many attempts of the run were silent in a row.
    silent: AtomicU32,
    paid: FirstDeposit,
    steps: Mutex<Steps>,
    /// Whom an attempt goes to; what it is, those know who put it there.
    server: OnceLock<Arc<dyn AttemptTarget>>,
    /// Whom the last attempt of a call went to.
    asked: Mutex<Option<Arc<dyn AttemptTarget>>>,
    told: Mutex<ReportedUsage>,
    /// A call that may have to be refused yet.
    held: OnceLock<Box<Held>>,
}

impl NodeState {
    pub(crate) fn new(epoch: Instant, tree: u64) -> Self {
        Self {
            epoch,
            tree,
            unclaimed: AtomicBool::new(false),
            single: AtomicBool::new(false),
            sole: AtomicBool::new(false),
            owned: AtomicBool::new(false),
            unused: AtomicBool::new(false),
            heartbeats: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            tries: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            paid: FirstDeposit::default(),
            steps: Mutex::default(),
            pings: AtomicBool::new(false),
            failing: Mutex::new(None),
            errors: OnceLock::new(),
            server: OnceLock::new(),
            followed: AtomicBool::new(false),
            effects: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            logged: AtomicBool::new(false),
            opened: AtomicU8::new(NOTHING),
            repeated_silence: AtomicBool::new(false),
            silent: AtomicU32::new(0),
            asked: Mutex::new(None),
            told: Mutex::default(),
            hooks: OnceLock::new(),
            harness: OnceLock::new(),
            held: OnceLock::new(),
            identity: OnceLock::new(),
        }
    }

    pub(crate) fn for_child(&self) -> Self {
        Self::new(self.epoch, self.tree)
    }

    /// The core's clock.
    pub(crate) fn now(&self) -> Duration {
        Instant::now().saturating_duration_since(self.epoch)
    }

    pub(crate) fn set_unclaimed(&self) {
        self.unclaimed.store(true, Ordering::Release);
    }

    /// Whether the caller is the first to ask, and so settles the node.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.unclaimed.load(Ordering::Acquire) && self.unclaimed.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn set_single(&self, single: bool) {
        self.single.store(single, Ordering::Release);
    }

    pub(crate) fn is_single(&self) -> bool {
        self.single.load(Ordering::Acquire)
    }

    pub(crate) fn set_sole(&self) {
        self.sole.store(true, Ordering::Release);
    }

    pub(crate) fn set_owned(&self) {
        self.owned.store(true, Ordering::Release);
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.owned.load(Ordering::Acquire)
    }

    /// For the request that opens the run, before another can find it.
    pub(crate) fn set_unused(&self) {
        self.unused.store(true, Ordering::Release);
    }

    /// Work was admitted, or the program has the run: it stays open for its id.
    #[inline]
    pub(crate) fn set_used(&self) {
        // Mostly it is: a load leaves the cache line shared.
        if self.unused.load(Ordering::Acquire) {
            self.unused.store(false, Ordering::Release);
        }
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.unused.load(Ordering::Acquire)
    }

    pub(crate) fn is_sole(&self) -> bool {
        self.sole.load(Ordering::Acquire)
    }

    pub(crate) const fn tries(&self) -> &AtomicU32 {
        &self.tries
    }

    pub(crate) const fn turn(&self) -> &AtomicU32 {
        &self.turn
    }

    pub(crate) const fn followed(&self) -> &AtomicBool {
        &self.followed
    }

    pub(crate) const fn effects(&self) -> &AtomicBool {
        &self.effects
    }

    pub(crate) const fn repeated_silence(&self) -> &AtomicBool {
        &self.repeated_silence
    }

    /// Whether the request of this call is refused, or not whole: nothing was asked with it.
    pub(crate) fn set_refused(&self, is_refused: bool) {
        self.refused.store(is_refused, Ordering::Release);
    }

    pub(in crate::run) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    /// Whether the caller is the first to ask, and so logs the end of the node.
    pub(in crate::run) fn begin_log(&self) -> bool {
        !self.logged.swap(true, Ordering::AcqRel)
    }

    /// A node of this kind is opened right below.
    pub(in crate::run) fn count_opened(&self, kind: NodeKind) {
        let opened = match kind {
            NodeKind::Attempt => return,
            NodeKind::Call => ONE_CALL,
            NodeKind::Run | NodeKind::Tool => MORE,
        };
        let first =
            self.opened
                .compare_exchange(NOTHING, opened, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            self.opened.store(MORE, Ordering::Release);
        }
    }

    /// Whether one call, and no tool or sub-agent, was ever opened right below.
    pub(in crate::run) fn is_one_call(&self) -> bool {
        self.opened.load(Ordering::Acquire) == ONE_CALL
    }

    pub(crate) const fn silent(&self) -> &AtomicU32 {
        &self.silent
    }

    pub(crate) const fn server(&self) -> &OnceLock<Arc<dyn AttemptTarget>> {
        &self.server
    }

    pub(in crate::run) const fn asked(&self) -> &Mutex<Option<Arc<dyn AttemptTarget>>> {
        &self.asked
    }

    pub(in crate::run) fn lock_told(&self) -> MutexGuard<'_, ReportedUsage> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::run) fn hooks(&self) -> &Hooks {
        self.hooks.get_or_init(Box::default)
    }

    /// What only a run has.
    pub(crate) fn harness(&self) -> &RunState {
        self.harness.get_or_init(Box::default)
    }

    pub(crate) fn harness_if_any(&self) -> Option<&RunState> {
        self.harness.get().map(|harness| &**harness)
    }

    pub(crate) const fn held(&self) -> &OnceLock<Box<Held>> {
        &self.held
    }

    pub(crate) fn registration(&self) -> Option<Arc<dyn Registration>> {
        self.identity()?.registration.upgrade()
    }

    pub(crate) fn identify(&self, identity: Identity) -> bool {
        self.identity.set(Box::new(identity)).is_ok()
    }

    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.identity.get().map(|identity| &**identity)
    }

    pub(in crate::run) const fn pings(&self) -> &AtomicBool {
        &self.pings
    }
}

impl Node<NodeState> {
    /// The nearest node of kind Run, at or above this one.
    pub(crate) fn nearest_run(&self) -> &Self {
        let mut nodes = std::iter::once(self).chain(self.ancestors());
        nodes
            .find(|node| node.kind() == NodeKind::Run)
            .unwrap_or(self)
    }

    pub(crate) fn run_id(&self) -> RunId {
        let run = self.nearest_run();
        let known = run.payload.identity().map(|identity| identity.id.clone());
        known.unwrap_or_else(|| RunId::made(run.number()))
    }
}
