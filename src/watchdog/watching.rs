use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::inquiry::{Stages, inquire};
use crate::{
    registry::WeakRegistry,
    run::{Run, RunEvent, RunEvents, RunNotice, WeakRun},
};

/// Whose runs are watched.
#[derive(Debug)]
pub(super) enum WatchSource {
    Registry(WeakRegistry),
    Run(WeakRun),
}

type NextEvent = Pin<Box<dyn Future<Output = (Option<RunEvent>, RunEvents)> + Send>>;

/// The watchdog at work.
pub(super) struct Watching {
    source: WatchSource,
    next: NextEvent,
    stages: Arc<Stages>,
    /// By the number of the run: one at a time for each.
    inquiries: HashMap<u64, Inquiry>,
}

struct Inquiry {
    run: WeakRun,
    signal: Arc<Signal>,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Wakes the watchdog, and says for which inquiry: an open question costs nothing
/// when another is answered.
struct Signal {
    woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Watching {
    pub(super) fn new(source: WatchSource, events: RunEvents, stages: Stages) -> Self {
        Self {
            source,
            next: Box::pin(next(events)),
            stages: Arc::new(stages),
            inquiries: HashMap::new(),
        }
    }

    /// Ready once there can be no event any more.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // First what has happened, so that nothing goes on for a run that is over.
        while let Poll::Ready((event, events)) = self.next.as_mut().poll(cx) {
            match event {
                Some(event) => self.hear(&event, cx.waker()),
                None => return Poll::Ready(()),
            }
            self.next = Box::pin(next(events));
        }
        self.inquiries
            .retain(|_, inquiry| inquiry.poll(cx).is_pending());
        Poll::Pending
    }

    fn hear(&mut self, event: &RunEvent, waker: &Waker) {
        match event {
            RunEvent::Notice { run, notice, .. } => {
                let RunNotice::LooksStuck { repeats } = notice else {
                    return;
                };
                let found = match &self.source {
                    WatchSource::Registry(registry) => registry
                        .upgrade()
                        .map_or_else(Vec::new, |registry| registry.find(run)),
                    WatchSource::Run(run) => run.live().into_iter().collect(),
                };
                self.look(found, Some(*repeats), waker);
            }
            RunEvent::Ended { .. } => self.forget(),
            RunEvent::Lost { .. } => {
                self.forget();
                let all = match &self.source {
                    WatchSource::Registry(registry) => registry
                        .upgrade()
                        .map_or_else(Vec::new, |registry| registry.runs()),
                    WatchSource::Run(run) => run.live().into_iter().collect(),
                };
                self.look(all, None, waker);
            }
        }
    }

    /// Asks about those that look stuck, unless somebody is being asked already.
    fn look(&mut self, runs: Vec<Run>, repeats: Option<u32>, waker: &Waker) {
        for run in runs {
            if run.terminal_reason().is_some() || !run.is_stuck() {
                continue;
            }
            let stages = &self.stages;
            let begin = || Inquiry::new(run.downgrade(), repeats, Arc::clone(stages), waker);
            self.inquiries.entry(run.number()).or_insert_with(begin);
        }
    }

    /// Drops what is asked about runs that are over.
    fn forget(&mut self) {
        self.inquiries
            .retain(|_, inquiry| inquiry.run.live().is_some());
    }
}

impl Inquiry {
    fn new(run: WeakRun, repeats: Option<u32>, stages: Arc<Stages>, waker: &Waker) -> Self {
        Self {
            future: Box::pin(inquire(run.clone(), repeats, stages)),
            run,
            signal: Arc::new(Signal {
                woken: AtomicBool::new(true),
                task: Mutex::new(waker.clone()),
            }),
        }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.signal.set(cx.waker());
        if !self.signal.woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        if self.run.live().is_none() {
            return Poll::Ready(());
        }
        let waker = Waker::from(Arc::clone(&self.signal));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

impl Signal {
    fn set(&self, waker: &Waker) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.will_wake(waker) {
            task.clone_from(waker);
        }
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        let waker = task.clone();
        drop(task);
        waker.wake();
    }
}

async fn next(mut events: RunEvents) -> (Option<RunEvent>, RunEvents) {
    (events.next().await, events)
}
