//! Asks a checker, then a person, about a run that looks stuck.

use std::{
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use tokio::sync::Semaphore;
use tower_service::Service;

use crate::{
    error::BoxError,
    run::{Answer, Run, RunNotice, RunSnapshot, Scope, Status, TerminalReason, Verdict, WeakRun},
};

/// What happens to a run that looks stuck.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) checker: Option<InquiryStage<RunSnapshot, Verdict>>,
    pub(super) check_within: Duration,
    pub(super) question: Option<InquiryStage<Question, Answer>>,
    pub(super) answer_within: Option<Duration>,
    pub(super) ends: bool,
    pub(super) shadow: bool,
    /// How many checks there may be at once.
    pub(super) checks: Semaphore,
}

/// It has moved, and is stuck at something else that nobody was asked about.
struct Anew;

/// Asks one stage after the other, for as long as the run goes on and is stuck. The
/// run is held for no longer than it takes to look at it.
pub(super) async fn inquire(run: WeakRun, mut repeats: Option<u32>, stages: Arc<Stages>) {
    while let Some(Anew) = stages.round(&run, repeats).await {
        repeats = None;
    }
}

impl Stages {
    /// None once there is nothing to ask any more.
    async fn round(&self, run: &WeakRun, repeats: Option<u32>) -> Option<Anew> {
        let (row, verdict) = match &self.checker {
            Some(checker) => {
                let (row, verdict) = self.check(run, checker).await?;
                (row, Some(verdict))
            }
            None => (run.live()?.stuck_in()?, None),
        };
        let works = |verdict: &Verdict| verdict.status == Status::Working;
        if verdict.as_ref().is_some_and(works) {
            return None;
        }
        let live = run.live()?;
        // What was found of a run that has moved on says nothing of it any more.
        if live.stuck_in()? != row {
            return Some(Anew);
        }
        match &verdict {
            Some(verdict) if verdict.confirms() && self.ends => {
                self.end(&live);
                return None;
            }
            _ => {}
        }
        let question = self.question.as_ref()?;
        if self.shadow {
            live.notify(&RunNotice::WouldHaveAsked);
            return None;
        }
        let asked = question.ask(Question::of(&live, repeats, verdict.as_ref()));
        live.notify(&RunNotice::Asked);
        drop(live);
        let answer = within(self.answer_within, asked).await.ok();
        let live = run.live()?;
        live.notify(&RunNotice::Answered { answer });
        if live.stuck_in()? != row {
            return Some(Anew);
        }
        if answer == Some(Answer::Stop) {
            self.end(&live);
        }
        None
    }

    /// What the checker says, and of which row; none if there is nothing to check any
    /// more.
    async fn check(
        &self,
        run: &WeakRun,
        checker: &InquiryStage<RunSnapshot, Verdict>,
    ) -> Option<(u64, Verdict)> {
        // It is never closed.
        let _permit = self.checks.acquire().await.ok()?;
        // It may have moved on while it waited for its turn.
        let live = run.live()?;
        let row = live.stuck_in()?;
        let asked = checker.ask(live.snapshot());
        drop(live);
        let answer = within(Some(self.check_within), asked).await;
        let unknown = |error: BoxError| Verdict::new(Status::Unknown, error.to_string());
        let verdict = answer.unwrap_or_else(unknown);
        run.live()?.notify(&RunNotice::Checked {
            status: verdict.status,
            reason: verdict.reason.clone(),
        });
        Some((row, verdict))
    }

    fn end(&self, run: &Run) {
        if self.shadow {
            run.would_end(Scope::Run, &TerminalReason::Stuck, None);
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

/// A service that is asked, whatever its type: each question goes to a clone of it.
pub(super) struct InquiryStage<Q, A>(Mutex<Box<dyn FnMut(Q) -> StageFuture<A> + Send>>);

impl<Q: Send + 'static, A: 'static> InquiryStage<Q, A> {
    pub(super) fn new<S>(service: S) -> Self
    where
        S: Service<Q, Response = A> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        Self(Mutex::new(Box::new(move |question| {
            let mut service = service.clone();
            Box::pin(async move {
                poll_fn(|cx| service.poll_ready(cx))
                    .await
                    .map_err(Into::into)?;
                service.call(question).await.map_err(Into::into)
            })
        })))
    }

    /// A panic of the service is an error: other runs are watched too.
    pub(super) async fn ask(&self, question: Q) -> Result<A, BoxError> {
        let asked = catch_unwind(AssertUnwindSafe(|| {
            let mut ask = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            ask(question)
        }));
        let Ok(mut asked) = asked else {
            return Err(panicked());
        };
        poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| asked.as_mut().poll(cx)));
            polled.unwrap_or_else(|_| Poll::Ready(Err(panicked())))
        })
        .await
    }
}

fn panicked() -> BoxError {
    tracing::error!(target: "tower_agent", "a service of the watchdog panicked");
    "it panicked".into()
}

impl<Q, A> fmt::Debug for InquiryStage<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stage")
    }
}

/// What a person is asked about a run that looks stuck.
#[non_exhaustive]
#[derive(Clone, Debug, serde::Serialize)]
pub struct Question {
    /// All that is known of the run.
    pub snapshot: RunSnapshot,
    /// The question, ready to be shown.
    pub message: String,
}

impl Question {
    pub(super) fn of(run: &Run, repeats: Option<u32>, verdict: Option<&Verdict>) -> Self {
        let snapshot = run.snapshot();
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
}
