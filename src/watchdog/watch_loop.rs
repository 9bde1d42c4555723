use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use super::inquiry::{Stages, inquire};
use crate::{
    lock::Lock,
    registry::{RunRegistry, WeakRegistry},
    run::{Run, RunEvent, RunEvents, RunNotice, WeakRun},
};

/// The source of the runs that a watchdog watches: a registry, or one run.
#[derive(Debug)]
pub(super) enum WatchSource {
    Registry(WeakRegistry),
    Run(WeakRun),
}

type NextEvent = Pin<Box<dyn Future<Output = (Option<RunEvent>, RunEvents)> + Send>>;

/// The state of a running watchdog.
pub(super) struct WatchLoop {
    source: WatchSource,
    next: NextEvent,
    stages: Arc<Stages>,
    /// The inquiries in progress, at most one per run, by the number of the run.
    inquiries: HashMap<u64, Inquiry>,
}

struct Inquiry {
    run: WeakRun,
    signal: Arc<Signal>,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The waker of one inquiry, which wakes the watchdog's task and marks the inquiry as
/// woken.
///
/// The mark spares an open question a poll when another question is answered.
struct Signal {
    woken: AtomicBool,
    task: Lock<Waker>,
}

impl WatchLoop {
    pub(super) fn new(source: WatchSource, events: RunEvents, stages: Stages) -> Self {
        Self {
            source,
            next: Box::pin(next(events)),
            stages: Arc::new(stages),
            inquiries: HashMap::new(),
        }
    }

    /// Polls the watchdog, which is ready when the stream of run events has ended.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // Handle events first, so that no inquiry of an ended run is polled.
        while let Poll::Ready((event, events)) = self.next.as_mut().poll(cx) {
            match event {
                Some(event) => self.handle(&event, cx.waker()),
                None => return Poll::Ready(()),
            }
            self.next = Box::pin(next(events));
        }
        self.inquiries
            .retain(|_, inquiry| inquiry.poll(cx).is_pending());
        Poll::Pending
    }

    fn handle(&mut self, event: &RunEvent, waker: &Waker) {
        match event {
            RunEvent::Notice {
                run,
                notice: RunNotice::LooksStuck { repeats },
                ..
            } => self.start_inquiries(|registry| registry.find(run), Some(*repeats), waker),
            RunEvent::Notice { .. } => {}
            RunEvent::Ended { .. } => self.drop_ended(),
            RunEvent::Lost { .. } => {
                self.drop_ended();
                self.start_inquiries(RunRegistry::runs, None, waker);
            }
        }
    }

    /// Starts an inquiry for each run that looks stuck and has no inquiry yet.
    fn start_inquiries(
        &mut self,
        of: impl FnOnce(&RunRegistry) -> Vec<Run>,
        repeats: Option<u32>,
        waker: &Waker,
    ) {
        let runs = match &self.source {
            WatchSource::Registry(registry) => {
                registry.upgrade().as_ref().map_or_else(Vec::new, of)
            }
            WatchSource::Run(run) => run.live().into_iter().collect(),
        };
        for run in runs {
            if run.terminal_reason().is_some() || !run.is_stuck() {
                continue;
            }
            let stages = &self.stages;
            let begin = || Inquiry::new(run.downgrade(), repeats, Arc::clone(stages), waker);
            self.inquiries.entry(run.number()).or_insert_with(begin);
        }
    }

    /// Drops the inquiries of ended runs.
    fn drop_ended(&mut self) {
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
                task: Lock::new(waker.clone()),
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
        let mut task = self.task.lock();
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
        let task = self.task.lock();
        let waker = task.clone();
        drop(task);
        waker.wake();
    }
}

async fn next(mut events: RunEvents) -> (Option<RunEvent>, RunEvents) {
    (events.next().await, events)
}
