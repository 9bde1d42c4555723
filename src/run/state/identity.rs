//! The identity of a run in a registry, its admission, and its interface to the registry.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

use tokio::time::Instant;

use super::{EventChannel, NodeState};
use crate::run::{
    handle::Run,
    id::RunId,
    report::{RunNotice, Trajectory},
    tree::Node,
};

/// The identity of a run in a registry: its id, owner and session.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) id: RunId,
    pub(crate) session: Option<Arc<str>>,
    pub(crate) registration: Weak<dyn Registration>,
    pub(crate) owner: u128,
    /// One more than the generation of the id's former run. 1 if the registry knows no such run.
    pub(crate) generation: u64,
    /// The number of the run's end among the registry's events. 0 while the end has no number.
    pub(crate) end_event: AtomicU64,
    /// The place of the run in the registry. The place spares the run's end a lookup by key.
    pub(crate) place: Place,
    /// The slot that the run got among the live runs of its session. Unset without a session.
    pub(crate) session_slot: OnceLock<usize>,
    pub(crate) admission: Admission,
}

/// Whether the owner caps of the registry have admitted the run, and whether observers know it: a set
/// of the bits below.
#[derive(Debug)]
pub(crate) struct Admission(AtomicU8);

/// Observers know the run, or learn of it now. They must learn of its end.
const ANNOUNCED: u8 = 1;
/// The caps have admitted the run, or no cap applies to it.
const ADMITTED: u8 = 2;
/// The registry removed the run before a cap admitted it and before observers knew it. A cap refused
/// the run, or its request was a stop phrase.
const WITHDRAWN: u8 = 4;

impl Admission {
    pub(crate) const fn new(is_admitted: bool) -> Self {
        Self(AtomicU8::new(if is_admitted { ADMITTED } else { 0 }))
    }

    /// Marks the run as announced, unless it is withdrawn. Returns whether it was not announced
    /// before: then the caller sends its `Opened` notice, before any other event of the run.
    pub(crate) fn announce(&self) -> bool {
        self.0.fetch_or(ANNOUNCED, Ordering::AcqRel) & (ANNOUNCED | WITHDRAWN) == 0
    }

    /// Marks the run as admitted; a withdrawn run stays withdrawn. Returns whether observers do not
    /// know the run yet.
    pub(crate) fn admit(&self) -> bool {
        self.0.fetch_or(ADMITTED, Ordering::AcqRel) & (ANNOUNCED | WITHDRAWN) == 0
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.0.load(Ordering::Acquire) & (ADMITTED | WITHDRAWN) == ADMITTED
    }

    /// Marks the run as withdrawn, unless it is announced or admitted. Returns whether it did.
    pub(crate) fn withdraw(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let left = self.0.compare_exchange(0, WITHDRAWN, success, failure);
        left.is_ok()
    }

    pub(crate) fn is_withdrawn(&self) -> bool {
        self.0.load(Ordering::Acquire) & WITHDRAWN != 0
    }
}

impl Identity {
    pub(crate) fn end_event(&self) -> Option<u64> {
        let number = self.end_event.load(Ordering::Acquire);
        (number > 0).then_some(number)
    }

    /// The registry of the run, unless the registry is gone or has withdrawn the run.
    pub(crate) fn registration(&self) -> Option<Arc<dyn Registration>> {
        if self.admission.is_withdrawn() {
            return None;
        }
        self.registration.upgrade()
    }
}

/// The place of an entry in a registry: its serial number, and the hash of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The number of the entry: later entries have higher numbers.
    pub(crate) serial: u64,
    pub(crate) hash: u64,
}

/// The methods of a registry that the nodes of its runs call.
pub(crate) trait Registration: Send + Sync + std::fmt::Debug {
    /// Gives back the turn of the run's owner that was counted at this instant.
    fn give_turn_back(&self, run: &Node<NodeState>, counted: Instant);

    /// Moves an ended run out of the live runs, and sends its end to the registry's observers.
    ///
    /// Does nothing if the registry has forgotten the run, or has sent the end before. `own` is the
    /// locked channel of the run. If no observer knows the run yet, the registry's observers and
    /// `own` first receive the notice that the run was opened.
    fn ended(&self, node: &Node<NodeState>, own: Option<&EventChannel>);

    /// Sends a notice to the observers of the registry and of the run.
    ///
    /// If the run is over, only a `last` notice is sent, which comes from the ending thread. `own`
    /// is the locked channel of the run. Returns false, without effect, if `own` is `None` but the
    /// run has a channel now.
    fn notified(
        &self,
        node: &Node<NodeState>,
        notice: &RunNotice,
        last: bool,
        own: Option<&EventChannel>,
    ) -> bool;

    /// The trajectory that records the ends of this registry's runs; `None` if none is set.
    fn trajectory(&self) -> Option<Trajectory>;

    /// Completes the run if its idle limit has passed. Otherwise returns when the limit will pass.
    /// `None` if the limit has passed, if idleness does not end the run, or if the registry has
    /// forgotten it.
    fn idle(&self, node: &Node<NodeState>, now: Instant) -> Option<Instant>;

    /// Completes the run if it has no work; else it completes when its work is done.
    fn complete(&self, node: &Node<NodeState>, now: Instant);

    /// Whether the registry will complete the run once it was idle for long enough.
    fn completes_when_idle(&self, node: &Node<NodeState>) -> bool;

    /// Completes the run if it has no work and is still marked as unused.
    fn refused(&self, node: &Node<NodeState>);

    /// Enrols `child`, a run outside of `node`'s tree, with the same owner and session.
    ///
    /// An abort of the session, or a shutdown of the registry, then ends `child` as well.
    fn enrol_sub_agent(self: Arc<Self>, node: &Node<NodeState>, child: &Run);
}

/// A guard that counts a run as open for its owner. The guard drops at the run's end at the latest.
/// Only the registry knows its type.
pub(crate) trait RunGuard: Send + Sync + std::fmt::Debug {}
