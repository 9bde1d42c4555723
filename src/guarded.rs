//! Calls of the program's code that may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls the program's code, and keeps its panic in: the result is `None` then.
///
/// A panic is a fault of that code, not of the call. Calls end where bodies are dropped: a panic there
/// would take unrelated work down, or abort the process.
pub(crate) fn guarded<T>(code: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(code)).ok()
}
