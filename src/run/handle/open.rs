//! How the layers open nodes.

use std::{sync::Arc, time::Duration};

use super::Run;
use crate::run::{
    kinds::NodeKind,
    reason::TerminalReason,
    state::NodeState,
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
        self.stop_if_parent_ended();
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

impl Node<NodeState> {
    /// It was opened for one call, and takes others from now on: what that one's
    /// caller announced ends it no more.
    pub(crate) fn make_shared(&self) {
        self.payload.set_single(false);
        self.clocks.forget_announced();
    }
}

impl Run {
    /// Puts a call of this run into the request, for the layers that the
    /// request will go through.
    ///
    /// The first of them settles the call. If none ever sees the request, the
    /// call ends as [`Aborted`](TerminalReason::Aborted) when the last clone
    /// of the request is dropped.
    ///
    /// If the run is over the call is over from its birth, and the first layer
    /// answers so.
    #[must_use]
    pub fn attach<B>(&self, request: http::Request<B>) -> http::Request<B> {
        self.open_call().carried_by(request)
    }

    /// Puts this call into the request; the first layer that sees it settles it.
    pub(in crate::run) fn carried_by<B>(self, mut request: http::Request<B>) -> http::Request<B> {
        self.node().payload.set_unclaimed();
        request.extensions_mut().insert(Ticket::new(self.clone()));
        request.extensions_mut().insert(self);
        request
    }
}

/// Settles an attached call that no layer ever saw.
#[derive(Clone)]
struct Ticket {
    _last: Arc<Unclaimed>,
}

struct Unclaimed(Run);

impl Ticket {
    fn new(call: Run) -> Self {
        Self {
            _last: Arc::new(Unclaimed(call)),
        }
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if self.0.node().payload.claim() {
            self.0.settle(TerminalReason::Aborted);
        }
    }
}
