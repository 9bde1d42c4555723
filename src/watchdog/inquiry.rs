//! Asks a checker, then a person, about a run that looks stuck.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::sync::Semaphore;
use tower_service::Service;

use super::open_questions::OpenQuestions;
use crate::{
    error::BoxError,
    guarded::guarded,
    lock::Lock,
    run::{Answer, Run, RunNotice, RunSnapshot, Status, TerminalReason, Verdict, WeakRun},
};

/// The stages of an inquiry, and the settings that all inquiries of a watchdog share.
#[derive(Clone, Debug)]
pub(super) struct Stages {
    pub(super) checker: Option<InquiryStage<RunSnapshot, Verdict>>,
    pub(super) check_within: Duration,
    pub(super) question: Option<InquiryStage<Question, Answer>>,
    pub(super) answer_within: Option<Duration>,
    pub(super) ends: bool,
    pub(super) shadow: bool,
    /// The semaphore that limits the number of concurrent checks.
    pub(super) checks: Arc<Semaphore>,
    pub(super) open_questions: Arc<OpenQuestions>,
}

/// The outcome of a round after which the inquiry restarts: the run is stuck in another series of
/// repeats by now.
struct Restart;

/// Asks each stage in turn what to do with a run, while the run is live and stuck.
///
/// While the inquiry waits for a stage, it holds only a weak reference to the run.
pub(super) async fn inquire(run: WeakRun, mut repeats: Option<u32>, stages: Arc<Stages>) {
    while let Some(Restart) = stages.round(&run, repeats).await {
        repeats = None;
    }
}

/// Asks a person whether to extend a run's caps on tokens and cost by their own size.
///
/// Without an answer nothing changes: the run ends when it reaches the cap. No person is asked if the
/// run is near no cap any more, because another question about the run came first.
pub(super) async fn ask_at_cap(run: WeakRun, message: String, stages: Arc<Stages>) {
    let is_near = |run: Run| run.tokens().near_cap().is_some();
    if !run.live().is_some_and(is_near) {
        return;
    }
    let question = |live: &Run| Question::at_cap(live, &message);
    match stages.ask_person(&run, question).await {
        Some((live, Some(Answer::Continue))) => live.extend_tokens(),
        Some((live, Some(Answer::Stop))) => {
            live.end(TerminalReason::TokenCap);
        }
        _ => {}
    }
}

impl Stages {
    /// Whether the stages ask a person, and not only say that they would.
    pub(super) const fn asks_person(&self) -> bool {
        self.question.is_some() && !self.shadow
    }

    /// Asks each stage of the inquiry at most once; `None` ends the inquiry.
    async fn round(&self, run: &WeakRun, repeats: Option<u32>) -> Option<Restart> {
        let (series, verdict) = match &self.checker {
            // The result is `None` if the run has ended, or is not stuck when the check begins.
            Some(checker) => {
                let series = |run: &Run| run.actions().stuck_series();
                let (series, verdict) = self.check(run, checker, series).await?;
                (series, Some(verdict))
            }
            None => (run.live()?.actions().stuck_series()?, None),
        };
        let works = |verdict: &Verdict| verdict.status == Status::Working;
        if verdict.as_ref().is_some_and(works) {
            return None;
        }
        let live = run.live()?;
        // The checker's verdict on an earlier series of repeats does not count.
        if live.actions().stuck_series()? != series {
            return Some(Restart);
        }
        match &verdict {
            Some(verdict) if verdict.confirms() && self.ends => {
                self.end(&live);
                return None;
            }
            _ => {}
        }
        drop(live);
        let question = |live: &Run| Question::of(live, repeats, verdict.as_ref());
        let (live, answer) = self.ask_person(run, question).await?;
        if live.actions().stuck_series()? != series {
            return Some(Restart);
        }
        if answer == Some(Answer::Stop) {
            self.end(&live);
        }
        None
    }

    /// Asks a person `question` about the run, and returns the live run with the answer, if any.
    ///
    /// The result is `None` if the run has ended, and if no person is asked, for example because too
    /// many questions are open.
    async fn ask_person(
        &self,
        run: &WeakRun,
        question: impl FnOnce(&Run) -> Question,
    ) -> Option<(Run, Option<Answer>)> {
        let (stage, live) = (self.question.as_ref()?, run.live()?);
        if self.shadow {
            live.notify(&RunNotice::WouldHaveAsked);
            return None;
        }
        let _open = self.open_questions.open(&live)?;
        let asked = stage.ask(question(&live));
        live.notify(&RunNotice::Asked);
        drop(live);
        let answer = within(self.answer_within, asked).await.ok();
        let live = run.live()?;
        live.notify(&RunNotice::Answered { answer });
        Some((live, answer))
    }

    /// Asks the checker, and returns its verdict with the state of the run that `find` found when
    /// the check began.
    ///
    /// The result is `None` if the run has ended, or if `find` finds no reason to check it.
    pub(super) async fn check<T>(
        &self,
        run: &WeakRun,
        checker: &InquiryStage<RunSnapshot, Verdict>,
        find: impl FnOnce(&Run) -> Option<T>,
    ) -> Option<(T, Verdict)> {
        // The semaphore is never closed, so a permit always comes.
        let _permit = self.checks.acquire().await.ok()?;
        // The run may have moved on during the wait for a permit.
        let live = run.live()?;
        let found = find(&live)?;
        let asked = checker.ask(live.snapshot_for_check());
        drop(live);
        let answer = within(Some(self.check_within), asked).await;
        let unknown = |error: BoxError| Verdict::new(Status::Unknown, error.to_string());
        let verdict = answer.unwrap_or_else(unknown);
        let live = run.live()?;
        live.node().keep_verdict(&verdict);
        live.notify(&RunNotice::Checked {
            status: verdict.status,
            reason: verdict.reason.clone(),
        });
        Some((found, verdict))
    }

    fn end(&self, run: &Run) {
        if self.shadow {
            run.nearest().would_end(&TerminalReason::Stuck, None);
        } else {
            run.end(TerminalReason::Stuck);
        }
    }
}

async fn within<A>(
    limit: Option<Duration>,
    asked: impl Future<Output = Result<A, BoxError>>,
) -> Result<A, BoxError> {
    match limit {
        Some(limit) => match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("no answer within {limit:?}").into()),
        },
        None => asked.await,
    }
}

type StageFuture<A> = Pin<Box<dyn Future<Output = Result<A, BoxError>> + Send>>;

/// The type-erased service of one stage; each question goes to a clone of the service.
pub(super) struct InquiryStage<Q, A>(Arc<AskStage<Q, A>>);

type AskStage<Q, A> = Lock<dyn FnMut(Q) -> StageFuture<A> + Send>;

impl<Q: Send + 'static, A: 'static> InquiryStage<Q, A> {
    pub(super) fn new<S>(service: S) -> Self
    where
        S: Service<Q, Response = A> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        Self(Arc::new(Lock::new(move |question| -> StageFuture<A> {
            let mut service = service.clone();
            Box::pin(async move {
                poll_fn(|cx| service.poll_ready(cx))
                    .await
                    .map_err(Into::into)?;
                service.call(question).await.map_err(Into::into)
            })
        })))
    }

    /// Asks the stage: calls a clone of its service with `question`.
    ///
    /// A panic of the service becomes an error, because the watchdog serves other runs
    /// too.
    pub(super) async fn ask(&self, question: Q) -> Result<A, BoxError> {
        let asked = guarded(|| {
            let mut ask = self.0.lock();
            ask(question)
        });
        let Some(mut asked) = asked else {
            return Err(panicked());
        };
        poll_fn(|cx| {
            let polled = guarded(|| asked.as_mut().poll(cx));
            polled.unwrap_or_else(|| Poll::Ready(Err(panicked())))
        })
        .await
    }
}

fn panicked() -> BoxError {
    tracing::error!(target: "tower_agent", "a service of the watchdog panicked");
    "it panicked".into()
}

impl<Q, A> Clone for InquiryStage<Q, A> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<Q, A> fmt::Debug for InquiryStage<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stage")
    }
}

/// The question to a person whether a run that looks stuck, or is near a cap, should continue.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct Question {
    /// The state of the run when the question was asked.
    pub snapshot: RunSnapshot,
    /// The question as text, ready to show.
    pub message: String,
}

impl Question {
    pub(super) fn of(run: &Run, repeats: Option<u32>, verdict: Option<&Verdict>) -> Self {
        let snapshot = run.snapshot_for_check();
        let often = repeats.map_or_else(String::new, |times| format!(" {times} times in a row"));
        let mut message = format!("The run {} did the same thing{often}", snapshot.run);
        if let Some(step) = &snapshot.last_step {
            message += &format!(" (last step: {step})");
        }
        message.push('.');
        if let Some(verdict) = verdict {
            message += &format!(" A check says that it is {}", verdict.status.as_str());
            if !verdict.reason.is_empty() {
                message += &format!(": {}", verdict.reason);
            }
            message.push('.');
        }
        message += " Shall it continue?";
        Self { snapshot, message }
    }

    fn at_cap(run: &Run, near: &str) -> Self {
        let snapshot = run.snapshot_for_check();
        let message = format!(
            "The run {}: {near}. Shall it continue, and use as much once more?",
            snapshot.run
        );
        Self { snapshot, message }
    }
}
