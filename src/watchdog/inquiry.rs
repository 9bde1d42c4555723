use std::{future::Future, sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{Question, stage::Stage};
use crate::{
    BoxError,
    run::{Answer, Notice, Run, RunSnapshot, Scope, Status, TerminalReason, Verdict, WeakRun},
};

/// What happens to a run that looks stuck.
#[derive(Debug)]
pub(super) struct Stages {
    pub(super) checker: Option<Stage<RunSnapshot, Verdict>>,
    pub(super) check_within: Duration,
    pub(super) question: Option<Stage<Question, Answer>>,
    pub(super) answer_within: Option<Duration>,
    pub(super) ends: bool,
    pub(super) shadow: bool,
    /// How many checks there may be at once.
    pub(super) checks: Semaphore,
}

/// Asks one stage after the other, for as long as the run goes on. The run is held
/// for no longer than it takes to look at it.
pub(super) async fn inquire(run: WeakRun, repeats: Option<u32>, stages: Arc<Stages>) {
    let verdict = match &stages.checker {
        Some(checker) => match stages.check(&run, checker).await {
            Some(verdict) => Some(verdict),
            None => return,
        },
        None => None,
    };
    let Some(live) = run.live() else { return };
    match &verdict {
        Some(verdict) if verdict.status == Status::Working => return,
        Some(verdict) if verdict.confirms() && stages.ends => return stages.end(&live),
        _ => {}
    }
    let Some(question) = &stages.question else {
        return;
    };
    if stages.shadow {
        return live.notify(&Notice::WouldHaveAsked);
    }
    let asked = question.ask(Question::of(&live, repeats, verdict.as_ref()));
    live.notify(&Notice::Asked);
    drop(live);
    let answer = within(stages.answer_within, asked).await.ok();
    if let Some(live) = run.live() {
        live.notify(&Notice::Answered { answer });
        if answer == Some(Answer::Stop) {
            stages.end(&live);
        }
    }
}

impl Stages {
    /// None if there is nothing to check any more.
    async fn check(&self, run: &WeakRun, checker: &Stage<RunSnapshot, Verdict>) -> Option<Verdict> {
        // It is never closed.
        let _permit = self.checks.acquire().await.ok()?;
        // It may have moved on while it waited for its turn.
        let snapshot = run.live()?.snapshot();
        let asked = snapshot.stuck.then(|| checker.ask(snapshot))?;
        let answer = within(Some(self.check_within), asked).await;
        let unknown = |error: BoxError| Verdict::new(Status::Unknown, error.to_string());
        let verdict = answer.unwrap_or_else(unknown);
        run.live()?.notify(&Notice::Checked {
            status: verdict.status,
            reason: verdict.reason.clone(),
        });
        Some(verdict)
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
