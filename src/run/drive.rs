//! One timer and one waiter per task, whatever is stacked in it.
//!
//! The outermost wrapper that is being polled is the *driver*. Wrappers below
//! it, polled with the same waker, only lower its next deadline; the driver
//! arms one timer for all of them, and waits for the end of its node and of those
//! below it; a wrapper whose node stands elsewhere waits for that itself.
//! A different waker means a task boundary (or a combinator that polls its
//! children by their own wakers): then the wrapper drives itself.
