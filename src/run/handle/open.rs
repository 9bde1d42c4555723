//! How the layers open nodes.

use std::time::Duration;

use super::Run;
use crate::run::{
    kinds::NodeKind,
    state::Info,
    tree::{Node, TaskId},
};

impl Run {
    /// Opens a run that is one call and completes with it.
    pub(crate) fn open_single() -> Self {
        let run = Self::open();
        run.node().payload.set_single(true);
        run
    }

    pub(crate) fn open_below(&self, kind: NodeKind) -> Self {
        self.node().payload.count_opened(kind);
        // Whether a request's call is work, its end tells.
        if kind != NodeKind::Call {
            self.nearest().payload.set_used();
        }
        let info = self.node().payload.for_child();
        Self::of(self.node().child(kind, fastrand::u64(..), info, self.now()))
    }

    /// Opens the call that may start though this run is closing.
    pub(in crate::run) fn open_last(&self, now: Duration) -> Self {
        self.node().payload.count_opened(NodeKind::Call);
        let info = self.node().payload.for_child();
        let call = Self::of(self.node().last_call(fastrand::u64(..), info, now));
        call.node().enter();
        call
    }

    /// Opens a piece of work below this node, which has to be settled, unless
    /// the node is over, by the clocks, or closing.
    pub(crate) fn admit(&self, kind: NodeKind) -> Option<Self> {
        self.heed();
        // What only a word to stop was let through for starts nothing.
        self.refuse_held();
        let now = self.now();
        self.node().check(now, TaskId::NONE).ok()?;
        if self.node().is_closing() {
            return None;
        }
        self.node().payload.count_opened(kind);
        self.nearest().payload.set_used();
        let info = self.node().payload.for_child();
        let child = Self::of(self.node().child(kind, fastrand::u64(..), info, now));
        child.node().enter();
        Some(child)
    }

    /// A call of this run, which whoever opened it settles.
    pub(crate) fn open_call(&self) -> Self {
        // A deadline that has come is stored here; the call inherits it.
        drop(self.check());
        self.nearest().payload.set_used();
        let call = self.open_below(NodeKind::Call);
        call.node().enter();
        call
    }

    /// Makes this call of another run end with `outer`, whose call it is.
    pub(crate) fn end_with(&self, outer: &Self) {
        self.node().follow(outer.node());
        // This call is logged for both.
        outer.node().payload.begin_log();
    }

    /// Whether this is a run that may have many calls, and none of them.
    pub(crate) fn is_of_many(&self) -> bool {
        self.kind() == NodeKind::Run && !self.node().payload.is_single()
    }
}

impl Node<Info> {
    /// It was opened for one call, and takes others from now on: what that one's
    /// caller announced ends it no more.
    pub(crate) fn take_many(&self) {
        self.payload.set_single(false);
        self.clocks.forget_announced();
    }
}
