//! Closes nodes: running work goes on, and no work starts but the run's last call.
//!
//! A closing at a cap also lets the calls that are open start what belongs to them: a repeat is
//! part of the turn that was admitted. A closing for a shutdown or a drain lets nothing start.
//!
//! The module also counts running work: a node that was itself closed ends when its last work is
//! gone.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use super::{
    clocks::Clock,
    end::Closing,
    node::{EndHook, Node, PendingWakes},
    node_kind::NodeKind,
    waiters::wake_all,
};
use crate::run::{limit_kind::LimitHit, reason::TerminalReason};

impl<P: EndHook> Node<P> {
    /// Closes the node: running work goes on, and new work is over from its birth.
    ///
    /// The node ends with `reason` when no work and no task is left at or below it, which may be at
    /// once, or at the first check from `until` on. An end that comes before wins. If the node was
    /// closing before, its first reason and the earlier `until` hold. On a node that is over, the
    /// method does nothing.
    pub(crate) fn close(&self, reason: &TerminalReason, until: Duration, now: Duration) {
        self.close_with(reason, until, now, &mut PendingWakes::new());
    }

    /// Closes the node like [`close`](Self::close), as part of the end of another node.
    pub(crate) fn close_with(
        &self,
        reason: &TerminalReason,
        until: Duration,
        now: Duration,
        later: &mut PendingWakes<P>,
    ) {
        let closing = Closing {
            reason: reason.clone(),
            passed: None,
            spares_calls: false,
        };
        self.close_as(closing, Some(until), now, later);
    }

    /// Closes the node because a cap on the calls below it was reached.
    ///
    /// Unlike after [`close`](Self::close), the calls that have begun below this node go on with all
    /// that they start, their repeats and fallbacks included. Any other work is over from its
    /// birth. Without `until` the node has no drain deadline. A later `close` spares nothing.
    pub(crate) fn close_at_cap(
        &self,
        reason: &TerminalReason,
        passed: LimitHit,
        until: Option<Duration>,
        now: Duration,
    ) {
        let closing = Closing {
            reason: reason.clone(),
            passed: Some(passed),
            spares_calls: true,
        };
        self.close_as(closing, until, now, &mut PendingWakes::new());
    }

    fn close_as(
        &self,
        closing: Closing,
        until: Option<Duration>,
        now: Duration,
        later: &mut PendingWakes<P>,
    ) {
        if self.nearest_end().is_some() {
            return;
        }
        let closing = Arc::new(closing);
        // Below a node that ends by then, no task has to wake for an earlier deadline.
        let ends_by =
            |node: &Self, until| node.clocks.get(Clock::Drain).is_some_and(|at| at <= until);
        let sooner = until.is_some_and(|until| {
            self.clocks.drain(until) && !self.ancestors().any(|node| ends_by(node, until))
        });
        let mut wakers = Vec::new();
        let mut below = Vec::new();
        let mut spared = Vec::new();
        self.refuse(&closing, sooner, &mut wakers, &mut below);
        if sooner
            && self
                .closing
                .get()
                .is_some_and(|first| first.is_overtaken_by(&closing))
        {
            let mut inner = self.lock();
            let rare = inner.rare.get_or_insert_default();
            rare.cut_for.get_or_insert_with(|| closing.reason.clone());
        }
        // The order is `SeqCst`, like that of the count of active work: this thread sees that no
        // work is left, or the thread with the last piece of work sees that the node is closed.
        self.closed.store(true, Ordering::SeqCst);
        while let Some(node) = below.pop() {
            let spares = closing.spares_calls && node.kind == NodeKind::Call;
            if node.last || (spares && node.payload.has_begun()) {
                spared.push(node);
            } else {
                node.refuse(&closing, sooner, &mut wakers, &mut below);
            }
        }
        // A spared call is not refused, but its tasks wake for an earlier deadline.
        while let Some(node) = spared.pop().filter(|_| sooner) {
            node.bump_epoch();
            node.collect(&mut wakers, &mut spared);
        }
        if self.is_idle() {
            // The last piece of work may have gone before `closed` was set.
            self.drained(now, later);
        }
        wake_all(wakers);
    }

    /// Whether a closing of this node or of a node above makes it refuse new work. A closing at a
    /// cap makes no call refuse work that was open before; no closing of its run makes the last
    /// call refuse attempts.
    #[inline]
    pub(crate) fn refuses_work(&self) -> bool {
        self.closing.get().is_some()
    }

    /// The reason of the closing that makes this node refuse new work; `None` without one.
    pub(crate) fn refusal(&self) -> Option<&TerminalReason> {
        self.closing.get().map(|closing| &closing.reason)
    }

    /// The limit that caused the closing that makes this node refuse new work. `None` without such
    /// a closing, or if no limit caused it.
    pub(crate) fn refusal_limit(&self) -> Option<LimitHit> {
        self.closing.get()?.passed
    }

    /// Opens the one call that may start though this node is closing.
    ///
    /// The closing ends every other new node at its opening, but for the attempts of this call.
    /// The caller must call [`begin_work`](Self::begin_work) on this node before, because a closing
    /// node without work ends.
    pub(crate) fn last_call(self: &Arc<Self>, number: u64, payload: P, now: Duration) -> Arc<Self> {
        self.open(NodeKind::Call, number, payload, now, true)
    }

    /// Whether this node is a closing run's last call, or a node below that call.
    #[inline]
    pub(crate) const fn is_last(&self) -> bool {
        self.last
    }

    /// The closing that ends a new child of `kind`; `None` if the child may live.
    pub(super) fn refusal_of_child(&self, kind: NodeKind) -> Option<&Arc<Closing>> {
        if self.last && kind != NodeKind::Attempt {
            return self.ancestors().find_map(|node| node.closing.get());
        }
        self.closing.get()
    }

    /// Whether this very node was [closed](Self::close). Such a node ends when its last work is
    /// gone.
    pub(crate) fn is_closed_itself(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// The reason and the limit of the end of this closing node at its drain deadline.
    pub(super) fn end_at_drain(&self) -> Option<(TerminalReason, Option<LimitHit>)> {
        let closing = self.closing.get()?;
        let inner = self.lock();
        let cut_for = inner.rare.as_ref().and_then(|rare| rare.cut_for.clone());
        let end = cut_for.map(|reason| (reason, None));
        Some(end.unwrap_or_else(|| (closing.reason.clone(), closing.passed)))
    }

    /// Whether this very node was closed, and ends at its drain deadline at the latest.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_closed_itself() && self.clocks.get(Clock::Drain).is_some()
    }

    /// Refuses new work at this node, and collects its waiters and children.
    ///
    /// The waiters must wake: a task that waits to start work will never start it, and running
    /// work may have to end sooner. If the node refused work before, and the drain deadline is not
    /// `sooner`, the method does nothing, except that a closing which spares no calls passes on to
    /// those that an earlier one has spared.
    fn refuse(
        &self,
        closing: &Arc<Closing>,
        sooner: bool,
        wakers: &mut Vec<Waker>,
        below: &mut Vec<Arc<Self>>,
    ) {
        let refuses = self.closing.set(Arc::clone(closing)).is_ok();
        if !refuses && !sooner {
            if self
                .closing
                .get()
                .is_some_and(|first| first.is_overtaken_by(closing))
            {
                below.extend(self.children());
            }
            return;
        }
        self.bump_epoch();
        self.collect(wakers, below);
    }

    /// Ends this new node as of its opening, because a closing refuses the node.
    ///
    /// The closing is that of a node above, or of a node that this node follows.
    pub(super) fn end_at_open(&self, closing: &Arc<Closing>) {
        let _closed_before = self.closing.set(Arc::clone(closing));
        drop(self.end(closing.reason.clone(), closing.passed, self.opened()));
    }

    /// Ends this closing node, because its last work is gone.
    fn drained(&self, now: Duration, later: &mut PendingWakes<P>) {
        if let (None, Some(closing)) = (self.end.get(), self.closing.get()) {
            drop(self.latch(closing.reason.clone(), closing.passed, now, false, later));
        }
    }
}

impl<P: EndHook> Node<P> {
    /// Counts one more piece of work, on this node and on all its ancestors.
    pub(crate) fn begin_work(&self) {
        for node in self.path() {
            node.active.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Undoes one [`begin_work`](Self::begin_work). Each node from here up that was itself closed,
    /// and has no work left, then ends.
    pub(crate) fn end_work(&self, now: Duration) {
        let mut wakers = Vec::new();
        for node in self.path() {
            let unless_last = |active| (active > 1).then(|| active - 1);
            let (order, read) = (Ordering::SeqCst, Ordering::SeqCst);
            if node.active.fetch_update(order, read, unless_last).is_ok() {
                continue;
            }
            // If the node has ended or is closing, its end and the hooks come while it and the nodes
            // above it still count the work: a task that sees one of them idle sees what the hooks
            // did.
            node.drain_if_closed(now);
            let is_settled = node.run_settled_hooks();
            // The order is `SeqCst`, like that of `closed`: this thread sees that the node is
            // closed, or `close` sees that no work is left.
            if node.active.fetch_sub(1, order) != 1 {
                continue;
            }
            node.drain_if_closed(now);
            if is_settled || node.run_settled_hooks() {
                node.lock().waiters.collect(false, &mut wakers);
            } else {
                node.payload.idle(node);
            }
        }
        wake_all(wakers);
    }

    /// Ends this node, if it was itself closed: its last work is leaving.
    fn drain_if_closed(&self, now: Duration) {
        if self.is_closed_itself() {
            self.drained(now, &mut PendingWakes::new());
        }
    }

    /// Calls the hook for the last work of an ended node. Returns false if the node has not ended.
    fn run_settled_hooks(&self) -> bool {
        let has_ended = self.end.get().is_some();
        if has_ended {
            self.payload.settled(self);
        }
        has_ended
    }

    /// Counts a task on this node and on all its ancestors. A task delays their settlement as work
    /// does, but does not count as [`active`](Self::active) work.
    pub(crate) fn begin_task(&self) {
        for node in self.path() {
            node.tasks.fetch_add(1, Ordering::AcqRel);
        }
        self.begin_work();
    }

    /// Undoes one [`begin_task`](Self::begin_task) of this node.
    pub(crate) fn end_task(&self, now: Duration) {
        for node in self.path() {
            node.tasks.fetch_sub(1, Ordering::AcqRel);
        }
        self.end_work(now);
    }

    /// The number of pieces of work at or below this node; tasks are not counted.
    pub(crate) fn active(&self) -> usize {
        let tasks = self.tasks.load(Ordering::Acquire);
        let active = self.active.load(Ordering::Acquire);
        active.saturating_sub(tasks) as usize
    }

    /// Whether work or a task is left at or below this node, but not at or below `part`, which is
    /// this node or a node below it.
    pub(crate) fn works_beside(&self, part: &Self) -> bool {
        self.active.load(Ordering::SeqCst) > part.active.load(Ordering::SeqCst)
    }

    /// Whether no work and no task is left at or below this node.
    pub(crate) fn is_idle(&self) -> bool {
        self.active.load(Ordering::SeqCst) == 0
    }

    /// Whether `test` holds for any leaf of the running work at or below this node. A leaf is an
    /// active node without active children.
    pub(crate) fn has_leaf(&self, test: impl Fn(&P) -> bool) -> bool {
        let is_active = |node: &Arc<Self>| node.active() > 0;
        let is_leaf = |node: &Self| node.active() > 0 && !node.children().iter().any(is_active);
        let passes = |node: &Self| is_leaf(node) && test(&node.payload);
        let mut found = passes(self);
        self.descend(|node| {
            found |= passes(node);
            !found && node.active() > 0
        });
        found
    }
}
