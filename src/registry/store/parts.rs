//! The parts that this registry has of the runs of all replicas.

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use super::{RunKey, RunNews, RunQuestion, RunStore, StoreLost, candidates::CandidateListeners};
use crate::{
    lock::Lock,
    run::{
        PartLink, RunAdjustments, SharedRun, TokensSpent, TurnNeeded, TurnUnderWay, TurnsAnswered,
        TurnsFuture, TurnsGranted,
    },
};

/// The store of a registry, and the registry's parts of runs.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    store: StoreCell,
    known: Arc<Lock<Known>>,
    pub(super) candidates: Arc<CandidateListeners>,
}

/// The place of a registry's store; empty without one.
pub(crate) type StoreCell = Arc<OnceLock<Arc<dyn RunStore>>>;

/// The parts by their runs, each with its number.
type Known = HashMap<RunKey, (u64, Weak<SharedRun>)>;

/// The link of a part.
#[derive(Debug)]
struct StoreLink {
    run: RunKey,
    part: u64,
    store: Arc<dyn RunStore>,
    known: Weak<Lock<Known>>,
}

impl PartLink for StoreLink {
    fn ask(&self, needed: TurnNeeded) -> TurnsFuture {
        let mut question = RunQuestion::new(self.run.clone(), self.part);
        question.turns = Some(needed.into());
        let answer = Arc::clone(&self.store).ask(question);
        Box::pin(async move {
            match answer.await {
                Err(StoreLost) => TurnsAnswered::Lost,
                Ok(recalled) => match &recalled.end {
                    Some(end) => TurnsAnswered::Ended(end.told(recalled.incarnation)),
                    None => TurnsAnswered::Granted(TurnsGranted {
                        incarnation: recalled.incarnation,
                        granted: recalled.granted,
                        elsewhere: recalled.turns_elsewhere,
                        spent_elsewhere: recalled.spent_elsewhere,
                        adjusted: recalled.adjusted,
                    }),
                },
            }
        })
    }

    fn spent(&self, incarnation: Option<u64>, spent: TokensSpent) {
        self.store.tell(RunNews::Spent {
            run: self.run.clone(),
            part: self.part,
            incarnation,
            spent,
        });
    }

    fn adjusted(
        &self,
        incarnation: Option<u64>,
        adjusted: RunAdjustments,
        suspension: Option<bool>,
    ) {
        self.store.tell(RunNews::Adjusted {
            run: self.run.clone(),
            incarnation,
            adjusted,
            suspension,
        });
    }

    fn gave_back(&self, number: u64, turns: u32) {
        self.store.tell(RunNews::GaveBack {
            run: self.run.clone(),
            part: self.part,
            number,
            turns,
        });
    }

    /// Also forgets the part.
    fn left(&self, turns: u32, completed: bool) {
        if let Some(known) = self.known.upgrade() {
            let mut known = known.lock();
            // Another part of the run may have begun meanwhile.
            if known.get(&self.run).is_some_and(|it| it.0 == self.part) {
                known.remove(&self.run);
            }
        }
        self.store.tell(RunNews::Left {
            run: self.run.clone(),
            part: self.part,
            turns,
            completed,
        });
    }
}

impl Parts {
    pub(crate) fn set_store(&self, store: Arc<dyn RunStore>) {
        let _first = self.store.set(store);
    }

    pub(crate) fn cell(&self) -> StoreCell {
        Arc::clone(&self.store)
    }

    pub(crate) fn store(&self) -> Option<&Arc<dyn RunStore>> {
        self.store.get()
    }

    /// The registry's part of a run, which begins now if there is none; `None` without a store.
    pub(crate) fn part(&self, run: &RunKey) -> Option<Arc<SharedRun>> {
        let store = self.store()?;
        let mut known = self.known.lock();
        if let Some(part) = known.get(run).and_then(|it| it.1.upgrade()) {
            return Some(part);
        }
        let number = fastrand::u64(..);
        let link = StoreLink {
            run: run.clone(),
            part: number,
            store: Arc::clone(store),
            known: Arc::downgrade(&self.known),
        };
        let part = Arc::new(SharedRun::new(number, Box::new(link)));
        known.insert(run.clone(), (number, Arc::downgrade(&part)));
        Some(part)
    }
}

/// A request's extension: the part of its run, and the turn for which the store was asked.
#[derive(Clone, Debug)]
pub(crate) struct AskedRun {
    pub(crate) part: Arc<SharedRun>,
    pub(crate) age: Duration,
    /// Whether the run was open before this request: at another replica, or at one that has stopped.
    pub(crate) was_open: bool,
    /// What was changed about the run elsewhere.
    pub(crate) adjusted: RunAdjustments,
    turn: Arc<Lock<Option<TurnUnderWay>>>,
}

impl AskedRun {
    pub(crate) fn new(
        part: Arc<SharedRun>,
        age: Duration,
        was_open: bool,
        adjusted: RunAdjustments,
        turn: Option<TurnUnderWay>,
    ) -> Self {
        let turn = Arc::new(Lock::new(turn));
        Self {
            part,
            age,
            was_open,
            adjusted,
            turn,
        }
    }

    /// Takes the turn for which the store was asked.
    pub(crate) fn take_turn(&self) -> Option<TurnUnderWay> {
        self.turn.lock().take()
    }
}
