//! What a request asks the store, and what it makes of the answer.

use std::{sync::Arc, time::Duration};

use http::{Request, StatusCode};

use super::RunStoreLayer;
use crate::{
    attempt::generates,
    error::BoxError,
    layers::run::RunName,
    registry::{
        AskedRun, OwnerAsk, RunRegistry,
        store::{
            OwnerQuestion, Recalled, RunEnd, RunKey, RunQuestion, RunStore, StoreFuture, StoreLost,
            TurnsAsked,
        },
    },
    run::{ReasonClass, Run, RunAdjustments, RunId, SharedRun, TerminalReason, TurnUnderWay},
};

/// The one question of a request.
pub(super) enum StoreQuestion {
    /// About its run, and maybe about the run's owner.
    Run(RunQuestion),
    Owner(OwnerQuestion),
}

impl StoreQuestion {
    pub(super) fn ask(self, store: Arc<dyn RunStore>) -> StoreFuture<Result<Recalled, StoreLost>> {
        match self {
            Self::Run(question) => store.ask(question),
            Self::Owner(question) => Box::pin(async {
                let owner = Some(store.ask_owner(question).await?);
                Ok(Recalled {
                    owner,
                    ..Recalled::default()
                })
            }),
        }
    }
}

/// A question of a request, and what it is about.
pub(super) struct Asked {
    pub(super) question: StoreQuestion,
    pub(super) run: Option<RunAsk>,
    pub(super) owner: Option<OwnerAsk>,
}

/// What a question about a run is about.
#[derive(Debug)]
pub(super) struct RunAsk {
    run: RunKey,
    turns: Option<TurnsAsked>,
    part: Arc<SharedRun>,
    turn: Option<TurnUnderWay>,
    /// Whether the registry holds the run.
    is_open: bool,
}

impl RunStoreLayer {
    /// The question that the request needs; `None` if it needs none.
    pub(super) fn question<Q>(&self, request: Request<Q>) -> (Option<Asked>, Request<Q>) {
        let registry = self.runs.registry();
        // A registry that closes would refuse the request, and its turn would be lost to the others.
        let is_asked = registry.is_shared() && !registry.is_closed();
        if !is_asked || request.extensions().get::<Run>().is_some() {
            return (None, request);
        }
        let is_turn = self.owners.is_some() && generates(&request);
        let (named, request) = self.runs.named(request);
        let Some(named) = named else {
            return (None, request);
        };
        let owner = named.owner;
        let (known, request) = match named.id.clone() {
            Some(id) => {
                let run = RunKey { owner, id };
                match self.run_question(named, run, request) {
                    (Some(known), request) => (known, request),
                    (None, request) => return (None, request),
                }
            }
            None => (KnownRun::default(), request),
        };
        let caps = self.owners.map(|caps| (registry.count_owners(), caps));
        let owner =
            caps.and_then(|(owners, caps)| owners.ask(owner, caps, !known.is_open, is_turn));
        let (owner_question, owner) = owner.unzip();
        let asked = match (known.asks, owner_question) {
            (Some((mut question, run)), owner_question) => {
                question.owner = owner_question;
                Some((StoreQuestion::Run(question), Some(run)))
            }
            (None, Some(question)) => Some((StoreQuestion::Owner(question), None)),
            (None, None) => None,
        };
        let asked = asked.map(|(question, run)| Asked {
            question,
            run,
            owner,
        });
        (asked, request)
    }

    /// The question about the run of a request, if there is one. `None` for a run that has ended, of
    /// which nothing is asked.
    fn run_question<Q>(
        &self,
        named: RunName,
        run: RunKey,
        request: Request<Q>,
    ) -> (Option<KnownRun>, Request<Q>) {
        let registry = self.runs.registry();
        let held = registry.get(run.owner, &run.id);
        let end = held.as_ref().and_then(Run::terminal_reason);
        if end.is_some_and(|reason| reason != TerminalReason::Completed) {
            return (None, request);
        }
        let held = held.filter(|run| run.terminal_reason().is_none());
        let is_open = held.is_some();
        let (cap, request) = match &self.turns {
            Some(turns) => turns.cap_for(request),
            None => (None, request),
        };
        let held_node = held.as_ref().map(|run| run.node());
        let added = held_node.map_or(0, |node| node.added_turns());
        let cap = cap.map(|cap| held_node.map_or(cap, |node| node.extended_turns(cap)));
        let part = registry.part(&run);
        let part = part.filter(|part| {
            // What has ended elsewhere is heard, once the store knows the part.
            cap.is_some() || self.caps_tokens || !is_open || part.incarnation().is_none()
        });
        let Some(part) = part else {
            return (
                Some(KnownRun {
                    asks: None,
                    is_open,
                }),
                request,
            );
        };
        let (turns, turn) = cap
            .map(|cap| {
                let (needed, turn) = part.begin_turn(cap, added);
                (TurnsAsked::from(needed), turn)
            })
            .unzip();
        let question = RunQuestion {
            run: run.clone(),
            part: part.part,
            session: named.session,
            parent: named.parent,
            turns,
            is_sticky: self.sessions.is_some(),
            owner: None,
        };
        let ask = RunAsk {
            run,
            turns,
            part,
            turn,
            is_open,
        };
        let asks = Some((question, ask));
        (Some(KnownRun { asks, is_open }), request)
    }
}

/// What a registry knows of a request's run.
#[derive(Default)]
struct KnownRun {
    asks: Option<(RunQuestion, RunAsk)>,
    /// Whether the registry holds the run, so that the request opens none.
    is_open: bool,
}

impl RunAsk {
    /// What the request knows of its run with this answer.
    ///
    /// # Errors
    ///
    /// The end of the run, or of its parent; or there is no answer, and the layer `refuses` then.
    pub(super) fn answered(
        self,
        answer: Result<Recalled, StoreLost>,
        registry: &RunRegistry,
        refuses: bool,
    ) -> Result<AskedRun, BoxError> {
        let (mut age, mut was_open) = (Duration::ZERO, false);
        let mut adjusted = RunAdjustments::default();
        match answer {
            Ok(recalled) => {
                if let Some(end) = recalled.end {
                    // The request asks no more: what waits for that may close the run.
                    drop(self.turn);
                    registry.end_as_told(&self.run, recalled.incarnation, &end);
                    return Err(end.refusal(self.run.id, recalled.age).into());
                }
                if let Some(end) = recalled.parent_end.filter(|_| !self.is_open) {
                    return Err(end.refusal(self.run.id, Duration::ZERO).into());
                }
                self.part.learn(recalled.incarnation);
                if let Some(turns) = self.turns {
                    let (granted, elsewhere) = (recalled.granted, recalled.turns_elsewhere);
                    self.part.learn_turns(turns.number, granted, elsewhere);
                }
                self.part.learn_spent(recalled.spent_elsewhere);
                adjusted = recalled.adjusted;
                age = recalled.age;
                was_open = recalled.is_held_elsewhere || !age.is_zero();
            }
            Err(StoreLost) => {
                if let Some(turns) = self.turns {
                    if refuses && !self.is_open {
                        return Err(peers_lost(self.run.id));
                    }
                    self.part.grant_alone(turns.want, turns.cap);
                }
            }
        }
        Ok(AskedRun::new(self.part, age, was_open, adjusted, self.turn))
    }
}

/// The refusal of a request while the other replicas are lost.
fn peers_lost(run: RunId) -> BoxError {
    let (class, status) = (ReasonClass::Failure, StatusCode::SERVICE_UNAVAILABLE);
    let reason = TerminalReason::custom("peers_lost", class, status);
    RunEnd::new(reason).refusal(run, Duration::ZERO).into()
}
