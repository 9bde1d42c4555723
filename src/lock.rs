//! A mutex without poison.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex that a panic under its lock does not poison.
///
/// The protected data must be consistent wherever code under the lock may panic.
#[derive(Debug, Default)]
pub(crate) struct Lock<T: ?Sized>(Mutex<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
}

impl<T: ?Sized> Lock<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}
