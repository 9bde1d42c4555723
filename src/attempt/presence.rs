//! Whether a service has a layer further in that opens attempts.
//!
//! A layer further out cannot see it by its type, as others may stand between. But a
//! service is asked whether it is ready before each call, and asks the next one: on the
//! way the layer that opens attempts leaves a note for those further out.

use std::cell::Cell;

thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

/// A layer that opens attempts is asked whether it is ready.
#[inline]
pub(crate) fn note() {
    SEEN.set(true);
}

/// Asks the next service whether it is ready; answers also whether a layer that opens
/// attempts was asked on the way.
#[inline]
pub(crate) fn watch<T>(ask: impl FnOnce() -> T) -> (T, bool) {
    // Plain values: after a panic the next service that asks sets them anew.
    let before = SEEN.replace(false);
    let answer = ask();
    let seen = SEEN.get();
    SEEN.set(before || seen);
    (answer, seen)
}
