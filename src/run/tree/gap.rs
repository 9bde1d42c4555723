//! Lets a test act between the moment in which an end is stored and the moment in
//! which it has spread to the nodes below.

use std::cell::RefCell;

type Act = Box<dyn FnOnce()>;

thread_local! {
    static ACT: RefCell<Option<Act>> = const { RefCell::new(None) };
}

/// The next end that this thread stores calls `act` before the end spreads.
pub(crate) fn act_in_next(act: impl FnOnce() + 'static) {
    ACT.set(Some(Box::new(act)));
}

pub(super) fn pass() {
    if let Some(act) = ACT.take() {
        act();
    }
}
