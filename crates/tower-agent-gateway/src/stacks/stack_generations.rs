//! The stacks of the present configuration, and of earlier ones for the runs that began with them.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use axum::body::Body;
use http::Request;
use tower_agent::{Owner, Run, RunEvent, RunId, RunRegistry, layers::run::RequestRun};

use crate::http::owner_of;

/// The stacks of the present configuration, and of earlier ones for their open runs.
#[derive(Debug)]
pub(crate) struct StackGenerations<S> {
    state: ArcSwap<GenerationState<S>>,
    registry: RunRegistry,
}

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
    open: Mutex<OpenRuns>,
}

/// The open runs that began with the stacks of one configuration, by id: several owners may use one
/// id.
type OpenRuns = HashMap<RunId, Vec<(Owner, Run)>>;

impl<S: Send + Sync + 'static> StackGenerations<S> {
    pub(crate) fn new(present: S, registry: RunRegistry) -> Self {
        let state = ArcSwap::from_pointee(GenerationState {
            present: Arc::new(present),
            earlier: Vec::new(),
        });
        Self { state, registry }
    }

    /// The stacks with which the run of this request began; the current ones for a new run.
    pub(crate) fn of(&self, request: &Request<Body>) -> Arc<S> {
        let state = self.state.load();
        // Mostly no earlier stacks are kept, and then the run's id is not read.
        let id = (!state.earlier.is_empty())
            .then(|| run_of(request))
            .flatten();
        let began = id.and_then(|id| {
            let owner = owner_of(request.extensions(), request.headers());
            // The lookup ends a run that was idle for too long; the request then opens another.
            let _run = self.registry.get(owner, &id)?;
            let mut earlier = state.earlier.iter();
            earlier.find(|earlier| earlier.has_open(owner, &id))
        });
        Arc::clone(began.map_or(&state.present, |began| &began.stacks))
    }

    /// Replaces the present stacks, and keeps them for the open runs that began with them.
    ///
    /// Without `keeps_runs`, all earlier stacks are dropped, and open runs go on with the new ones.
    ///
    /// The caller must not call this method concurrently. The future drops the replaced stacks when
    /// the last of these runs has ended; `None` if there is no such run.
    pub(crate) fn replace(
        self: &Arc<Self>,
        stacks: S,
        keeps_runs: bool,
    ) -> Option<impl Future<Output = ()> + Send + use<S>> {
        let mut events = self.registry.subscribe();
        let present = Arc::new(stacks);
        if !keeps_runs {
            let earlier = Vec::new();
            self.state
                .store(Arc::new(GenerationState { present, earlier }));
            return None;
        }
        let state = self.state.load_full();
        let mut open = OpenRuns::new();
        for (owner, run) in self.registry.live_runs() {
            let id = run.id();
            if !state.earlier.iter().any(|it| it.has_open(owner, &id)) {
                open.entry(id).or_default().push((owner, run));
            }
        }
        let kept = (!open.is_empty()).then(|| {
            Arc::new(Earlier {
                stacks: Arc::clone(&state.present),
                open: Mutex::new(open),
            })
        });
        self.state.rcu(|state| GenerationState {
            present: Arc::clone(&present),
            earlier: state.earlier.iter().chain(&kept).cloned().collect(),
        });
        // The task holds the stacks no longer than the generations do.
        let (kept, all) = (Arc::downgrade(&kept?), Arc::clone(self));
        Some(async move {
            loop {
                let event = events.next().await;
                let Some(kept) = kept.upgrade() else {
                    return;
                };
                match event {
                    Some(RunEvent::Ended { run, .. }) => kept.forget_ended(Some(&run)),
                    Some(RunEvent::Lost { .. }) => kept.forget_ended(None),
                    _ => continue,
                }
                if kept.open().is_empty() {
                    all.drop_earlier(&kept);
                    return;
                }
            }
        })
    }

    fn drop_earlier(&self, done: &Arc<Earlier<S>>) {
        self.state.rcu(|state| {
            let others = state.earlier.iter().filter(|it| !Arc::ptr_eq(it, done));
            GenerationState {
                present: Arc::clone(&state.present),
                earlier: others.cloned().collect(),
            }
        });
    }

    pub(crate) fn present(&self) -> Arc<S> {
        Arc::clone(&self.state.load().present)
    }

    /// The number of earlier configurations that are kept.
    #[cfg(test)]
    pub(crate) fn earlier(&self) -> usize {
        self.state.load().earlier.len()
    }
}

impl<S> Earlier<S> {
    fn has_open(&self, owner: Owner, id: &RunId) -> bool {
        let open = self.open();
        let mut runs = open.get(id).into_iter().flatten();
        runs.any(|(of, run)| *of == owner && run.terminal_reason().is_none())
    }

    /// Forgets the runs of this id, or of all ids, that have ended.
    fn forget_ended(&self, id: Option<&RunId>) {
        let mut open = self.open();
        let is_open = |(_, run): &(Owner, Run)| run.terminal_reason().is_none();
        match id {
            Some(id) => {
                let runs = open.get_mut(id).map(|runs| {
                    runs.retain(is_open);
                    runs.is_empty()
                });
                if runs == Some(true) {
                    open.remove(id);
                }
            }
            None => open.retain(|_, runs| {
                runs.retain(is_open);
                !runs.is_empty()
            }),
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenRuns> {
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
