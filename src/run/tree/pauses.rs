//! Pauses nodes: the step windows at, above and below a paused node stand still.

use std::time::Duration;

use super::{
    idle_window::{Paused, Pauses},
    nanos::{Nanos, nanos},
    node::{EndHook, Node},
    node_kind::NodeKind,
    waiters::wake_all,
};

impl<P: EndHook> Node<P> {
    /// Stops the step windows at, above and below this node.
    pub(crate) fn pause(&self, now: Duration) {
        self.begin_pause(now);
        self.wake_near();
    }

    /// Undoes one [`pause`](Self::pause) of this node.
    pub(crate) fn resume(&self, now: Duration) {
        self.end_pause(now);
        self.wake_tree();
    }

    /// Pauses the node, and wakes nobody.
    pub(crate) fn begin_pause(&self, now: Duration) {
        let now = nanos(now);
        self.change_pauses(|pauses| pauses.begin(now));
    }

    /// Undoes one [`begin_pause`](Self::begin_pause), and wakes nobody.
    pub(crate) fn end_pause(&self, now: Duration) {
        let now = nanos(now);
        self.change_pauses(|pauses| pauses.end(now));
    }

    /// Stops the ceiling and the timeout of this node.
    pub(crate) fn stand(&self, now: Duration) {
        let _writing = self.lock();
        self.clocks.stand(now);
    }

    /// Undoes one [`stand`](Self::stand) of this node; wakes nobody.
    pub(crate) fn go_on(&self, now: Duration) {
        let _writing = self.lock();
        self.clocks.go_on(now);
    }

    /// Stops the step windows of the runs above this tool, which has a window of its own.
    ///
    /// Tasks that wait in the stopped windows are not woken. A timer that fires finds its window
    /// stopped.
    pub(crate) fn stand_in(&self, now: Duration) {
        let now = nanos(now);
        self.change_pauses_of(Self::is_run, |pauses| pauses.begin(now));
    }

    /// Undoes one [`stand_in`](Self::stand_in) of this tool.
    pub(crate) fn stand_down(&self, now: Duration) {
        let now = nanos(now);
        self.change_pauses_of(Self::is_run, |pauses| pauses.end(now));
        self.wake_tree();
    }

    fn is_run(&self) -> bool {
        self.kind() == NodeKind::Run
    }

    fn change_pauses(&self, change: impl Fn(&Pauses)) {
        {
            let rare = self.clocks.rare();
            let _writing = self.lock();
            change(&rare.own_pauses);
            change(&rare.pauses);
        }
        self.change_pauses_of(|_| true, change);
    }

    /// Changes the pauses of the ancestors that `is_paused` selects.
    fn change_pauses_of(&self, is_paused: impl Fn(&Self) -> bool, change: impl Fn(&Pauses)) {
        for ancestor in self.ancestors().filter(|node| is_paused(node)) {
            let rare = ancestor.clocks.rare();
            let _writing = ancestor.lock();
            change(&rare.pauses);
        }
    }

    /// Whether a pause at, above or below this node is on.
    pub(crate) fn is_paused(&self) -> bool {
        let [_, below] = self.clocks.pauses();
        below || self.ancestors().any(|node| node.clocks.pauses()[0])
    }

    /// Whether a pause is on that began at this node, or at a live node below.
    pub(crate) fn holds_pause(&self) -> bool {
        let [mut holds, below] = self.clocks.pauses();
        if below && !holds {
            self.descend(|node| {
                let [own, below] = node.clocks.pauses();
                let is_live = node.end.get().is_none();
                holds |= own && is_live;
                below && is_live && !holds
            });
        }
        holds
    }

    /// The time at which the last pause at or below this node was over. Zero if none is over yet.
    /// Pauses that overlap count as one.
    pub(crate) fn last_pause(&self) -> Nanos {
        let rare = self.clocks.rare_if_any();
        rare.map_or(0, |rare| rare.pauses.last())
    }

    /// The paused time of this node, by pauses at, above and below it. Pauses at and below this
    /// node that overlap count once. The pauses of each node above are added in full, even if they
    /// overlap others, so that no clock fires early.
    #[inline]
    pub(crate) fn paused(&self) -> Paused {
        let mut paused = Paused::default();
        if let Some(rare) = self.clocks.rare_if_any() {
            rare.pauses.add_to(&mut paused);
        }
        for ancestor in self.ancestors() {
            if let Some(rare) = ancestor.clocks.rare_if_any() {
                rare.own_pauses.add_to(&mut paused);
            }
        }
        paused
    }

    /// Wakes all tasks that wait at a node of this tree.
    ///
    /// The pause that has ended had stopped the windows of the nodes above, too. Tasks that poll
    /// other nodes may wait in these windows.
    pub(crate) fn wake_tree(&self) {
        self.ancestors().last().unwrap_or(self).wake_near();
    }

    /// Wakes the tasks that wait at this node or below, or poll a node above.
    pub(crate) fn wake_near(&self) {
        let mut wakers = Vec::new();
        self.collect_below(&mut wakers);
        for ancestor in self.ancestors() {
            ancestor.lock().waiters.collect(true, &mut wakers);
        }
        wake_all(wakers);
    }
}
