//! A waker that counts, for polls by hand.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Counts the wakes of its wakers.
#[derive(Debug, Default)]
pub(crate) struct WakeCount(Arc<Counter>);

#[derive(Debug, Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl WakeCount {
    /// A waker that counts here.
    pub(crate) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    /// One poll with such a waker.
    pub(crate) fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(&self.waker()))
    }

    /// How often its wakers were woken.
    pub(crate) fn count(&self) -> usize {
        self.0.0.load(Ordering::SeqCst)
    }

    /// How many of its wakers have not been dropped.
    pub(crate) fn wakers(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}
