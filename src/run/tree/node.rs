//! One node of a run's tree, the part of it behind a lock, and the payload's hooks.

use std::{
    collections::VecDeque,
    sync::{
        Arc, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Waker,
    time::Duration,
};

use super::{
    clocks::Clocks,
    end::{Closing, End},
    idle_window::{IdleWindow, LastSeen},
    nanos::{Nanos, nanos},
    node_kind::NodeKind,
    small_slab::SmallSlab,
    waiters::Waiters,
};
use crate::{
    lock::Lock,
    run::{limit_kind::LimitHit, reason::TerminalReason, step::ResetOn},
};

/// A node of a run's tree.
///
/// This file has the basic methods. Those in `propagation.rs` end the node, those in `closing.rs`
/// close the node and count its work, those in `check.rs` check its clocks, and those in
/// `pauses.rs` pause it.
// `repr(C)`: the fields that an end reads and writes stand side by side. When thousands of
// nodes end at once, cache misses dominate the cost.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Node<P> {
    pub(super) number: u64,
    parent: Option<Parent<P>>,
    opened: Nanos,
    inner: Lock<LockedNode<P>>,
    pub(in crate::run) clocks: Clocks,
    pub(super) end: OnceLock<End>,
    pub(super) kind: NodeKind,
    /// Whether this node is a closing run's last call, or a node below that call.
    pub(super) last: bool,
    /// Whether this very node was closed.
    pub(super) closed: AtomicBool,
    pub(in crate::run) payload: P,
    /// The number of pieces of work and tasks at or below this node.
    pub(super) active: AtomicU32,
    /// The part of `active` that counts tasks, such as a task that drains a call. Tasks are no
    /// pieces of work.
    pub(super) tasks: AtomicU32,
    /// A number that changes at some ends below this node, and when the node closes: see
    /// [`epoch`](Self::epoch()).
    epoch: AtomicU32,
    /// The number of [watches](Self::watch) that are on at or below this node.
    pub(super) watched: AtomicU32,
    /// The closing of this node, of a node above or of a followed node. Unset while this node
    /// admits new work, as a call does that was open before its run was closed at a cap.
    pub(super) closing: OnceLock<Arc<Closing>>,
    pub(super) life: LastSeen,
}

#[derive(Debug)]
struct Parent<P> {
    node: Arc<Node<P>>,
    key: usize,
}

impl<P: EndHook> Node<P> {
    /// Opens the root of a tree; its clock starts at zero.
    #[inline]
    pub(crate) fn root(kind: NodeKind, number: u64, payload: P) -> Arc<Self> {
        Arc::new(Self::new(
            kind,
            number,
            payload,
            Duration::ZERO,
            None,
            false,
        ))
    }

    /// Opens a child of this node.
    ///
    /// The child is over from its birth if this node is over or refuses new work. Below the last
    /// call of a closing run, a child that is not an attempt is over from its birth, too.
    #[inline]
    pub(crate) fn child(
        self: &Arc<Self>,
        kind: NodeKind,
        number: u64,
        payload: P,
        now: Duration,
    ) -> Arc<Self> {
        self.open(kind, number, payload, now, false)
    }

    #[inline]
    pub(super) fn open(
        self: &Arc<Self>,
        kind: NodeKind,
        number: u64,
        payload: P,
        now: Duration,
        last: bool,
    ) -> Arc<Self> {
        let child = {
            let mut inner = self.lock();
            let parent = Parent {
                node: Arc::clone(self),
                key: inner.children.next_key(),
            };
            let is_last = last || self.last;
            let child = Arc::new(Self::new(kind, number, payload, now, Some(parent), is_last));
            inner.children.insert(Arc::downgrade(&child));
            child
        };
        // An end that came before the insertion did not reach the child.
        if let Some(end) = self.nearest_end() {
            child.inherit(end, self);
        } else if let (Some(closing), false) = (self.refusal_of_child(kind), last) {
            child.end_at_open(closing);
        }
        child
    }

    // Inlined, as are the constructors of the payload: else the whole node would be copied.
    #[inline(always)]
    fn new(
        kind: NodeKind,
        number: u64,
        payload: P,
        opened: Duration,
        parent: Option<Parent<P>>,
        last: bool,
    ) -> Self {
        Self {
            kind,
            number,
            opened: nanos(opened),
            parent,
            end: OnceLock::new(),
            clocks: Clocks::new(),
            life: LastSeen::new(),
            epoch: AtomicU32::new(0),
            active: AtomicU32::new(0),
            tasks: AtomicU32::new(0),
            watched: AtomicU32::new(0),
            closing: OnceLock::new(),
            last,
            closed: AtomicBool::new(false),
            inner: Lock::new(LockedNode::new()),
            payload,
        }
    }

    /// Registers a waker, or replaces the one under `key`.
    ///
    /// The waker is called when this node ends or closes, when the last work of the ended node is
    /// gone, when a node at or above it pauses, when any node of the tree resumes, and when a
    /// [watched](Self::watch) deadline becomes earlier. With `below`, the waker is also called when
    /// a descendant pauses, or ends other than by a settlement.
    pub(crate) fn register_waker(&self, key: &mut Option<usize>, waker: &Waker, below: bool) {
        let replaced = self.lock().waiters.set(key, waker, below);
        drop(replaced);
    }

    /// Removes the waker that is registered under `key`.
    pub(crate) fn deregister_waker(&self, key: usize) {
        let removed = self.lock().waiters.remove(key);
        drop(removed);
    }

    /// Records a sign of life on this node and on all its ancestors.
    pub(crate) fn record(&self, sign: ResetOn, now: Duration) {
        self.record_at(sign, nanos(now));
    }

    /// Records a sign of life as [`record`](Self::record) does, at a time in nanoseconds.
    pub(crate) fn record_at(&self, sign: ResetOn, now: Nanos) {
        self.path().for_each(|node| node.life.record(sign, now));
    }

    /// The time of this node's latest sign of life that resets a window of this kind. Zero if
    /// there was none.
    #[inline]
    pub(crate) fn last(&self, resets_on: ResetOn) -> Nanos {
        self.life.last(resets_on)
    }

    /// A number that changes at an end below this node, and when this node closes. A settlement is
    /// no such end.
    ///
    /// The number changes before the tasks that poll this node are woken. It also changes at the
    /// end of a node that follows this node, or that follows a node below this one.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire).into()
    }

    /// Changes the epoch. The caller then collects this node's wakers, so a task that registers its
    /// waker too late sees a new epoch.
    pub(super) fn bump_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the node with this `number` is this node or one of its ancestors.
    #[inline]
    pub(crate) fn is_at_or_below(&self, number: u64) -> bool {
        self.path().any(|node| node.number == number)
    }

    pub(crate) const fn kind(&self) -> NodeKind {
        self.kind
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn opened(&self) -> Duration {
        Duration::from_nanos(self.opened)
    }

    pub(crate) fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref().map(|parent| &parent.node)
    }

    /// The ancestors of this node, from the parent to the root.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(self.parent(), |node| node.parent()).map(|node| &**node)
    }

    /// This node and its ancestors, up to the root.
    #[inline]
    pub(crate) fn path(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |node| node.parent().map(|node| &**node))
    }

    /// The time since this node was opened, or how long it lasted if it has ended.
    pub(crate) fn elapsed(&self, now: Duration) -> Duration {
        match self.nearest_end() {
            None => now.saturating_sub(self.opened()),
            Some(end) if self.kind == NodeKind::Run && end.origin == self.number => end.lasted(),
            Some(end) => end.at().saturating_sub(self.opened()),
        }
    }

    /// The end that is stored in this node: its own or an inherited one.
    pub(crate) fn own_end(&self) -> Option<&End> {
        self.end.get()
    }

    /// Whether this node or an ancestor has ended. The method costs at most one load per node on
    /// the path to the root, because hot polls call it.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        let mut node = self;
        while node.end.get().is_none() {
            match &node.parent {
                Some(parent) => node = &parent.node,
                None => return false,
            }
        }
        true
    }

    /// The end of this node, or else that of the nearest ended ancestor.
    pub(crate) fn nearest_end(&self) -> Option<&End> {
        self.path().find_map(|node| node.end.get())
    }

    /// The first eight reasons that came after this node's end, oldest first. The list has no
    /// duplicates, and no reasons of settlements.
    pub(crate) fn also(&self) -> Vec<TerminalReason> {
        self.lock().also().to_vec()
    }

    /// The numbers of children, waiters and windows that are still registered here.
    #[cfg(test)]
    pub(crate) fn left(&self) -> [usize; 3] {
        let inner = self.lock();
        let taken = self.clocks.own_window().is_some_and(IdleWindow::is_taken);
        [
            inner.children.len(),
            inner.waiters.len(),
            inner.windows.len() + usize::from(taken),
        ]
    }
}

impl<P> Node<P> {
    pub(super) fn lock(&self) -> MutexGuard<'_, LockedNode<P>> {
        // A panic would not poison this lock, so no code under it may panic.
        self.inner.lock()
    }

    /// Collects the wakers at this node, and the nodes that end with it.
    pub(super) fn collect(&self, wakers: &mut Vec<Waker>, below: &mut Vec<Arc<Self>>) {
        let inner = self.lock();
        inner.waiters.collect(false, wakers);
        below.extend(inner.children.alive());
    }
}

impl<P> Drop for Node<P> {
    fn drop(&mut self) {
        // The ancestors that this node kept alive drop here one by one, and not by recursion: a
        // chain of sub-agents may be deep.
        let mut parent = self.parent.take();
        while let Some(Parent { node, key }) = parent {
            node.lock().children.remove(key);
            parent = Arc::into_inner(node).and_then(|mut node| node.parent.take());
        }
        let rare = self.inner.get_mut().rare.take();
        for (node, key) in rare.map_or_else(Vec::new, |rare| rare.follows) {
            if let Some(node) = node.upgrade() {
                node.lock().children.remove(key);
            }
        }
    }
}

/// The part of a node behind its lock: children, waiters, all windows but the first.
#[derive(Debug)]
pub(super) struct LockedNode<P> {
    /// The nodes that end with this node: its children and its followers.
    pub(super) children: SmallSlab<Weak<Node<P>>>,
    pub(super) waiters: Waiters,
    pub(super) windows: SmallSlab<Arc<IdleWindow>>,
    pub(super) rare: Option<Box<Rare<Weak<Node<P>>>>>,
}

/// The data behind a node's lock that few nodes ever have.
#[derive(Debug, Default)]
pub(super) struct Rare<N> {
    pub(super) also: Vec<TerminalReason>,
    /// The nodes that this node follows, each with this node's key among that node's children.
    pub(super) follows: Vec<(N, usize)>,
    /// The reason of an end at the drain deadline, if it is not that of the closing: a drain cuts
    /// what a cap had spared.
    pub(super) cut_for: Option<TerminalReason>,
}

impl<P> LockedNode<P> {
    pub(super) fn new() -> Self {
        Self {
            children: SmallSlab::new(),
            waiters: Waiters::new(),
            windows: SmallSlab::new(),
            rare: None,
        }
    }

    pub(super) fn windows(&self) -> impl Iterator<Item = &IdleWindow> {
        self.windows.iter().map(|window| &**window)
    }

    pub(super) fn also(&self) -> &[TerminalReason] {
        self.rare.as_ref().map_or(&[], |rare| &rare.also)
    }

    pub(super) fn follows(&self) -> &[(Weak<Node<P>>, usize)] {
        self.rare.as_ref().map_or(&[], |rare| &rare.follows)
    }
}

/// The effects of an end that its hooks delay: actions, and requests to sub-agents.
pub(crate) struct PendingWakes<P> {
    /// The actions that the drop of this value calls. `spread` has called the wakers by then,
    /// because an action may take long. If a waker panics, the drop still calls the actions.
    actions: Vec<Box<dyn FnOnce()>>,
    /// The sub-agents that still have to be asked to stop, each with the reason. `None` until a
    /// run ends that may have some: most runs have none.
    pub(crate) stop_requests: Option<VecDeque<(Weak<Node<P>>, TerminalReason)>>,
    /// Whether a caller further up the call stack works through `stop_requests` now.
    pub(crate) is_stopping: bool,
}

/// The hooks of a node's payload, called when the node ends or becomes idle.
pub(crate) trait EndHook: Sized {
    /// The end of a node with the payload `of`, on the clock of this payload's tree.
    fn on_own_clock(&self, end: &End, of: &Self) -> End {
        let _ = of;
        end.clone()
    }

    /// Called after the end was stored in `node`, and in the nodes below that had no end before.
    ///
    /// The wakers of `node` are called later. The method runs without a lock, at most once per
    /// node. Actions in `later` run after the wakers.
    fn ended(&self, node: &Node<Self>, end: &End, later: &mut PendingWakes<Self>);

    /// Whether the work of this node has begun: a closing at a cap refuses a call that has not.
    fn has_begun(&self) -> bool {
        true
    }

    /// Called when the last work at or below the ended node is gone.
    ///
    /// [`end_work`](Node::end_work) runs the method without a lock, before it wakes the tasks that
    /// wait for this moment. The node counts the work until the method returns, unless another
    /// thread ends or closes the node meanwhile. The method may run several times for a node, and
    /// may not run for a node that has no work when it ends.
    fn settled(&self, node: &Node<Self>) {
        let _ = node;
    }

    /// Whether the node is a run that completes when it was without work for long enough.
    fn completes_when_idle(&self, node: &Node<Self>) -> bool {
        let _ = node;
        false
    }

    /// The reason and the cap of a pause that is on; `None` if the node is not paused at a cap.
    fn pause(&self) -> Option<(TerminalReason, LimitHit)> {
        None
    }

    /// Called when the last work at or below a live node is gone.
    ///
    /// The method runs without a lock. Another piece of work may have begun since.
    fn idle(&self, node: &Node<Self>) {
        let _ = node;
    }
}

impl<P> PendingWakes<P> {
    pub(super) const fn new() -> Self {
        Self {
            actions: Vec::new(),
            stop_requests: None,
            is_stopping: false,
        }
    }

    pub(crate) fn defer(&mut self, action: Box<dyn FnOnce()>) {
        self.actions.push(action);
    }
}

impl<P> Drop for PendingWakes<P> {
    fn drop(&mut self) {
        for action in self.actions.drain(..) {
            action();
        }
    }
}
