//! The stacks of the present configuration, and of earlier ones for the runs that began with them.

use std::{
    collections::HashSet,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use axum::body::Body;
use http::Request;
use tower_agent::{RunEvent, RunId, RunRegistry, layers::run::RequestRun};

/// The stacks of the present configuration, and of earlier ones for their open runs.
#[derive(Debug)]
pub(crate) struct StackGenerations<S>(ArcSwap<GenerationState<S>>);

#[derive(Debug)]
struct GenerationState<S> {
    present: Arc<S>,
    /// The stacks of earlier configurations that still have open runs, the oldest first.
    earlier: Vec<Arc<Earlier<S>>>,
}

/// The stacks of one earlier configuration.
#[derive(Debug)]
struct Earlier<S> {
    stacks: Arc<S>,
    /// The runs that began with these stacks and are open. Two owners may use one id: their runs
    /// count as one, which is open until both have ended.
    open: Mutex<HashSet<RunId>>,
}

impl<S: Send + Sync + 'static> StackGenerations<S> {
    pub(crate) fn new(present: S) -> Self {
        Self(ArcSwap::from_pointee(GenerationState {
            present: Arc::new(present),
            earlier: Vec::new(),
        }))
    }

    /// The stacks with which the run of this request began; the present ones for a run that begins
    /// now.
    pub(crate) fn of(&self, request: &Request<Body>) -> Arc<S> {
        let state = self.0.load();
        // Mostly no earlier stacks are kept, and then the run's id is not read.
        let id = (!state.earlier.is_empty())
            .then(|| run_of(request))
            .flatten();
        let began = id.and_then(|id| {
            let mut earlier = state.earlier.iter();
            earlier.find(|earlier| earlier.open().contains(&id))
        });
        Arc::clone(began.map_or(&state.present, |began| &began.stacks))
    }

    /// Replaces the present stacks, and keeps them for the open runs that began with them.
    ///
    /// The caller must not call this method concurrently. The future drops the replaced stacks when
    /// the last of these runs has ended; `None` if there is no such run.
    pub(crate) fn replace(
        self: &Arc<Self>,
        stacks: S,
        registry: &RunRegistry,
    ) -> Option<impl Future<Output = ()> + Send + use<S>> {
        let mut events = registry.subscribe();
        let state = self.0.load_full();
        let is_newer = |id: &RunId| state.earlier.iter().all(|it| !it.open().contains(id));
        let mut open = open_runs(registry);
        open.retain(is_newer);
        let kept = (!open.is_empty()).then(|| {
            Arc::new(Earlier {
                stacks: Arc::clone(&state.present),
                open: Mutex::new(open),
            })
        });
        let present = Arc::new(stacks);
        self.0.rcu(|state| GenerationState {
            present: Arc::clone(&present),
            earlier: state.earlier.iter().chain(&kept).cloned().collect(),
        });
        let (kept, all, registry) = (kept?, Arc::clone(self), registry.clone());
        Some(async move {
            while !kept.open().is_empty() {
                match events.next().await {
                    // Another owner's run of this id may still be open.
                    Some(RunEvent::Ended { run, .. }) if !is_open(&registry, &run) => {
                        kept.open().remove(&run);
                    }
                    Some(RunEvent::Lost { .. }) => {
                        let open = open_runs(&registry);
                        kept.open().retain(|id| open.contains(id));
                    }
                    _ => {}
                }
            }
            all.0.rcu(|state| {
                let others = state.earlier.iter().filter(|it| !Arc::ptr_eq(it, &kept));
                GenerationState {
                    present: Arc::clone(&state.present),
                    earlier: others.cloned().collect(),
                }
            });
        })
    }

    #[cfg(test)]
    pub(crate) fn present(&self) -> Arc<S> {
        Arc::clone(&self.0.load().present)
    }

    /// The number of earlier configurations that are kept.
    #[cfg(test)]
    pub(crate) fn earlier(&self) -> usize {
        self.0.load().earlier.len()
    }
}

impl<S> Earlier<S> {
    fn open(&self) -> MutexGuard<'_, HashSet<RunId>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The run that the request names, or that its agent's headers and body name.
fn run_of(request: &Request<Body>) -> Option<RunId> {
    let named = request.headers().get("x-run-id");
    let named = named.and_then(|id| id.to_str().ok()?.parse().ok());
    let found = || Some(request.extensions().get::<RequestRun>()?.id().clone());
    named.or_else(found)
}

/// Whether a run of this id is open, of any owner.
fn is_open(registry: &RunRegistry, id: &RunId) -> bool {
    let mut runs = registry.find(id).into_iter();
    runs.any(|run| run.terminal_reason().is_none())
}

fn open_runs(registry: &RunRegistry) -> HashSet<RunId> {
    let runs = registry.list().into_iter();
    let open = runs.filter(|run| run.reason.is_none());
    open.map(|run| run.run).collect()
}
