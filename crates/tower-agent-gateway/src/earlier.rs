//! The stacks of earlier configurations, for the runs that began with them.

use std::{
    collections::HashSet,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use axum::body::Body;
use http::Request;
use tower_agent::{RunEvent, RunId, RunRegistry, layers::run::RequestRun};

/// The stacks of earlier configurations with their open runs, the oldest first.
#[derive(Debug)]
pub(crate) struct EarlierStacks<S>(Arc<ArcSwap<Vec<Arc<Earlier<S>>>>>);

/// The stacks of one earlier configuration.
#[derive(Debug)]
struct Earlier<S> {
    stacks: Arc<S>,
    /// The runs that began with these stacks and are open. Two owners may use one id: their runs
    /// count as one.
    open: Mutex<HashSet<RunId>>,
}

impl<S: Send + Sync + 'static> EarlierStacks<S> {
    /// The stacks with which the run of this request began, if they are earlier ones.
    pub(crate) fn of(&self, request: &Request<Body>) -> Option<Arc<S>> {
        let all = self.0.load();
        // Mostly no configuration was replaced.
        if all.is_empty() {
            return None;
        }
        let named = || {
            request
                .headers()
                .get("x-run-id")?
                .to_str()
                .ok()?
                .parse()
                .ok()
        };
        let found = || request.extensions().get::<RequestRun>();
        let id: RunId = named().or_else(|| found().map(|run| run.id().clone()))?;
        let began = all.iter().find(|earlier| earlier.open().contains(&id))?;
        Some(Arc::clone(&began.stacks))
    }

    /// Keeps the stacks of a configuration that is replaced now, for the runs that are open.
    ///
    /// The future lets go of the stacks when the last of these runs has ended; `None` if no run is
    /// open.
    pub(crate) fn keep(
        &self,
        stacks: Arc<S>,
        registry: &RunRegistry,
    ) -> Option<impl Future<Output = ()> + Send + use<S>> {
        let mut events = registry.subscribe();
        let all = self.0.load_full();
        let is_newer = |id: &RunId| all.iter().all(|earlier| !earlier.open().contains(id));
        let mut open = open_runs(registry);
        open.retain(is_newer);
        if open.is_empty() {
            return None;
        }
        let kept = Arc::new(Earlier {
            stacks,
            open: Mutex::new(open),
        });
        self.change(|all| all.push(Arc::clone(&kept)));
        let (all, registry) = (self.clone(), registry.clone());
        Some(async move {
            while !kept.open().is_empty() {
                match events.next().await {
                    Some(RunEvent::Ended { run, .. }) => drop(kept.open().remove(&run)),
                    Some(RunEvent::Lost { .. }) => {
                        let open = open_runs(&registry);
                        kept.open().retain(|id| open.contains(id));
                    }
                    Some(_) => {}
                    None => break,
                }
            }
            all.change(|all| all.retain(|earlier| !Arc::ptr_eq(earlier, &kept)));
        })
    }

    /// The number of earlier configurations that are kept.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.load().len()
    }

    fn change(&self, act: impl Fn(&mut Vec<Arc<Earlier<S>>>)) {
        self.0.rcu(|all| {
            let mut all = Vec::clone(all);
            act(&mut all);
            all
        });
    }
}

impl<S> Clone for EarlierStacks<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> Default for EarlierStacks<S> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<S> Earlier<S> {
    fn open(&self) -> MutexGuard<'_, HashSet<RunId>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_runs(registry: &RunRegistry) -> HashSet<RunId> {
    let runs = registry.list().into_iter();
    let open = runs.filter(|run| run.reason.is_none());
    open.map(|run| run.run).collect()
}
