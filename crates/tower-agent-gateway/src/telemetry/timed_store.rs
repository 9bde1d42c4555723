use std::{sync::Arc, time::Duration};

use tokio::{sync::broadcast, time::Instant};
use tower_agent::{
    RunId,
    registry::store::{
        Heard, NewsSubject, OwnerElsewhere, OwnerQuestion, Reach, Recalled, RunNews, RunQuestion,
        RunStore, StoreFuture, StoreLost, StoredCooldowns, StoredFreezes,
    },
};

use super::metrics::record_store_wait;

/// Records how long each question to a store of runs takes, also one whose caller gives up, and tells
/// which ends are heard.
#[derive(Debug)]
pub(crate) struct TimedStore<S> {
    store: Arc<S>,
    ends: broadcast::Sender<RunId>,
}

impl<S> TimedStore<S> {
    pub(crate) const fn new(store: Arc<S>, ends: broadcast::Sender<RunId>) -> Self {
        Self { store, ends }
    }
}

/// Records the time from its making to its drop.
struct Wait(Instant);

impl Drop for Wait {
    fn drop(&mut self) {
        record_store_wait(self.0.elapsed());
    }
}

/// Records how long this answer takes.
fn timed<T: 'static>(answer: StoreFuture<T>) -> StoreFuture<T> {
    let wait = Wait(Instant::now());
    Box::pin(async move {
        let _wait = wait;
        answer.await
    })
}

impl<S: RunStore> RunStore for TimedStore<S> {
    fn ask(self: Arc<Self>, question: RunQuestion) -> StoreFuture<Result<Recalled, StoreLost>> {
        timed(Arc::clone(&self.store).ask(question))
    }

    fn ask_owner(
        self: Arc<Self>,
        question: OwnerQuestion,
    ) -> StoreFuture<Result<OwnerElsewhere, StoreLost>> {
        timed(Arc::clone(&self.store).ask_owner(question))
    }

    fn tell(&self, news: RunNews) {
        self.store.tell(news);
    }

    fn next(self: Arc<Self>) -> StoreFuture<Heard> {
        let heard = Arc::clone(&self.store).next();
        Box::pin(async move {
            let heard = heard.await;
            if let Heard::Ended { run, .. } = &heard {
                // Nobody may wait for one.
                let _none = self.ends.send(run.id.clone());
            }
            heard
        })
    }

    fn cooldowns(self: Arc<Self>) -> StoreFuture<Result<StoredCooldowns, StoreLost>> {
        Arc::clone(&self.store).cooldowns()
    }

    fn frozen(self: Arc<Self>) -> StoreFuture<Result<StoredFreezes, StoreLost>> {
        Arc::clone(&self.store).frozen()
    }

    fn reach(
        self: Arc<Self>,
        about: NewsSubject,
        wait: Duration,
    ) -> StoreFuture<Result<Reach, StoreLost>> {
        Arc::clone(&self.store).reach(about, wait)
    }
}
