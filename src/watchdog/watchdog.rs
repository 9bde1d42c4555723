//! The watchdog, and the loop in which it watches its runs.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use tokio::{sync::Semaphore, task::unconstrained};
use tower_service::Service;

use super::inquiry::{InquiryStage, Question, Stages, ask_at_cap, inquire};
use crate::{
    error::BoxError,
    registry::{RunRegistry, WeakRegistry},
    run::{Answer, Run, RunEvent, RunEvents, RunNotice, RunSnapshot, Verdict, WeakRun},
};

/// The default time limit of one check of a run.
const CHECK: Duration = Duration::from_secs(5);

/// The default number of checks that may run concurrently.
const CHECKS: usize = 16;

/// Examines runs that look stuck, and may end them: see the [module](super).
///
/// A clone has the same stages, and watches the same runs from now on.
#[derive(Clone, Debug)]
#[must_use = "it watches nothing unless it runs"]
pub struct Watchdog {
    source: WatchSource,
    events: RunEvents,
    stages: Stages,
}

impl Watchdog {
    /// Creates a watchdog that receives the events of all runs of a registry from now on.
    pub fn new(registry: &RunRegistry) -> Self {
        let source = WatchSource::Registry(registry.downgrade());
        Self::of(source, registry.subscribe())
    }

    /// Creates a watchdog that receives the events of one run from now on.
    ///
    /// The run is the nearest one at or above this node; it may be that of a sub-agent.
    pub fn of_run(run: &Run) -> Self {
        Self::of(WatchSource::Run(run.run().downgrade()), run.subscribe())
    }

    fn of(source: WatchSource, events: RunEvents) -> Self {
        Self {
            source,
            events,
            stages: Stages {
                checker: None,
                check_within: CHECK,
                question: None,
                answer_within: None,
                ends: false,
                shadow: false,
                checks: Arc::new(Semaphore::new(CHECKS)),
                open_questions: Arc::default(),
            },
        }
    }

    /// Sets the checker, a service that examines the snapshot of a run that looks stuck.
    ///
    /// The checker may call a model. Each check uses a clone of the service. An error of
    /// the service counts as [`Unknown`](crate::run::Status::Unknown).
    pub fn checker<S>(mut self, checker: S) -> Self
    where
        S: Service<RunSnapshot, Response = Verdict> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        self.stages.checker = Some(InquiryStage::new(checker));
        self
    }

    /// Sets the time limit of a check, 5 s unless set.
    ///
    /// The time limit includes the wait for the checker to be ready, but not the wait for other
    /// [`checks`](Self::checks). A check that takes longer counts as
    /// [`Unknown`](crate::run::Status::Unknown).
    pub const fn check_within(mut self, limit: Duration) -> Self {
        self.stages.check_within = limit;
        self
    }

    /// Sets the number of checks that may run concurrently, 16 unless set; further checks
    /// wait.
    ///
    /// # Panics
    ///
    /// The setter panics if `checks` is zero.
    pub fn checks(mut self, checks: usize) -> Self {
        assert!(checks > 0, "without a check there is no checker");
        let checks = checks.min(Semaphore::MAX_PERMITS);
        self.stages.checks = Arc::new(Semaphore::new(checks));
        self
    }

    /// Sets the service that asks a person whether a run that looks stuck, or that is [near a cap
    /// on tokens](crate::TokenCapLayer::ask_at), should continue.
    ///
    /// In [shadow mode](Self::shadow) the watchdog asks nothing.
    ///
    /// A person gets one question about a run at a time, and at most 64 questions are open. Beyond
    /// that the watchdog asks nothing about a run and leaves it to its limits, which the log says
    /// once a minute.
    ///
    /// If a run is near a cap, or was when the watchdog started, the watchdog asks at once, without
    /// a check; the answer [`Continue`](Answer::Continue) [extends](Run::extend_tokens) the caps,
    /// and [`Stop`](Answer::Stop) ends the run as [`TokenCap`](crate::TerminalReason::TokenCap). If
    /// a run looks stuck, the watchdog asks unless the checker found that the run works, or the
    /// checker's verdict ended the run; the answer `Stop` ends the run as
    /// [`Stuck`](crate::TerminalReason::Stuck). The question is dropped when the run ends. An error
    /// of the service is not an answer, and ends nothing.
    pub fn question<S>(mut self, question: S) -> Self
    where
        S: Service<Question, Response = Answer> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        self.stages.question = Some(InquiryStage::new(question));
        self
    }

    /// Sets the time for which the watchdog waits for a person's answer.
    ///
    /// By default the watchdog waits for an answer as long as the run is live.
    pub const fn answer_within(mut self, limit: Duration) -> Self {
        self.stages.answer_within = Some(limit);
        self
    }

    /// Sets whether a run that the checker finds stuck or looping ends without a
    /// question.
    ///
    /// The run ends as [`Stuck`](crate::TerminalReason::Stuck). By default the watchdog
    /// ends no run without a question.
    pub const fn ends(mut self, ends: bool) -> Self {
        self.stages.ends = ends;
        self
    }

    /// Sets shadow mode: the watchdog checks runs, but asks no person and ends no run.
    ///
    /// In shadow mode observers get notices of what the watchdog would have done.
    pub const fn shadow(mut self) -> Self {
        self.stages.shadow = true;
        self
    }

    /// Checks the nearest run at or above this node now, whether it looks stuck or not.
    ///
    /// The check ends nothing; the program may end the run by the verdict. The run stores the
    /// verdict as its [latest](RunSnapshot::last_check), and its observers get a
    /// [notice](RunNotice::Checked), as with the checks of [`run`](Self::run). The settings
    /// [`check_within`](Self::check_within) and [`checks`](Self::checks) hold too. The result is
    /// `None` without a [`checker`](Self::checker), and as soon as the run is over. The watchdog
    /// need not run for this. To check runs beside a watchdog that runs, keep a clone of it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the check, and leaves the run alone.
    ///
    /// # Panics
    ///
    /// The future panics if it asks the checker outside of a tokio runtime with its timer enabled.
    pub async fn check(&self, run: &Run) -> Option<Verdict> {
        let checker = self.stages.checker.as_ref()?;
        let run = run.run();
        let weak = run.downgrade();
        let mut ended = pin!(run.ended());
        let mut check = pin!(self.stages.check(&weak, checker, |_| Some(())));
        poll_fn(|cx| match ended.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => check.as_mut().poll(cx),
        })
        .await
        .map(|((), verdict)| verdict)
    }

    /// Watches until the registry is dropped, or the single run has ended or is dropped.
    ///
    /// Spawn the watchdog's future, or poll it beside others.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the checks and questions in progress, and leaves the
    /// runs alone.
    ///
    /// # Panics
    ///
    /// The future panics outside of a tokio runtime with its timer enabled, as soon as a
    /// stage with a time limit is asked.
    pub async fn run(self) {
        self.run_with(Nothing).await;
    }

    /// Watches as [`run`](Self::run) does, and adopts the stages of each watchdog from
    /// `replacements` for the inquiries that begin from then on.
    ///
    /// An inquiry in progress keeps its stages: a question stays open, and is not asked again. The
    /// runs that are watched, and the limit on open questions, stay those of this watchdog. The end
    /// of `replacements` ends nothing.
    ///
    /// # Cancel safety
    ///
    /// As that of [`run`](Self::run).
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub async fn run_with(self, replacements: impl Stream<Item = Self>) {
        let mut events = self.events;
        let mut replacements = pin!(replacements);
        let mut has_replacements = true;
        let mut inquiries = Inquiries {
            source: self.source,
            stages: Arc::new(self.stages),
            by_run: HashMap::new(),
        };
        // An earlier watchdog may have been dropped with open questions, and no further notice of
        // those runs comes.
        inquiries.ask_at_cap(RunRegistry::runs, |run| run.tokens().near_cap());
        loop {
            let mut next = pin!(events.next());
            let event = poll_fn(|cx| {
                // Events come first, so that no inquiry of an ended run is polled.
                let event = next.as_mut().poll(cx);
                if event.is_pending() {
                    while has_replacements {
                        match replacements.as_mut().poll_next(cx) {
                            Poll::Ready(Some(watchdog)) => inquiries.adopt(watchdog.stages),
                            Poll::Ready(None) => has_replacements = false,
                            Poll::Pending => break,
                        }
                    }
                    inquiries.poll(cx);
                }
                event
            });
            match event.await {
                Some(event) => inquiries.handle(&event),
                None => return,
            }
        }
    }
}

/// The source of the runs that a watchdog watches: a registry, or one run.
#[derive(Clone, Debug)]
pub(super) enum WatchSource {
    Registry(WeakRegistry),
    Run(WeakRun),
}

/// The inquiries of a running watchdog.
struct Inquiries {
    source: WatchSource,
    stages: Arc<Stages>,
    /// The inquiries about each run, by the number of the run.
    by_run: HashMap<u64, RunInquiries>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum InquiryKind {
    /// The inquiry about a run that looks stuck.
    Stuck,
    /// The question whether to extend a run's caps on tokens and cost.
    TokenCap,
}

/// The inquiries about one run: at most one of each kind.
///
/// The first one is in progress, and the next one begins when it is over: a person gets one question
/// about a run at a time.
struct RunInquiries {
    run: WeakRun,
    queue: VecDeque<(InquiryKind, Inquiry)>,
}

type Inquiry = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A stream without replacements.
struct Nothing;

impl Stream for Nothing {
    type Item = Watchdog;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Watchdog>> {
        Poll::Ready(None)
    }
}

impl Inquiries {
    fn poll(&mut self, cx: &mut Context<'_>) {
        self.by_run
            .retain(|_, inquiries| inquiries.poll(cx).is_pending());
    }

    fn handle(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Notice {
                run,
                notice: RunNotice::LooksStuck { repeats },
                ..
            } => self.start(|registry| registry.find(run), Some(*repeats)),
            RunEvent::Notice {
                run,
                notice: RunNotice::NearTokenCap { message, .. },
                ..
            } => self.ask_at_cap(
                |registry| registry.find(run),
                |run| {
                    // The id may be that of another owner's run, which is not near its cap.
                    run.tokens().is_notice_claimed().then(|| message.clone())
                },
            ),
            RunEvent::Notice { .. } => {}
            RunEvent::Ended { .. } => self.drop_ended(),
            RunEvent::Lost { .. } => {
                self.drop_ended();
                self.start(RunRegistry::runs, None);
                self.ask_at_cap(RunRegistry::runs, |run| run.tokens().near_cap());
            }
        }
    }

    /// Adopts `stages` for the inquiries that begin from now on. If only these ask a person, asks
    /// about the runs that are near a cap.
    fn adopt(&mut self, stages: Stages) {
        let asked_before = self.stages.asks_person();
        let open_questions = Arc::clone(&self.stages.open_questions);
        self.stages = Arc::new(Stages {
            open_questions,
            ..stages
        });
        if !asked_before {
            self.ask_at_cap(RunRegistry::runs, |run| run.tokens().near_cap());
        }
    }

    /// Starts an inquiry for each run that looks stuck and has no inquiry yet.
    fn start(&mut self, of: impl FnOnce(&RunRegistry) -> Vec<Run>, repeats: Option<u32>) {
        self.begin(InquiryKind::Stuck, of, |run, stages| {
            let inquiry = || inquire(run.downgrade(), repeats, stages);
            run.nearest().is_stuck().then(inquiry)
        });
    }

    /// Asks a person about each run that is near a cap on tokens, unless such a question is open or
    /// waits for another one about the run.
    ///
    /// `message` returns the text of the question; `None` for a run that is not near a cap.
    fn ask_at_cap(
        &mut self,
        of: impl FnOnce(&RunRegistry) -> Vec<Run>,
        message: impl Fn(&Run) -> Option<String>,
    ) {
        self.begin(InquiryKind::TokenCap, of, |run, stages| {
            Some(ask_at_cap(run.downgrade(), message(run)?, stages))
        });
    }

    /// Begins the inquiry that `make` returns, if any, for each live run that `of` chooses from the
    /// source; of a single run, for that run. An inquiry of that kind in progress stays.
    fn begin<I: Future<Output = ()> + Send + 'static>(
        &mut self,
        kind: InquiryKind,
        of: impl FnOnce(&RunRegistry) -> Vec<Run>,
        make: impl Fn(&Run, Arc<Stages>) -> Option<I>,
    ) {
        let runs = match &self.source {
            WatchSource::Registry(registry) => {
                registry.upgrade().as_ref().map_or_else(Vec::new, of)
            }
            WatchSource::Run(run) => run.live().into_iter().collect(),
        };
        for run in runs {
            if run.terminal_reason().is_some() {
                continue;
            }
            if let Some(future) = make(&run, Arc::clone(&self.stages)) {
                let inquiries = self.by_run.entry(run.number());
                let inquiries = inquiries.or_insert_with(|| RunInquiries {
                    run: run.downgrade(),
                    queue: VecDeque::new(),
                });
                if inquiries.queue.iter().all(|(other, _)| *other != kind) {
                    inquiries.queue.push_back((kind, Box::pin(future)));
                }
            }
        }
    }

    /// Drops the inquiries of ended runs.
    fn drop_ended(&mut self) {
        self.by_run
            .retain(|_, inquiries| inquiries.run.live().is_some());
    }
}

impl RunInquiries {
    /// Polls the first inquiry, and the next one once that is over. Ready when none is left.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some((_, future)) = self.queue.front_mut() {
            if self.run.live().is_none() {
                return Poll::Ready(());
            }
            // Outside of tokio's coop budget: many inquiries in one poll would use up the budget,
            // and tokio's resources would be `Pending` for the last inquiries in every poll.
            if pin!(unconstrained(future.as_mut())).poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.queue.pop_front();
        }
        Poll::Ready(())
    }
}
