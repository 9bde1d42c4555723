use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use crate::lock::Lock;

/// Keeps a body that is `Pending` from being asked before it was woken.
///
/// hyper asks a body three times for each frame: once more in the same poll of its task, and once after
/// the write. Each of these polls goes through all layers, and reads clocks. The gate gives the body a
/// waker of its own, and answers `Pending` itself until that was used.
///
/// # Cancel safety
///
/// Dropping the gate with its body loses nothing. A wake after that reaches the last task that asked.
#[derive(Debug)]
pub(crate) struct WakeGate {
    /// What the body wakes, twice the same; made at the first poll.
    woken: Option<(Arc<GateWaker>, Waker)>,
    is_pending: bool,
}

#[derive(Debug)]
struct GateWaker {
    is_woken: AtomicBool,
    /// The task that asked last.
    task: Lock<Waker>,
}

impl Wake for GateWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The flag is set before the task is read: a poll that stores its task and then finds no flag
        // is the task that this wakes.
        self.is_woken.store(true, Ordering::SeqCst);
        let task = self.task.lock().clone();
        task.wake();
    }
}

impl WakeGate {
    pub(crate) const fn new() -> Self {
        Self {
            woken: None,
            is_pending: false,
        }
    }

    /// Whether the body need not be asked.
    pub(crate) fn is_closed(&self, cx: &Context<'_>) -> bool {
        let Some((woken, _)) = self.woken.as_ref().filter(|_| self.is_pending) else {
            return false;
        };
        woken.set_task(cx.waker());
        !woken.is_woken.load(Ordering::SeqCst)
    }

    /// Asks the body by `poll`, with a waker that opens the gate.
    pub(crate) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let (woken, waker) = self.woken.get_or_insert_with(|| {
            let woken = Arc::new(GateWaker {
                is_woken: AtomicBool::new(false),
                task: Lock::new(cx.waker().clone()),
            });
            let waker = Waker::from(Arc::clone(&woken));
            (woken, waker)
        });
        woken.set_task(cx.waker());
        woken.is_woken.store(false, Ordering::SeqCst);
        let polled = poll(&mut Context::from_waker(waker));
        self.is_pending = polled.is_pending();
        polled
    }
}

impl GateWaker {
    fn set_task(&self, waker: &Waker) {
        let mut task = self.task.lock();
        if !task.will_wake(waker) {
            task.clone_from(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::atomic::AtomicUsize};

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn task() -> (Arc<WakeCounter>, Waker) {
        let count = Arc::new(WakeCounter::default());
        (Arc::clone(&count), Waker::from(count))
    }

    /// Asks a body that is `Pending` through the gate; tells whether it was asked.
    fn ask(gate: &mut WakeGate, task: &Waker, inner: &Cell<Option<Waker>>) -> bool {
        let cx = Context::from_waker(task);
        if gate.is_closed(&cx) {
            return false;
        }
        let polled = gate.poll(&cx, |cx| {
            inner.set(Some(cx.waker().clone()));
            Poll::<()>::Pending
        });
        assert!(polled.is_pending());
        true
    }

    #[test]
    fn a_body_is_asked_again_once_it_was_woken() {
        let (woken, task) = task();
        let (mut gate, inner) = (WakeGate::new(), Cell::new(None));
        assert!(ask(&mut gate, &task, &inner));
        assert!(!ask(&mut gate, &task, &inner));
        inner.take().unwrap().wake();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(ask(&mut gate, &task, &inner));
        assert!(!ask(&mut gate, &task, &inner));
    }

    #[test]
    fn a_wake_during_the_poll_opens_the_gate() {
        let (woken, task) = task();
        let mut gate = WakeGate::new();
        let cx = Context::from_waker(&task);
        for times in 1..3 {
            assert!(!gate.is_closed(&cx));
            let polled = gate.poll(&cx, |cx| {
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            });
            assert!(polled.is_pending());
            assert_eq!(woken.0.load(Ordering::SeqCst), times);
        }
    }

    #[test]
    fn the_task_that_asked_last_is_woken() {
        let ((first, one), (second, two)) = (task(), task());
        let (mut gate, inner) = (WakeGate::new(), Cell::new(None));
        assert!(ask(&mut gate, &one, &inner));
        assert!(
            !ask(&mut gate, &two, &inner),
            "another task changes nothing for the body"
        );
        inner.take().unwrap().wake();
        let counts = [first, second].map(|count| count.0.load(Ordering::SeqCst));
        assert_eq!(counts, [0, 1]);
    }

    #[test]
    fn a_body_that_is_ready_is_asked_each_time() {
        let (_, task) = task();
        let mut gate = WakeGate::new();
        let cx = Context::from_waker(&task);
        for _ in 0..3 {
            assert!(!gate.is_closed(&cx));
            assert!(gate.poll(&cx, |_| Poll::Ready(())).is_ready());
        }
    }
}
