use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use slab::Slab;

use super::{
    Clock, End, Nanos, TaskId, Window,
    clocks::{Clocks, Life},
    waiters::Waiters,
};
use crate::run::{NodeKind, ResetOn, TerminalReason};

/// How many losing reasons a node remembers.
const ALSO: usize = 8;

/// What a tree hangs on its nodes, told when one has ended.
pub(crate) trait Hook: Sized {
    /// The end is stored in `node`; nobody has been woken yet. Called without
    /// a lock, at most once per node.
    fn ended(&self, node: &Node<Self>, end: &End);
}

/// One node of a run tree.
#[derive(Debug)]
pub(crate) struct Node<P> {
    kind: NodeKind,
    number: u64,
    opened: Duration,
    parent: Option<Parent<P>>,
    end: OnceLock<End>,
    pub(crate) clocks: Clocks,
    life: Life,
    /// Pauses on this node, and on nodes below it.
    paused: AtomicU32,
    paused_below: AtomicU32,
    /// Nodes at or below this one that somebody is working on.
    active: AtomicUsize,
    inner: Mutex<Inner<P>>,
    pub(crate) payload: P,
}

#[derive(Debug)]
struct Parent<P> {
    node: Arc<Node<P>>,
    key: usize,
}

#[derive(Debug)]
struct Inner<P> {
    children: Slab<Weak<Node<P>>>,
    waiters: Waiters,
    windows: Slab<Arc<Window>>,
    also: Vec<TerminalReason>,
}

impl<P: Hook> Node<P> {
    /// Opens the root of a tree; its clock starts at zero.
    pub(crate) fn root(kind: NodeKind, number: u64, payload: P) -> Arc<Self> {
        Arc::new(Self::new(kind, number, payload, Duration::ZERO, None))
    }

    /// Opens a child, which is ended already if this node or an ancestor is.
    pub(crate) fn child(
        self: &Arc<Self>,
        kind: NodeKind,
        number: u64,
        payload: P,
        now: Duration,
    ) -> Arc<Self> {
        let child = {
            let mut inner = self.lock();
            let entry = inner.children.vacant_entry();
            let parent = Parent {
                node: Arc::clone(self),
                key: entry.key(),
            };
            let child = Arc::new(Self::new(kind, number, payload, now, Some(parent)));
            entry.insert(Arc::downgrade(&child));
            child
        };
        // An end that came before the insertion did not see the child.
        if let Some(end) = self.nearest_end() {
            child.inherit(end);
        }
        child
    }

    fn new(
        kind: NodeKind,
        number: u64,
        payload: P,
        opened: Duration,
        parent: Option<Parent<P>>,
    ) -> Self {
        Self {
            kind,
            number,
            opened,
            parent,
            end: OnceLock::new(),
            clocks: Clocks::new(),
            life: Life::new(),
            paused: AtomicU32::new(0),
            paused_below: AtomicU32::new(0),
            active: AtomicUsize::new(0),
            inner: Mutex::new(Inner {
                children: Slab::new(),
                waiters: Waiters::default(),
                windows: Slab::new(),
                also: Vec::new(),
            }),
            payload,
        }
    }

    /// Makes `other`'s end end this node as well, though it is no descendant.
    pub(crate) fn follow(self: &Arc<Self>, other: &Self) {
        other.lock().children.insert(Arc::downgrade(self));
        if let Some(end) = other.nearest_end() {
            self.inherit(end);
        }
    }

    /// Ends the node and everything below it.
    ///
    /// # Errors
    ///
    /// The end that was there first; `reason` is kept in [`also`](Self::also).
    pub(crate) fn end(
        &self,
        reason: TerminalReason,
        limit: Option<Duration>,
        now: Duration,
    ) -> Result<(), End> {
        self.latch(reason, limit, now, false)
    }

    /// Like [`end`](Self::end), by the one who opened the node, after its work
    /// was dropped: nobody below lives, so drivers above need no call.
    pub(crate) fn settle(&self, reason: TerminalReason, now: Duration) -> Result<(), End> {
        self.latch(reason, None, now, true)
    }

    /// Takes over the end of the one call that this run was opened for.
    pub(crate) fn settle_as(&self, call: &End, now: Duration) {
        drop(self.latch(call.reason.clone(), call.limit, now, true));
    }

    fn latch(
        &self,
        reason: TerminalReason,
        limit: Option<Duration>,
        now: Duration,
        settled: bool,
    ) -> Result<(), End> {
        let winner = match self.nearest_end() {
            Some(end) => end.clone(),
            None => End {
                reason: reason.clone(),
                origin: self.number,
                kind: self.kind,
                at: now,
                lasted: now.saturating_sub(self.opened),
                limit,
            },
        };
        let ours = winner.origin == self.number;
        if self.end.set(winner).is_ok() {
            self.spread(settled);
            if ours {
                return Ok(());
            }
        }
        if !settled {
            self.remember(reason);
        }
        match self.end.get() {
            Some(end) => Err(end.clone()),
            None => Ok(()),
        }
    }

    fn inherit(&self, end: &End) {
        if self.end.set(end.clone()).is_ok() {
            self.spread(false);
        }
    }

    /// Stores this node's end in all that is below it, then tells and wakes.
    fn spread(&self, settled: bool) {
        let Some(end) = self.end.get() else { return };
        let mut wakers = Vec::new();
        let mut reached = Vec::new();
        {
            let inner = self.lock();
            inner.waiters.collect(false, &mut wakers);
            reached.extend(inner.children.iter().filter_map(|(_, c)| c.upgrade()));
        }
        // Breadth first and without recursion: a chain of sub-agents may be deep.
        let mut next = 0;
        while next < reached.len() {
            let node = Arc::clone(&reached[next]);
            if node.end.set(end.clone()).is_ok() {
                let inner = node.lock();
                inner.waiters.collect(false, &mut wakers);
                reached.extend(inner.children.iter().filter_map(|(_, c)| c.upgrade()));
                drop(inner);
                next += 1;
            } else {
                reached.swap_remove(next);
            }
        }
        if !settled {
            for ancestor in self.ancestors() {
                ancestor.lock().waiters.collect(true, &mut wakers);
            }
        }
        self.payload.ended(self, end);
        for node in &reached {
            node.payload.ended(node, end);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Ends the outermost node on the path from the root whose deadline has
    /// come, and answers why this node is over.
    ///
    /// `task` is the task that asks, in a poll in which all it waits for was
    /// pending: its own step windows count too.
    ///
    /// # Errors
    ///
    /// The end of this node, from now or from before.
    pub(crate) fn check(&self, now: Duration, task: TaskId) -> Result<(), End> {
        self.check_path(now, task);
        self.nearest_end().map_or(Ok(()), |end| Err(end.clone()))
    }

    /// From the root to here, until one is over; answers whether one is.
    fn check_path(&self, now: Duration, task: TaskId) -> bool {
        if self.parent().is_some_and(|node| node.check_path(now, task)) {
            return true;
        }
        if self.end.get().is_none() {
            let Some((reason, limit)) = self.passed(now, task) else {
                return false;
            };
            // Losing means that it is over as well.
            drop(self.end(reason, Some(limit), now));
        }
        true
    }

    /// Which of this node's clocks has passed: ceiling, step, caller's.
    fn passed(&self, now: Duration, task: TaskId) -> Option<(TerminalReason, Duration)> {
        let absolute = |clock| {
            let at = self.clocks.get(clock)?;
            (at <= now).then(|| at.saturating_sub(self.opened))
        };
        if let Some(limit) = absolute(Clock::Ceiling) {
            return Some((TerminalReason::HardCeiling, limit));
        }
        if task != TaskId::NONE && !self.is_paused() {
            let inner = self.lock();
            let mut windows = inner.windows.iter().map(|(_, window)| window);
            if let Some(window) = windows.find(|w| w.has_passed(&self.life, now, task)) {
                return Some((TerminalReason::StepTimeout, window.length()));
            }
        }
        absolute(Clock::Timeout).map(|limit| (TerminalReason::CallerDeadline, limit))
    }

    /// Registers, or updates, the waker to call when this node ends; with
    /// `below`, also when a descendant does.
    pub(crate) fn wait(&self, key: &mut Option<usize>, waker: &Waker, below: bool) {
        self.lock().waiters.set(key, waker, below);
    }

    pub(crate) fn unwait(&self, key: usize) {
        self.lock().waiters.remove(key);
    }

    pub(crate) fn add_window(&self, window: &Arc<Window>) {
        let key = self.lock().windows.insert(Arc::clone(window));
        window.keep(key);
    }

    /// Forgets a window that was added here.
    pub(crate) fn remove_window(&self, window: &Window) {
        self.lock().windows.try_remove(window.key());
    }

    /// Notes a sign of life here and on all ancestors.
    pub(crate) fn record(&self, sign: ResetOn, now: Duration) {
        self.life.record(sign, now);
        for ancestor in self.ancestors() {
            ancestor.life.record(sign, now);
        }
    }

    /// The latest sign on this node that resets a window of this kind.
    #[inline]
    pub(crate) fn last(&self, resets_on: ResetOn) -> Nanos {
        self.life.last(resets_on)
    }

    /// Stops the step windows at, above and below this node.
    pub(crate) fn pause(&self) {
        self.paused.fetch_add(1, Ordering::AcqRel);
        for ancestor in self.ancestors() {
            ancestor.paused_below.fetch_add(1, Ordering::AcqRel);
        }
        self.wake_near();
    }

    /// Takes one [`pause`](Self::pause) back.
    pub(crate) fn resume(&self) {
        self.paused.fetch_sub(1, Ordering::AcqRel);
        for ancestor in self.ancestors() {
            ancestor.paused_below.fetch_sub(1, Ordering::AcqRel);
        }
        self.wake_near();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_below.load(Ordering::Acquire) > 0
            || self.paused.load(Ordering::Acquire) > 0
            || self
                .ancestors()
                .any(|node| node.paused.load(Ordering::Acquire) > 0)
    }

    fn wake_near(&self) {
        let mut wakers = Vec::new();
        let mut below: Vec<Arc<Self>> = Vec::new();
        let collect = |node: &Self, wakers: &mut Vec<Waker>, below: &mut Vec<Arc<Self>>| {
            let inner = node.lock();
            inner.waiters.collect(false, wakers);
            below.extend(inner.children.iter().filter_map(|(_, c)| c.upgrade()));
        };
        collect(self, &mut wakers, &mut below);
        while let Some(node) = below.pop() {
            collect(&node, &mut wakers, &mut below);
        }
        for ancestor in self.ancestors() {
            ancestor.lock().waiters.collect(true, &mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Counts one more piece of work at this node, for it and all ancestors.
    pub(crate) fn enter(&self) {
        self.active.fetch_add(1, Ordering::AcqRel);
        for ancestor in self.ancestors() {
            ancestor.active.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Takes one [`enter`](Self::enter) back.
    pub(crate) fn leave(&self) {
        let mut wakers = Vec::new();
        for node in std::iter::once(self).chain(self.ancestors()) {
            let last = node.active.fetch_sub(1, Ordering::AcqRel) == 1;
            if last && node.end.get().is_some() {
                node.lock().waiters.collect(false, &mut wakers);
            }
        }
        for waker in wakers {
            waker.wake();
        }
    }

    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    pub(crate) const fn kind(&self) -> NodeKind {
        self.kind
    }

    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn opened(&self) -> Duration {
        self.opened
    }

    pub(crate) fn parent(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref().map(|parent| &parent.node)
    }

    /// The parents, from the nearest to the root.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(self.parent(), |node| node.parent()).map(|node| &**node)
    }

    /// This node's end alone: one load, for every poll.
    #[inline]
    pub(crate) fn own_end(&self) -> Option<&End> {
        self.end.get()
    }

    /// This node's end, or that of the nearest ended ancestor.
    pub(crate) fn nearest_end(&self) -> Option<&End> {
        let own = self.end.get();
        own.or_else(|| self.ancestors().find_map(|node| node.end.get()))
    }

    /// The earliest absolute deadline on the path from the root to here.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let nodes = std::iter::once(self).chain(self.ancestors());
        nodes.filter_map(|node| node.clocks.next()).min()
    }

    /// The reasons that came too late, oldest first, each once.
    pub(crate) fn also(&self) -> Vec<TerminalReason> {
        self.lock().also.clone()
    }

    fn remember(&self, reason: TerminalReason) {
        let mut inner = self.lock();
        if inner.also.len() < ALSO && !inner.also.contains(&reason) {
            inner.also.push(reason);
        }
    }

    /// What is still registered here: children, waiters, windows.
    #[cfg(test)]
    pub(crate) fn left(&self) -> [usize; 3] {
        let inner = self.lock();
        [
            inner.children.len(),
            inner.waiters.len(),
            inner.windows.len(),
        ]
    }
}

impl<P> Node<P> {
    fn lock(&self) -> MutexGuard<'_, Inner<P>> {
        // Nothing that may panic runs under the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> Drop for Node<P> {
    fn drop(&mut self) {
        if let Some(Parent { node, key }) = self.parent.take() {
            node.lock().children.try_remove(key);
        }
    }
}
