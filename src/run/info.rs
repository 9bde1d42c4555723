use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    NodeKind, Notice, Run, RunId, Step, TerminalReason, Trajectory,
    core::Node,
    errors::{ErrorCounts, ErrorKey, Verdict},
    harness::Harness,
    registry::{Held, Listed},
    summary::Hooks,
    told::Told,
    tries::Server,
};

/// What a run hangs on each node of its tree.
// In this order: what an end reads stands first, as in the node.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Info {
    /// When the tree was opened: zero of the core's clock.
    pub(crate) epoch: Instant,
    identity: OnceLock<Box<Identity>>,
    harness: OnceLock<Box<Harness>>,
    /// Put into a request, and no layer has taken over its settling yet.
    unclaimed: AtomicBool,
    /// A run that whoever opened it settles: nobody gave it a name by which it
    /// could be found again.
    single: AtomicBool,
    /// The one call that a single run was opened for.
    sole: AtomicBool,
    /// A layer opened the run, and settles it itself.
    owned: AtomicBool,
    /// A stream of this node has shown a heartbeat.
    pings: AtomicBool,
    /// Whether there is another to go to than whom an attempt goes to.
    followed: AtomicBool,
    /// What it did must not be done twice.
    effects: AtomicBool,
    /// A silent attempt was repeated.
    repeated_silence: AtomicBool,
    pub(super) hooks: OnceLock<Box<Hooks>>,
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
    /// The bucket that the call paid into first; none if 0.
    paid: AtomicUsize,
    /// The others.
    paid_besides: Mutex<Vec<usize>>,
    steps: Mutex<Steps>,
    /// Whom an attempt goes to; what it is, those know who put it there.
    server: OnceLock<Arc<dyn Server>>,
    /// Whom the last attempt of a call went to.
    asked: Mutex<Option<Arc<dyn Server>>>,
    told: Mutex<Told>,
    /// A call that may have to be refused yet.
    held: OnceLock<Box<Held>>,
}

/// What was done last, and what of it moved the run.
#[derive(Debug, Default)]
struct Steps {
    last: Option<Step>,
    /// Whether the last one did.
    moved: bool,
    /// The latest that did, if the last one did not.
    change: Option<Step>,
}

/// What a node fails with, if it fails.
#[derive(Clone, Debug)]
pub(crate) struct Failing {
    pub(crate) key: ErrorKey,
    /// As what it was judged; none if it was not, and is handed on.
    pub(crate) reason: Option<TerminalReason>,
    /// What counting it said, if it was counted already.
    pub(crate) counted: Option<Verdict>,
    /// Nobody was asked, so nothing has failed once more.
    pub(crate) unasked: bool,
}

/// The name of a registered run.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) id: RunId,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) registration: Weak<dyn Registration>,
    pub(crate) owner: u128,
    /// How often the name was opened, this time included.
    pub(crate) generation: u64,
    /// The number of the event that told of its end; 0 until then.
    pub(crate) told: AtomicU64,
    /// Where its registry has it, once that does.
    pub(super) listed: OnceLock<Listed>,
}

impl Identity {
    pub(crate) fn told(&self) -> Option<u64> {
        let number = self.told.load(Ordering::Acquire);
        (number > 0).then_some(number)
    }
}

/// What a node tells the registry that it is enrolled in.
pub(crate) trait Registration: Send + Sync + std::fmt::Debug {
    /// Answers the number of the event; none if the end is not that of the run
    /// that stands under its name.
    fn ended(&self, node: &Node<Info>) -> Option<u64>;

    /// Answers the number of the event; none if the run is over, and this is not
    /// the `last` notice, of whoever ended it.
    fn notified(&self, node: &Node<Info>, notice: &Notice, last: bool) -> Option<u64>;

    /// Where the ends of its runs are written.
    fn trajectory(&self) -> Option<Trajectory>;

    /// Completes the run if it has been idle for too long; else answers when it
    /// can have been, if being idle ever ends it.
    fn idle(&self, node: &Node<Info>, now: Instant) -> Option<Instant>;

    /// Enrols a run that is no part of the tree of `node`, as its owner's and of its
    /// session: what is ended from outside, with or without it, ends as well.
    fn enrol_beside(self: Arc<Self>, node: &Node<Info>, child: &Run);
}

impl Info {
    pub(crate) fn new(epoch: Instant, tree: u64) -> Self {
        Self {
            epoch,
            tree,
            unclaimed: AtomicBool::new(false),
            single: AtomicBool::new(false),
            sole: AtomicBool::new(false),
            owned: AtomicBool::new(false),
            heartbeats: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            tries: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            paid: AtomicUsize::new(0),
            paid_besides: Mutex::default(),
            steps: Mutex::default(),
            pings: AtomicBool::new(false),
            failing: Mutex::new(None),
            errors: OnceLock::new(),
            server: OnceLock::new(),
            followed: AtomicBool::new(false),
            effects: AtomicBool::new(false),
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

    pub(crate) fn is_sole(&self) -> bool {
        self.sole.load(Ordering::Acquire)
    }

    pub(crate) const fn tries(&self) -> &AtomicU32 {
        &self.tries
    }

    pub(crate) const fn turn(&self) -> &AtomicU32 {
        &self.turn
    }

    /// Whether the call has not paid into this bucket before.
    pub(crate) fn pays(&self, bucket: usize) -> bool {
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        match self.paid.compare_exchange(0, bucket, stored, failed) {
            Ok(_) => return true,
            Err(first) if first == bucket => return false,
            Err(_) => {}
        }
        let besides = self.paid_besides.lock();
        let mut besides = besides.unwrap_or_else(PoisonError::into_inner);
        let is_new = !besides.contains(&bucket);
        if is_new {
            besides.push(bucket);
        }
        is_new
    }

    /// What to call the failure of this node, should it fail.
    pub(crate) fn fail_as(&self, failing: Failing) {
        let mut slot = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Box::new(failing));
    }

    /// It does not fail as was said before.
    pub(crate) fn forget_failing(&self) {
        let mut slot = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = None;
    }

    pub(crate) fn failing(&self) -> Option<Failing> {
        let slot = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_deref().cloned()
    }

    /// Sets how many errors a run may make; a limit that is there only tightens.
    pub(crate) fn limit_errors(
        &self,
        per_key: Option<u32>,
        per_run: Option<u32>,
        in_a_row: Option<u32>,
    ) {
        if per_key.or(per_run).or(in_a_row).is_some() {
            let none = || Box::new(ErrorCounts::new(None, None));
            let errors = self.errors.get_or_init(none);
            errors.tighten(per_key, per_run);
            errors.tighten_in_a_row(in_a_row);
        }
    }

    pub(crate) fn errors(&self) -> Option<&ErrorCounts> {
        self.errors.get().map(|errors| &**errors)
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

    pub(crate) const fn silent(&self) -> &AtomicU32 {
        &self.silent
    }

    pub(crate) const fn server(&self) -> &OnceLock<Arc<dyn Server>> {
        &self.server
    }

    pub(super) const fn asked(&self) -> &Mutex<Option<Arc<dyn Server>>> {
        &self.asked
    }

    pub(super) fn lock_told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn hooks(&self) -> &Hooks {
        self.hooks.get_or_init(Box::default)
    }

    /// What only a run has.
    pub(crate) fn harness(&self) -> &Harness {
        self.harness.get_or_init(Box::default)
    }

    pub(crate) fn harness_if_any(&self) -> Option<&Harness> {
        self.harness.get().map(|harness| &**harness)
    }

    pub(super) const fn held(&self) -> &OnceLock<Box<Held>> {
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

    /// Remembers what was done last. A step that says nothing about itself
    /// leaves one that did.
    pub(crate) fn set_step(&self, step: Step) {
        self.lock_steps().set(step, false);
    }

    /// The same for a step that moved the run.
    pub(crate) fn set_change(&self, step: Step) {
        self.lock_steps().set(step, true);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Something below was done, which was said already if it was said at all.
    pub(crate) fn confirm(&self, done: Step) {
        let mut steps = self.lock_steps();
        match &steps.last {
            Some(last) if last.kind() == done.kind() => steps.moved = true,
            _ => {
                steps.moved = false;
                steps.change = Some(done);
            }
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn step(&self) -> Option<Step> {
        self.lock_steps().last.clone()
    }

    /// What moved the run last.
    pub(super) fn change(&self) -> Option<Step> {
        let steps = self.lock_steps();
        let change = if steps.moved {
            &steps.last
        } else {
            &steps.change
        };
        change.clone()
    }

    fn lock_steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn pings(&self) -> &AtomicBool {
        &self.pings
    }
}

impl Steps {
    fn set(&mut self, step: Step, moved: bool) {
        if step.has_detail() || self.last.as_ref().is_none_or(|last| !last.has_detail()) {
            let before = self.last.replace(step);
            if std::mem::replace(&mut self.moved, moved) {
                self.change = before;
            }
        } else if moved {
            self.moved = false;
            self.change = Some(step);
        }
    }
}

impl Node<Info> {
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
