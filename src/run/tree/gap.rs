//! Lets a test act between the store of an end and its spread.

use std::cell::RefCell;

type Act = Box<dyn FnOnce()>;

thread_local! {
    static ACT: RefCell<Option<Act>> = const { RefCell::new(None) };
}

/// Makes the next end that this thread stores call `act` before the end spreads.
pub(crate) fn act_in_next(act: impl FnOnce() + 'static) {
    ACT.set(Some(Box::new(act)));
}

pub(super) fn pass() {
    if let Some(act) = ACT.take() {
        act();
    }
}
