//! The end of a node: stored once, spread over the subtree, then the waiters are woken.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak},
    task::Waker,
    time::Duration,
};

use super::node::Node;
use crate::run::{kinds::NodeKind, reason::TerminalReason};

/// How many losing reasons a node remembers.
const ALSO: usize = 8;

/// What one end brings about besides, whatever ends with it.
pub(crate) struct PendingWakes<P> {
    /// Done when everybody has been woken, as it may take its time; also if one of those
    /// who are woken panics.
    acts: Vec<Box<dyn FnOnce()>>,
    /// Those that are yet to be asked to stop, and what for.
    pub(crate) asked: VecDeque<(Weak<Node<P>>, TerminalReason)>,
    /// Somebody further out asks them, one after the other.
    pub(crate) asking: bool,
}

/// What a tree hangs on its nodes, told when one has ended.
pub(crate) trait EndHook: Sized {
    /// The end is stored in `node`; nobody has been woken yet. Called without
    /// a lock, at most once per node. `later` runs once they have been.
    fn ended(&self, node: &Node<Self>, end: &End, later: &mut PendingWakes<Self>);

    /// The node has ended, and nobody works at or below it any more. Called
    /// without a lock, before whoever waits for it is woken; more than once if
    /// several leave at the same time.
    fn settled(&self, node: &Node<Self>) {
        let _ = node;
    }

    /// The same once those that wait for it were woken.
    fn woken(&self, node: &Node<Self>) {
        let _ = node;
    }

    /// The last piece of work at or below the node was done, and the node lives. Called
    /// without a lock; another piece may have begun since.
    fn idle(&self, node: &Node<Self>) {
        let _ = node;
    }
}

impl<P: EndHook> Node<P> {
    /// Makes `other`'s end end this node as well, though it is no descendant.
    pub(crate) fn follow(self: &Arc<Self>, other: &Arc<Self>) {
        let key = other.lock().children.insert(Arc::downgrade(self));
        self.lock().add_followed(Arc::downgrade(other), key);
        if let Some(end) = other.nearest_end() {
            self.inherit(end);
        } else if let (Some(closing), None) = (other.closing.get(), self.nearest_end()) {
            self.stillborn(closing);
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
        passed: Option<LimitHit>,
        now: Duration,
    ) -> Result<(), End> {
        let mut later = PendingWakes::new();
        self.latch(reason, passed, now, false, &mut later)
    }

    /// Like [`end`](Self::end), by the one who opened the node, after its work
    /// was dropped: nobody below lives, so drivers above need no call.
    pub(crate) fn settle(&self, reason: TerminalReason, now: Duration) -> Result<(), End> {
        let mut later = PendingWakes::new();
        self.latch(reason, None, now, true, &mut later)
    }

    /// Takes over the end of the one call that this run was opened for.
    pub(crate) fn settle_as(&self, call: &End, now: Duration) {
        let mut later = PendingWakes::new();
        self.settle_with(call, now, &mut later);
    }

    /// The same while that call ends, and those who wait for it are yet to be woken.
    pub(crate) fn settle_with(&self, call: &End, now: Duration, later: &mut PendingWakes<P>) {
        let passed = LimitHit {
            limit: call.limit,
            measure: call.measure,
        };
        drop(self.latch(call.reason.clone(), Some(passed), now, true, later));
    }

    pub(super) fn latch(
        &self,
        reason: TerminalReason,
        passed: Option<LimitHit>,
        now: Duration,
        settled: bool,
        later: &mut PendingWakes<P>,
    ) -> Result<(), End> {
        let winner = match self.nearest_end() {
            Some(end) => end.clone(),
            None => End {
                reason: reason.clone(),
                origin: self.number,
                kind: self.kind,
                at: now,
                lasted: now.saturating_sub(self.opened),
                limit: passed.and_then(|passed| passed.limit),
                measure: passed.map_or(LimitKind::Set, |passed| passed.measure),
            },
        };
        let ours = winner.origin == self.number;
        if self.end.set(winner).is_ok() {
            #[cfg(test)]
            super::gap::pass();
            self.spread(settled, later);
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

    pub(super) fn inherit(&self, end: &End) {
        if self.end.set(end.clone()).is_ok() {
            let mut later = PendingWakes::new();
            self.spread(false, &mut later);
        }
    }

    /// Stores this node's end in all that is below it, then tells and wakes.
    fn spread(&self, settled: bool, later: &mut PendingWakes<P>) {
        let Some(end) = self.end.get() else { return };
        let mut wakers = Vec::new();
        let mut reached = Vec::new();
        {
            let inner = self.lock();
            inner.waiters.collect(false, &mut wakers);
            reached.extend(inner.children.alive());
        }
        if !settled {
            self.collect_drivers(&mut wakers);
        }
        // Breadth first and without recursion: a chain of sub-agents may be deep.
        let mut next = 0;
        while next < reached.len() {
            let node = Arc::clone(&reached[next]);
            if node.end.set(end.clone()).is_ok() {
                let inner = node.lock();
                inner.waiters.collect(false, &mut wakers);
                reached.extend(inner.children.alive());
                let follows = !inner.follows().is_empty();
                drop(inner);
                if follows {
                    // What is above a follower is not above us.
                    node.collect_drivers(&mut wakers);
                }
                next += 1;
            } else {
                reached.swap_remove(next);
            }
        }
        self.payload.ended(self, end, later);
        for node in &reached {
            node.payload.ended(node, end, later);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// The wakers of those who poll this node from further out: above it, or
    /// above a node that it follows.
    fn collect_drivers(&self, wakers: &mut Vec<Waker>) {
        let followed: Vec<_> = {
            let inner = self.lock();
            let nodes = inner.follows().iter();
            nodes.filter_map(|(node, _)| node.upgrade()).collect()
        };
        for ancestor in self.ancestors() {
            ancestor.bump_epoch();
            ancestor.lock().waiters.collect(true, wakers);
        }
        for node in followed {
            for above in std::iter::once(&*node).chain(node.ancestors()) {
                above.bump_epoch();
                above.lock().waiters.collect(true, wakers);
            }
        }
    }

    fn remember(&self, reason: TerminalReason) {
        let mut inner = self.lock();
        if inner.also().len() < ALSO && !inner.also().contains(&reason) {
            inner.add_also(reason);
        }
    }
}

impl<P> PendingWakes<P> {
    pub(super) const fn new() -> Self {
        Self {
            acts: Vec::new(),
            asked: VecDeque::new(),
            asking: false,
        }
    }

    pub(crate) fn act(&mut self, act: Box<dyn FnOnce()>) {
        self.acts.push(act);
    }
}

impl<P> Drop for PendingWakes<P> {
    fn drop(&mut self) {
        for act in self.acts.drain(..) {
            act();
        }
    }
}

/// A limit that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitHit {
    /// None if it is not measured in time.
    pub(crate) limit: Option<Duration>,
    pub(crate) measure: LimitKind,
}

/// Whose limit, and of what: for the message to people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LimitKind {
    /// What the program set.
    #[default]
    Set,
    /// The time that the caller announced.
    Announced,
    /// The silence after which the caller gives up.
    Unheard,
    /// The time without a sign of life of a stream that gave some.
    Lifeless,
    /// This many turns of the run.
    Turns(u32),
    /// The silence in which the upstream failed its health probes.
    Unhealthy,
    /// This many open runs of its owner.
    OpenRuns(u32),
    /// This many turns of its owner in an hour.
    TurnsPerHour(u32),
}

/// Why, where and when a node ended. Inherited unchanged by its descendants.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: TerminalReason,
    /// The number of the node that was ended, not of one that inherited it.
    pub(crate) origin: u64,
    pub(crate) kind: NodeKind,
    /// Since the tree was opened.
    pub(crate) at: Duration,
    /// How long the node that was ended had lasted.
    pub(crate) lasted: Duration,
    /// The limit that fired, if it was one that is measured in time.
    pub(crate) limit: Option<Duration>,
    pub(crate) measure: LimitKind,
}
