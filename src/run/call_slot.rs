//! The slot by which the response layer learns the call of its request.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use http::Extensions;

use super::{
    handle::Run,
    tree::{Clock, NodeKind},
};
use crate::{body::ReplayBody, lock::Lock};

/// The slot in a request's extensions for the node of its call.
///
/// The response layer stands outside of the layer that opens the call. The response layer puts the
/// slot into the request, and learns the call from it, and on demand the request's body. In the
/// other direction the slot counts the response layer's own writes to the caller, for the layer that
/// enforces the caller's deadlines.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallSlot(Arc<SlotState>);

#[derive(Debug, Default)]
struct SlotState {
    /// The call that was opened last: one request may open several, by a retry of the program.
    call: Lock<Option<Run>>,
    writes: AtomicU64,
    wants_body: AtomicBool,
    is_held: AtomicBool,
    /// The body of the request, which an inner layer has buffered.
    body: Lock<Option<ReplayBody>>,
}

impl CallSlot {
    /// Puts `call` into the slot of its request, if there is one. An attempt is left out.
    #[inline]
    pub(crate) fn fill(request: &Extensions, call: &Run) {
        if let Some(slot) = request.get::<Self>() {
            if call.kind() != NodeKind::Attempt {
                slot.set(call.clone());
            }
        }
    }

    pub(crate) fn set(&self, call: Run) {
        // The former call is dropped after the lock is released: its drop may drop values of the
        // program, which may read this slot.
        let before = self.0.call.lock().replace(call);
        drop(before);
    }

    pub(crate) fn call(&self) -> Option<Run> {
        self.0.call.lock().clone()
    }

    /// Counts one write of the response layer to the caller: an early head or a comment.
    ///
    /// If the caller announced a deadline, the method wakes the tasks of the call, because a head
    /// ends the limit on the time until the head.
    pub(crate) fn wrote(&self) {
        self.0.writes.fetch_add(1, Ordering::AcqRel);
        if let Some(call) = self.call() {
            if call.node().deadline(Clock::Announced).is_some() {
                call.node().wake_near();
            }
        }
    }

    pub(crate) fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Acquire)
    }

    /// Has the layer that buffers the request's body leave a clone of it here.
    pub(crate) fn want_body(&self) {
        self.0.wants_body.store(true, Ordering::Relaxed);
    }

    /// Puts the buffered `body` of a request into its slot, if there is one that wants it.
    pub(crate) fn fill_body(request: &Extensions, body: &ReplayBody) {
        if let Some(Self(slot)) = request.get() {
            if slot.wants_body.load(Ordering::Relaxed) {
                slot.body.lock().get_or_insert_with(|| body.clone());
            }
        }
    }

    /// The body of the request, once it is buffered; see [`want_body`](Self::want_body).
    pub(crate) fn body(&self) -> Option<ReplayBody> {
        self.0.body.lock().clone()
    }

    /// Records whether a layer holds the call of a request, if there is a slot.
    pub(crate) fn set_held(request: &Extensions, is_held: bool) {
        if let Some(Self(slot)) = request.get() {
            slot.is_held.store(is_held, Ordering::Relaxed);
        }
    }

    /// Whether a layer holds the call, which waits for its run to go on.
    pub(crate) fn is_held(&self) -> bool {
        self.0.is_held.load(Ordering::Relaxed)
    }

    /// Frees the body, which then nobody wants.
    pub(crate) fn drop_body(&self) {
        self.0.wants_body.store(false, Ordering::Relaxed);
        let body = self.0.body.lock().take();
        drop(body);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc::channel, thread, time::Duration};

    use super::*;
    use crate::run::RunGuard;

    #[derive(Debug)]
    struct Looks(CallSlot);

    impl RunGuard for Looks {}

    impl Drop for Looks {
        fn drop(&mut self) {
            drop(self.0.call());
        }
    }

    #[tokio::test]
    async fn a_call_that_is_replaced_is_dropped_without_the_lock() {
        let slot = CallSlot::default();
        let before = Run::open();
        before.node().count_as(Box::new(Looks(slot.clone())));
        slot.set(before);
        let (next, (replaced, done)) = (Run::open(), channel());

        thread::spawn(move || {
            slot.set(next);
            replaced.send(())
        });

        assert!(done.recv_timeout(Duration::from_secs(5)).is_ok());
    }
}
