//! A store for the registries of one process.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{
    AbortTarget, Heard, NewsSubject, OwnerElsewhere, OwnerQuestion, Reach, Recalled, RunEnd,
    RunKey, RunNews, RunQuestion, RunStore, StoreFuture, StoreLost, StoredCooldowns, StoredFreezes,
    memory_candidates::KeptCandidates, memory_owners::StoredOwners,
};
use crate::{
    lock::Lock,
    registry::RunRegistry,
    run::{RunAdjustments, RunId, Spending, TerminalReason, TokensSpent},
};

/// A store that the registries of one process share, for tests and for several stacks of one
/// program.
///
/// Each registry gets a [`replica`](Self::replica) of its own. Ended runs stay known for
/// [`RunRegistry::REMEMBERED`] after the last question about them, and runs that no registry holds any
/// more, other than by a completion, for [`RunRegistry::IDLE`].
#[derive(Clone, Default)]
pub struct InMemoryRunStore {
    shared: Arc<Lock<StoredRuns>>,
    passed: Arc<Notify>,
}

impl fmt::Debug for InMemoryRunStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.shared.lock().runs.len();
        f.debug_struct("InMemoryRunStore")
            .field("runs", &runs)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct StoredRuns {
    runs: HashMap<RunKey, StoredRun>,
    replicas: Vec<Arc<Inbox>>,
    /// How many replicas have passed each barrier.
    barriers: HashMap<Arc<str>, u32>,
    last_barrier: u64,
    incarnations: u64,
    owners: StoredOwners,
    /// The number of replicas so far.
    numbered: u64,
    /// The number of runs at which those that expired are removed.
    sweep_at: usize,
    candidates: KeptCandidates,
    freezes: StoredFreezes,
}

/// What the store knows of a run.
struct StoredRun {
    incarnation: u64,
    opened: Instant,
    asked: Instant,
    session: Option<Arc<str>>,
    parent: Option<RunId>,
    end: Option<RunEnd>,
    ended: Option<Instant>,
    adjusted: RunAdjustments,
    parts: HashMap<u64, Part>,
}

#[derive(Default)]
struct Part {
    turns: u32,
    /// The number of the latest question about turns.
    number: u64,
    spent: Spending,
    has_left: bool,
}

/// The news that a replica has yet to hear.
#[derive(Default)]
struct Inbox {
    /// The number of the replica.
    replica: u64,
    news: Lock<VecDeque<Heard>>,
    arrived: Notify,
}

impl Inbox {
    fn push(&self, heard: Heard) {
        self.news.lock().push_back(heard);
        self.arrived.notify_one();
    }
}

/// The store of one registry: see [`InMemoryRunStore::replica`].
pub struct InMemoryReplica {
    store: InMemoryRunStore,
    inbox: Arc<Inbox>,
    /// The news that wait for the store; `None` while it can be reached.
    waiting: Lock<Option<Vec<RunNews>>>,
    questions: AtomicUsize,
}

impl fmt::Debug for InMemoryReplica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryReplica")
            .field("is_cut", &self.waiting.lock().is_some())
            .finish_non_exhaustive()
    }
}

impl InMemoryRunStore {
    /// Makes a store without runs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the store of one more registry.
    #[must_use]
    pub fn replica(&self) -> Arc<InMemoryReplica> {
        let mut shared = self.shared.lock();
        shared.numbered += 1;
        let inbox = Arc::new(Inbox {
            replica: shared.numbered,
            ..Inbox::default()
        });
        shared.replicas.push(Arc::clone(&inbox));
        drop(shared);
        Arc::new(InMemoryReplica {
            store: self.clone(),
            inbox,
            waiting: Lock::default(),
            questions: AtomicUsize::new(0),
        })
    }
}

impl InMemoryReplica {
    /// Cuts the replica off: its questions fail, and news wait on both sides.
    pub fn cut(&self) {
        self.waiting.lock().get_or_insert_default();
        self.set_lost(true);
    }

    /// Ends a [`cut`](Self::cut): the replica first tells what has waited, then hears of a hole.
    pub fn mend(&self) {
        let Some(waiting) = self.waiting.lock().take() else {
            return;
        };
        self.set_lost(false);
        for news in waiting {
            self.store.shared.lock().take(&self.inbox, news);
        }
        self.inbox.news.lock().clear();
        self.inbox.push(Heard::Hole);
    }

    fn set_lost(&self, is_lost: bool) {
        let mut shared = self.store.shared.lock();
        shared.owners.set_lost(self.inbox.replica, is_lost);
    }

    /// The number of questions so far.
    #[must_use]
    pub fn questions(&self) -> usize {
        self.questions.load(Ordering::Relaxed)
    }
}

/// A barrier that somebody waits for.
struct Barrier<'a> {
    store: &'a InMemoryRunStore,
    name: Arc<str>,
}

impl Barrier<'_> {
    /// The number of replicas that have passed it.
    fn passed(&self) -> u32 {
        let shared = self.store.shared.lock();
        shared.barriers.get(&self.name).copied().unwrap_or(0)
    }
}

impl Drop for Barrier<'_> {
    fn drop(&mut self) {
        self.store.shared.lock().barriers.remove(&self.name);
    }
}

/// The replica is gone, and hears nothing more.
impl Drop for InMemoryReplica {
    fn drop(&mut self) {
        self.set_lost(true);
        let mut shared = self.store.shared.lock();
        shared.replicas.retain(|it| !Arc::ptr_eq(it, &self.inbox));
    }
}

impl RunStore for InMemoryReplica {
    fn ask(self: Arc<Self>, question: RunQuestion) -> StoreFuture<Result<Recalled, StoreLost>> {
        Box::pin(async move {
            self.questions.fetch_add(1, Ordering::Relaxed);
            if self.waiting.lock().is_some() {
                return Err(StoreLost);
            }
            Ok(self.store.shared.lock().answer(&self.inbox, question))
        })
    }

    fn ask_owner(
        self: Arc<Self>,
        question: OwnerQuestion,
    ) -> StoreFuture<Result<OwnerElsewhere, StoreLost>> {
        Box::pin(async move {
            self.questions.fetch_add(1, Ordering::Relaxed);
            if self.waiting.lock().is_some() {
                return Err(StoreLost);
            }
            let mut shared = self.store.shared.lock();
            Ok(shared.owners.answer(self.inbox.replica, &question))
        })
    }

    fn tell(&self, news: RunNews) {
        if let Some(waiting) = &mut *self.waiting.lock() {
            return waiting.push(news);
        }
        let is_passed = matches!(news, RunNews::CarriedOut { .. });
        self.store.shared.lock().take(&self.inbox, news);
        if is_passed {
            self.store.passed.notify_waiters();
        }
    }

    fn reach(
        self: Arc<Self>,
        _subject: NewsSubject,
        wait: Duration,
    ) -> StoreFuture<Result<Reach, StoreLost>> {
        Box::pin(async move {
            if self.waiting.lock().is_some() {
                return Err(StoreLost);
            }
            let (name, others) = self.store.shared.lock().put_barrier(&self.inbox);
            let barrier = Barrier {
                store: &self.store,
                name,
            };
            let all = async {
                loop {
                    let passes = self.store.passed.notified();
                    if barrier.passed() >= others {
                        return;
                    }
                    passes.await;
                }
            };
            let _all = timeout(wait, all).await;
            let passed = barrier.passed();
            Ok(Reach {
                replicas: 1 + passed,
                silent: others.saturating_sub(passed),
            })
        })
    }

    fn next(self: Arc<Self>) -> StoreFuture<Heard> {
        Box::pin(async move {
            loop {
                let is_cut = self.waiting.lock().is_some();
                let heard = match is_cut {
                    true => None,
                    false => self.inbox.news.lock().pop_front(),
                };
                if let Some(heard) = heard {
                    return heard;
                }
                self.inbox.arrived.notified().await;
            }
        })
    }

    fn cooldowns(self: Arc<Self>) -> StoreFuture<Result<StoredCooldowns, StoreLost>> {
        Box::pin(async move {
            if self.waiting.lock().is_some() {
                return Err(StoreLost);
            }
            Ok(self.store.shared.lock().candidates.list())
        })
    }

    fn frozen(self: Arc<Self>) -> StoreFuture<Result<StoredFreezes, StoreLost>> {
        Box::pin(async move {
            if self.waiting.lock().is_some() {
                return Err(StoreLost);
            }
            Ok(self.store.shared.lock().freezes.clone())
        })
    }
}

impl StoredRun {
    /// The parts but this one.
    fn others(&self, part: u64) -> impl Iterator<Item = &Part> {
        let others = self.parts.iter().filter(move |(at, _)| **at != part);
        others.map(|(_, it)| it)
    }

    fn spent_elsewhere(&self, part: u64) -> TokensSpent {
        let spent = self.others(part).map(|it| it.spent);
        spent.fold(Spending::default(), Spending::plus).into()
    }
}

impl StoredRuns {
    fn answer(&mut self, from: &Inbox, question: RunQuestion) -> Recalled {
        let now = Instant::now();
        self.sweep(now);
        let candidates = self.candidates.of_session(&question);
        let RunQuestion {
            run,
            part,
            session,
            parent,
            turns,
            is_sticky: _,
            owner,
        } = question;
        let owner = owner.map(|owner| self.owners.answer(from.replica, &owner));
        let incarnations = &mut self.incarnations;
        let known = self.runs.entry(run.clone()).or_insert_with(|| {
            *incarnations += 1;
            StoredRun {
                incarnation: *incarnations,
                opened: now,
                asked: now,
                session,
                parent,
                end: None,
                ended: None,
                adjusted: RunAdjustments::default(),
                parts: HashMap::new(),
            }
        });
        known.asked = now;
        let mut recalled = Recalled {
            incarnation: known.incarnation,
            age: known
                .ended
                .unwrap_or(now)
                .saturating_duration_since(known.opened),
            end: known.end.clone(),
            adjusted: known.adjusted,
            candidates,
            owner,
            ..Recalled::default()
        };
        if known.end.is_none() {
            known.parts.entry(part).or_default().has_left = false;
            let others = known.others(part).map(|it| it.turns);
            recalled.turns_elsewhere = others.fold(0, u32::saturating_add);
            recalled.spent_elsewhere = known.spent_elsewhere(part);
            recalled.is_held_elsewhere = known.others(part).any(|it| !it.has_left);
            let ours = known.parts.entry(part).or_default();
            if let Some(turns) = turns {
                let more = known.adjusted.turns.saturating_sub(turns.added);
                let cap = turns.cap.saturating_add(more);
                let left = cap.saturating_sub(recalled.turns_elsewhere);
                if turns.number > ours.number {
                    ours.number = turns.number;
                    ours.turns = turns.want.min(left).max(turns.taken);
                }
            }
            recalled.granted = ours.turns;
        }
        let parent = known.parent.clone();
        let parent = parent.map(|id| RunKey {
            owner: run.owner,
            id,
        });
        let parent = parent.and_then(|parent| self.runs.get(&parent));
        recalled.parent_end = parent.and_then(|parent| parent.end.clone());
        recalled
    }

    fn take(&mut self, from: &Arc<Inbox>, news: RunNews) {
        let heard = match news {
            RunNews::Ended {
                run,
                incarnation,
                if_known,
                end,
            } => {
                if !self.runs.contains_key(&run) && !if_known {
                    self.make_known(run.clone(), incarnation);
                }
                let Some(known) = self.runs.get_mut(&run) else {
                    if incarnation.is_none() {
                        let incarnation = 0;
                        self.send(
                            from,
                            &Heard::Ended {
                                run,
                                incarnation,
                                end,
                            },
                        );
                    }
                    return;
                };
                let is_other = incarnation.is_some_and(|ours| ours != known.incarnation);
                if is_other || known.end.is_some() {
                    return;
                }
                known.end = Some(end.clone());
                known.asked = Instant::now();
                known.ended = Some(known.asked);
                let incarnation = known.incarnation;
                Heard::Ended {
                    run,
                    incarnation,
                    end,
                }
            }
            RunNews::SessionEnded {
                owner,
                session,
                spared,
            } => {
                self.end_all(|run, known| {
                    let is_ours = run.owner == owner && known.session.as_ref() == Some(&session);
                    is_ours && Some(&run.id) != spared.as_ref()
                });
                Heard::SessionEnded {
                    owner,
                    session,
                    spared,
                }
            }
            RunNews::Spent {
                run,
                part,
                incarnation,
                spent,
            } => {
                let Some(known) = self.runs.get_mut(&run) else {
                    return;
                };
                let is_other = incarnation.is_some_and(|ours| ours != known.incarnation);
                if is_other || known.end.is_some() {
                    return;
                }
                known.parts.entry(part).or_default().spent = spent.into();
                return from.push(Heard::Spent {
                    incarnation: known.incarnation,
                    elsewhere: known.spent_elsewhere(part),
                    run,
                });
            }
            RunNews::Adjusted {
                run,
                incarnation,
                adjusted,
                suspension,
            } => {
                if let Some(known) = self.runs.get_mut(&run) {
                    if incarnation.is_none_or(|ours| ours == known.incarnation) {
                        known.adjusted = known.adjusted.merged(adjusted, suspension);
                    }
                }
                return;
            }
            RunNews::Counted(counts) => {
                return from.push(Heard::OwnerCounted {
                    owner: counts.owner,
                    number: counts.number,
                    elsewhere: self.owners.tell(from.replica, &counts),
                });
            }
            RunNews::GaveBack {
                run,
                part,
                number,
                turns,
            } => {
                let known = self.runs.get_mut(&run);
                let part = known.and_then(|known| known.parts.get_mut(&part));
                if let Some(part) = part.filter(|part| number > part.number) {
                    part.number = number;
                    part.turns = part.turns.min(turns);
                }
                return;
            }
            RunNews::Left {
                run,
                part,
                turns,
                completed,
            } => {
                let Some(known) = self.runs.get_mut(&run) else {
                    return;
                };
                let Some(part) = known.parts.get_mut(&part) else {
                    return;
                };
                if std::mem::replace(&mut part.has_left, true) {
                    return;
                }
                part.turns = turns;
                let is_over = completed && known.end.is_none();
                if is_over && known.parts.values().all(|part| part.has_left) {
                    self.runs.remove(&run);
                }
                return;
            }
            RunNews::CarriedOut { barrier } => {
                // Of one that nobody waits for any more nothing is kept.
                if let Some(passed) = self.barriers.get_mut(&barrier) {
                    *passed += 1;
                }
                return;
            }
            RunNews::Reopened { run } => {
                self.runs.remove(&run);
                self.make_known(run, None);
                return;
            }
            RunNews::AbortedForAll(target) => {
                self.end_all(|run, known| match &target {
                    AbortTarget::Run(id) => run.id == *id,
                    AbortTarget::Session(session) => known.session.as_ref() == Some(session),
                });
                Heard::AbortedForAll(target)
            }
            RunNews::CooldownBegan(cooldown) => {
                let heard = self.candidates.begin(cooldown);
                return self.tell_all(heard);
            }
            RunNews::CooldownEnded { key, window } => {
                let heard = self.candidates.end(key, window);
                return self.tell_all(heard);
            }
            RunNews::CooldownsCleared {
                candidate,
                keys,
                at,
            } => {
                let ended = self.candidates.clear(&candidate, &keys, at);
                return self.tell_all(ended);
            }
            RunNews::Frozen { whose, is_frozen } => {
                let kept = &mut self.freezes;
                let epoch = *kept.epoch.get_or_insert_with(|| fastrand::u64(..));
                kept.frozen.set(whose, is_frozen);
                let heard = Heard::Frozen {
                    whose,
                    is_frozen,
                    epoch,
                };
                return self.tell_all([heard]);
            }
            RunNews::SessionServed {
                owner,
                session,
                served,
            } => self.candidates.serve(owner, session, served),
        };
        self.send(from, &heard);
    }

    fn send(&self, from: &Arc<Inbox>, heard: &Heard) {
        let others = self.replicas.iter().filter(|it| !Arc::ptr_eq(it, from));
        others.for_each(|inbox| inbox.push(heard.clone()));
    }

    /// Puts a barrier behind all news of the other replicas. Returns it, and their number.
    fn put_barrier(&mut self, from: &Arc<Inbox>) -> (Arc<str>, u32) {
        self.last_barrier += 1;
        let barrier: Arc<str> = self.last_barrier.to_string().into();
        self.barriers.insert(Arc::clone(&barrier), 0);
        // The inbox of a replica that was dropped is held here alone.
        self.replicas.retain(|inbox| Arc::strong_count(inbox) > 1);
        let mut others = 0;
        for inbox in self.replicas.iter().filter(|it| !Arc::ptr_eq(it, from)) {
            others += 1;
            inbox.push(Heard::Barrier {
                barrier: Arc::clone(&barrier),
            });
        }
        (barrier, others)
    }

    /// Lets all replicas hear, also the one that told.
    fn tell_all(&self, heard: impl IntoIterator<Item = Heard>) {
        for heard in heard {
            let replicas = self.replicas.iter();
            replicas.for_each(|inbox| inbox.push(heard.clone()));
        }
    }

    /// Stores the abort of these runs, also of those that no replica holds now.
    fn end_all(&mut self, is_meant: impl Fn(&RunKey, &StoredRun) -> bool) {
        let ended = RunEnd::new(TerminalReason::Aborted);
        for (run, known) in &mut self.runs {
            if is_meant(run, known) {
                known.end.get_or_insert_with(|| ended.clone());
                known.ended.get_or_insert_with(Instant::now);
            }
        }
    }

    fn make_known(&mut self, run: RunKey, incarnation: Option<u64>) {
        self.incarnations += 1;
        let now = Instant::now();
        let known = StoredRun {
            incarnation: incarnation.unwrap_or(self.incarnations),
            opened: now,
            asked: now,
            session: None,
            parent: None,
            end: None,
            ended: None,
            adjusted: RunAdjustments::default(),
            parts: HashMap::new(),
        };
        self.runs.insert(run, known);
    }

    /// Forgets ended runs that nobody has asked about for a while, and those that no replica has. The
    /// work is spread over the questions between two sweeps.
    fn sweep(&mut self, now: Instant) {
        if self.runs.len() < self.sweep_at.max(64) {
            return;
        }
        self.runs.retain(|_, known| {
            let until = match known.end {
                Some(_) => RunRegistry::REMEMBERED,
                None => RunRegistry::IDLE,
            };
            let is_held = known.end.is_none() && known.parts.values().any(|part| !part.has_left);
            is_held || now < known.asked + until
        });
        self.sweep_at = 2 * self.runs.len();
    }
}
