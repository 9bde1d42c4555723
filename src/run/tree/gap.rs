//! Lets a test act after a node stores its end and before the subtree learns of it.

use std::cell::RefCell;

type Act = Box<dyn FnOnce()>;

thread_local! {
    static ACT: RefCell<Option<Act>> = const { RefCell::new(None) };
}

/// Makes the next end that this thread stores call `act` before the subtree learns of it.
pub(crate) fn act_in_next(act: impl FnOnce() + 'static) {
    ACT.set(Some(Box::new(act)));
}

pub(super) fn pass() {
    if let Some(act) = ACT.take() {
        act();
    }
}
