use std::{future::poll_fn, time::Duration};

use tokio::sync::Semaphore;
use tower_service::Service;

use super::{
    inquiry::{InquiryStage, Question, Stages},
    watching::{WatchSource, Watching},
};
use crate::{
    error::BoxError,
    registry::RunRegistry,
    run::{Answer, Run, RunEvents, RunSnapshot, Verdict},
};

/// How long a checker may take.
const CHECK: Duration = Duration::from_secs(5);

/// How many checks there are at once.
const CHECKS: usize = 16;

/// Looks after runs that look stuck: see the [module](super).
#[derive(Debug)]
#[must_use = "it watches nothing unless it runs"]
pub struct Watchdog {
    source: WatchSource,
    events: RunEvents,
    stages: Stages,
}

impl Watchdog {
    /// Watches over all runs of a registry, from now on.
    pub fn new(registry: &RunRegistry) -> Self {
        let source = WatchSource::Registry(registry.downgrade());
        Self::of(source, registry.subscribe())
    }

    /// Watches over one run, or a sub-agent's, from now on.
    pub fn of_run(run: &Run) -> Self {
        Self::of(WatchSource::Run(run.run().downgrade()), run.subscribe())
    }

    const fn of(source: WatchSource, events: RunEvents) -> Self {
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
                checks: Semaphore::const_new(CHECKS),
            },
        }
    }

    /// Who judges a run that looks stuck, from what is known of it; a model may. Each
    /// check is made with a clone of the service. An error of it is
    /// [`Unknown`](crate::run::Status::Unknown).
    pub fn checker<S>(mut self, checker: S) -> Self
    where
        S: Service<RunSnapshot, Response = Verdict> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        self.stages.checker = Some(InquiryStage::new(checker));
        self
    }

    /// How long a check may take, its wait for the service's readiness included, until
    /// it counts as [`Unknown`](crate::run::Status::Unknown); 5 s unless set.
    pub const fn check_within(mut self, limit: Duration) -> Self {
        self.stages.check_within = limit;
        self
    }

    /// How many checks there may be at once, 16 unless set; others wait for their turn.
    ///
    /// # Panics
    ///
    /// If `checks` is zero.
    pub fn checks(mut self, checks: usize) -> Self {
        assert!(checks > 0, "without a check there is no checker");
        self.stages.checks = Semaphore::new(checks.min(Semaphore::MAX_PERMITS));
        self
    }

    /// Who asks a person whether the run shall go on, when no checker said that it
    /// works. A [`Stop`](Answer::Stop) ends the run as
    /// [`Stuck`](crate::TerminalReason::Stuck). The question is dropped when the run
    /// ends; an error is no answer, and ends nothing.
    pub fn question<S>(mut self, question: S) -> Self
    where
        S: Service<Question, Response = Answer> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        self.stages.question = Some(InquiryStage::new(question));
        self
    }

    /// How long an answer is waited for; as long as the run goes on unless set.
    pub const fn answer_within(mut self, limit: Duration) -> Self {
        self.stages.answer_within = Some(limit);
        self
    }

    /// Whether a run that the checker finds stuck or looping ends at once, as
    /// [`Stuck`](crate::TerminalReason::Stuck), and nobody is asked. Not by default.
    pub const fn ends(mut self, ends: bool) -> Self {
        self.stages.ends = ends;
        self
    }

    /// Shadow mode: checks, but asks nobody and ends nothing. What it would have done is
    /// told to observers.
    pub const fn shadow(mut self) -> Self {
        self.stages.shadow = true;
        self
    }

    /// Watches until the registry is gone, or the one run over. Spawn it, or poll it
    /// beside the rest.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the checks and questions that are under way, and
    /// leaves the runs alone.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with its timer enabled, once something is asked that
    /// has a limit.
    pub async fn run(self) {
        let mut watching = Watching::new(self.source, self.events, self.stages);
        poll_fn(|cx| watching.poll(cx)).await;
    }
}
