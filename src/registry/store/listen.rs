//! What a registry does with the news of other replicas, and what it tells them.

use std::{future::Future, sync::Arc, time::Duration};

use super::{
    AbortTarget, Heard, NewsSubject, OwnerElsewhere, Parts, Reach, RunEnd, RunKey, RunNews,
    RunQuestion, RunStore, TokenCapReached, TurnsAsked,
};
use crate::{
    registry::{Owner, RunRegistry},
    run::{
        EndElsewhere, LimitHit, LimitKind, Node, NodeState, RunAdjustments, RunId, SharedRun,
        TerminalReason, TokenLimit, TokensSpent, TurnNeeded,
    },
};

impl RunRegistry {
    /// Shares the runs of this registry with those of other replicas: see
    /// [`store`](crate::registry::store).
    ///
    /// Give the store to the registry before its first run. The first store stays for the
    /// registry's life. The program also runs [`listen`](Self::listen).
    #[must_use]
    pub fn share(self, store: Arc<dyn RunStore>) -> Self {
        self.state.parts.set_store(store);
        self
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.store().is_some()
    }

    pub(crate) fn store(&self) -> Option<&Arc<dyn RunStore>> {
        self.state.parts.store()
    }

    /// This registry's part of a run; `None` if the registry is not shared.
    pub(crate) fn part(&self, run: &RunKey) -> Option<Arc<SharedRun>> {
        self.state.parts.part(run)
    }

    /// Carries out what other replicas tell, until the registry is dropped.
    ///
    /// Spawn the future, once for each registry. Without a store it resolves at once.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped and another one is run later.
    pub fn listen(&self) -> impl Future<Output = ()> + Send + use<> {
        let registry = self.downgrade();
        let store = self.state.parts.store().cloned();
        let candidates = Arc::clone(&self.state.parts.candidates);
        async move {
            let Some(store) = store else { return };
            if let Some(registry) = registry.upgrade() {
                registry.read_frozen(&store).await;
            }
            loop {
                let heard = candidates.next(&store).await;
                let Some(registry) = registry.upgrade() else {
                    return;
                };
                match heard {
                    Heard::Ended {
                        run,
                        incarnation,
                        end,
                    } => registry.end_as_told(&run, incarnation, &end),
                    Heard::SessionEnded {
                        owner,
                        session,
                        spared,
                    } => registry.abort_as_told(owner, &session, spared.as_ref()),
                    Heard::Spent {
                        run,
                        incarnation,
                        elsewhere,
                    } => registry.learn_spent(&run, incarnation, elsewhere),
                    Heard::Barrier { barrier } => store.tell(RunNews::CarriedOut { barrier }),
                    Heard::AbortedForAll(target) => drop(registry.abort_here(&target)),
                    Heard::Missed { ago, news } => registry.hear_missed(*news, ago),
                    Heard::OwnerCounted {
                        owner,
                        number,
                        elsewhere,
                    } => registry.learn_owner(owner, number, elsewhere),
                    Heard::CooldownBegan(cooldown) => candidates.hear_began(&cooldown),
                    Heard::CooldownEnded { key, window } => candidates.hear_ended(key, window),
                    Heard::SessionServed(served) => candidates.hear_served(served),
                    Heard::Frozen {
                        whose,
                        is_frozen,
                        epoch,
                    } => registry.hear_frozen(whose, is_frozen, epoch),
                    Heard::Hole => {
                        candidates.read(&store).await;
                        registry.read_frozen(&store).await;
                        if let Some(owners) = registry.state.owners.get() {
                            owners.tell_all();
                        }
                        registry.ask_anew(&store).await;
                    }
                }
            }
        }
    }

    /// Waits until the other replicas have carried out what this one told about a run, such as its
    /// [abort](Self::abort).
    ///
    /// Resolves once all replicas that live have, or after `wait`. Resolves with `None` at once if
    /// the registry is not [shared](Self::share), and if the store is lost: then the others hear
    /// of it later.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes nothing back.
    pub fn reach(
        &self,
        owner: Owner,
        id: &RunId,
        wait: Duration,
    ) -> impl Future<Output = Option<Reach>> + Send + use<> {
        let id = id.clone();
        self.reach_of(NewsSubject::Run(RunKey { owner, id }), wait)
    }

    /// Waits as [`reach`](Self::reach) does, for what was told about a session.
    pub fn reach_session(
        &self,
        owner: Owner,
        session: &str,
        wait: Duration,
    ) -> impl Future<Output = Option<Reach>> + Send + use<> {
        let session = session.into();
        self.reach_of(NewsSubject::Session { owner, session }, wait)
    }

    fn reach_of(
        &self,
        subject: NewsSubject,
        wait: Duration,
    ) -> impl Future<Output = Option<Reach>> + Send + use<> {
        let store = self.store().cloned();
        async move { store?.reach(subject, wait).await.ok() }
    }

    /// Ends this registry's part of a run that has ended elsewhere.
    pub(crate) fn end_as_told(&self, key: &RunKey, incarnation: u64, end: &RunEnd) {
        if let Some(run) = self.get(key.owner, &key.id) {
            run.end_as_told(&end.told(incarnation));
        }
    }

    /// Carries out news that were told so long `ago`. What the store did not know then it is told now:
    /// the others refuse the ids, too.
    fn hear_missed(&self, news: Heard, ago: Duration) {
        match news {
            Heard::Ended {
                run: key,
                incarnation: 0,
                end,
            } => {
                if let Some(run) = self.get(key.owner, &key.id) {
                    let now = run.now();
                    if now >= ago {
                        drop(run.node().end(end.reason.clone(), end.limit_hit(), now));
                    }
                }
            }
            Heard::Ended {
                run,
                incarnation,
                end,
            } => self.end_as_told(&run, incarnation, &end),
            Heard::SessionEnded {
                owner,
                session,
                spared,
            } => {
                let runs = self.state.sessions.lock().find(&session, Some(owner));
                for run in runs {
                    if Some(run.id()) != spared && run.now() >= ago {
                        run.end(TerminalReason::Aborted);
                    }
                }
            }
            Heard::AbortedForAll(target) => drop(self.abort_older(&target, ago)),
            _ => {}
        }
    }

    /// Records what the other parts of a run have spent. The next frame or request here is then
    /// held to the sum.
    fn learn_spent(&self, key: &RunKey, incarnation: u64, elsewhere: TokensSpent) {
        let run = self.get(key.owner, &key.id);
        let part = run.as_ref().and_then(|run| run.node().shared());
        if let Some(part) = part.filter(|part| part.is_of(incarnation)) {
            part.learn_spent(elsewhere);
        }
    }

    fn learn_owner(&self, owner: Owner, number: u64, elsewhere: OwnerElsewhere) {
        if let Some(owners) = self.state.owners.get() {
            owners.learn(owner, number, elsewhere);
        }
    }

    fn abort_as_told(&self, owner: Owner, session: &str, spared: Option<&RunId>) {
        let runs = self.state.sessions.lock().find(session, Some(owner));
        for run in runs {
            if Some(&run.id()) == spared {
                continue;
            }
            if let Some(part) = run.node().shared() {
                part.set_ended_elsewhere();
            }
            run.end(TerminalReason::Aborted);
        }
    }

    /// Asks about each live run, as ends may have been missed, and tells of the turns that it took
    /// meanwhile.
    async fn ask_anew(&self, store: &Arc<dyn RunStore>) {
        for (owner, run) in self.live_runs() {
            let key = RunKey {
                owner,
                id: run.id(),
            };
            let Some(part) = run.node().shared() else {
                continue;
            };
            let question = RunQuestion {
                run: key.clone(),
                part: part.part,
                session: run.session(),
                parent: None,
                turns: part.turns_anew().map(TurnsAsked::from),
                is_sticky: false,
                owner: None,
            };
            let turns = question.turns;
            let Ok(recalled) = Arc::clone(store).ask(question).await else {
                // Another hole follows once the store is back; a damaged key hides no other run.
                continue;
            };
            if let Some(end) = recalled.end {
                self.end_as_told(&key, recalled.incarnation, &end);
                continue;
            }
            part.learn(recalled.incarnation);
            if let Some(turns) = turns {
                part.learn_turns(turns.number, recalled.granted, recalled.turns_elsewhere);
            }
            self.learn_spent(&key, recalled.incarnation, recalled.spent_elsewhere);
            // A store that had lost the run does not know of it.
            if recalled.adjusted == RunAdjustments::default() {
                run.node().tell_adjustments_again();
            }
        }
    }
}

impl Parts {
    /// Tells the other replicas that a run with a given id has ended here, or that this replica's part
    /// of it has completed.
    pub(crate) fn tell_end(&self, node: &Node<NodeState>) {
        let (Some(store), Some(identity), Some(end)) =
            (self.store(), node.identity(), node.nearest_end())
        else {
            return;
        };
        let run = RunKey {
            owner: Owner(identity.owner),
            id: identity.id.clone(),
        };
        let part = node.shared();
        match (&end.reason, part) {
            // The part tells it when it leaves, which is next.
            (TerminalReason::Completed, Some(part)) => return part.set_completed(),
            (TerminalReason::Completed | TerminalReason::Shutdown, _) => return,
            _ => {}
        }
        if part.is_some_and(|part| part.has_ended_elsewhere()) {
            return;
        }
        let (at_turn, at_tokens) = match end.limit_kind {
            LimitKind::Turns(turns) => (Some(turns), None),
            LimitKind::Tokens(limit) => (None, Some(limit.into())),
            _ => (None, None),
        };
        store.tell(RunNews::Ended {
            run,
            incarnation: part.and_then(|part| part.incarnation()),
            if_known: false,
            end: RunEnd {
                reason: end.reason.clone(),
                elapsed: end.lasted(),
                limit: end.limit(),
                at_turn,
                at_tokens,
                // A cap on tokens cuts what is under way, here and elsewhere.
                at_cap: at_turn.is_some(),
            },
        });
    }

    /// Tells the other replicas that a run, which this registry does not know, was aborted. Returns
    /// whether there are others.
    pub(crate) fn tell_abort(&self, owner: Owner, id: &RunId) -> bool {
        let Some(store) = self.store() else {
            return false;
        };
        store.tell(RunNews::Ended {
            run: RunKey {
                owner,
                id: id.clone(),
            },
            incarnation: None,
            if_known: true,
            end: RunEnd::new(TerminalReason::Aborted),
        });
        true
    }

    /// Tells the other replicas that the runs of a session were aborted.
    pub(crate) fn tell_session(&self, owner: Owner, session: &str, spared: Option<RunId>) {
        if let Some(store) = self.store() {
            store.tell(RunNews::SessionEnded {
                owner,
                session: session.into(),
                spared,
            });
        }
    }

    /// Tells the other replicas that an operator aborted runs of all owners. Returns whether there are
    /// others.
    pub(crate) fn tell_for_all(&self, target: AbortTarget) -> bool {
        let Some(store) = self.store() else {
            return false;
        };
        store.tell(RunNews::AbortedForAll(target));
        true
    }

    /// Tells the other replicas that the program opens an id anew.
    pub(crate) fn tell_reopened(&self, owner: Owner, id: &RunId) {
        if let Some(store) = self.store() {
            store.tell(RunNews::Reopened {
                run: RunKey {
                    owner,
                    id: id.clone(),
                },
            });
        }
    }
}

impl RunEnd {
    /// This end of the run with that number.
    pub(super) fn told(&self, incarnation: u64) -> EndElsewhere {
        EndElsewhere {
            incarnation,
            reason: self.reason.clone(),
            passed: self.limit_hit(),
            at_cap: self.at_cap,
        }
    }

    fn limit_hit(&self) -> Option<LimitHit> {
        let kind = self.limit_kind();
        let is_limit = kind != LimitKind::Set || self.limit.is_some();
        is_limit.then_some(LimitHit {
            limit: self.limit,
            kind,
        })
    }

    /// The kind of the limit that was reached.
    pub(super) fn limit_kind(&self) -> LimitKind {
        let turns = self.at_turn.map(LimitKind::Turns);
        let tokens = self.at_tokens.map(|it| LimitKind::Tokens(it.into()));
        turns.or(tokens).unwrap_or_default()
    }
}

impl From<TurnNeeded> for TurnsAsked {
    fn from(needed: TurnNeeded) -> Self {
        Self {
            number: needed.number,
            taken: needed.taken,
            want: needed.want,
            cap: needed.cap,
            added: needed.added,
        }
    }
}

impl From<TokenLimit> for TokenCapReached {
    fn from(limit: TokenLimit) -> Self {
        Self {
            measure: limit.of,
            cap: limit.cap(),
            estimated: limit.estimated,
        }
    }
}

impl From<TokenCapReached> for TokenLimit {
    fn from(reached: TokenCapReached) -> Self {
        Self::new(reached.cap, reached.measure, reached.estimated)
    }
}
