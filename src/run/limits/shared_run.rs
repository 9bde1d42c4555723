//! The part of a run that one replica has, and what it knows of the other parts.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::timeout;

use super::{
    RunAdjustments,
    tokens::{Spending, TokenLedger, TokensSpent},
};
use crate::{
    lock::Lock,
    run::{LimitHit, TerminalReason},
};

/// How long a turn that was held waits for the store before it goes on without.
const WAIT: Duration = Duration::from_millis(50);

/// A future of what the store answers about turns.
pub(crate) type TurnsFuture = Pin<Box<dyn Future<Output = TurnsAnswered> + Send>>;

/// What the store answers about turns.
#[derive(Clone, Debug)]
pub(crate) enum TurnsAnswered {
    Granted(TurnsGranted),
    /// The run has ended at another replica.
    Ended(EndElsewhere),
    /// There was no answer.
    Lost,
}

/// What the store knows of a run that lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnsGranted {
    pub(crate) incarnation: u64,
    /// The turns that the part may take in all.
    pub(crate) granted: u32,
    /// The turns that the others were granted.
    pub(crate) elsewhere: u32,
    pub(crate) spent_elsewhere: TokensSpent,
    pub(crate) adjusted: RunAdjustments,
}

/// The end of a run at another replica.
#[derive(Clone, Debug)]
pub(crate) struct EndElsewhere {
    pub(crate) incarnation: u64,
    pub(crate) reason: TerminalReason,
    pub(crate) passed: Option<LimitHit>,
    /// Whether a cap on turns ended the run, so that the calls which are admitted here go on.
    pub(crate) at_cap: bool,
}

/// How a part reaches the store.
pub(crate) trait PartLink: fmt::Debug + Send + Sync {
    /// Asks for turns.
    fn ask(&self, needed: TurnNeeded) -> TurnsFuture;

    /// Tells that the part is gone, with the turns that it has taken, and whether it has completed.
    fn left(&self, turns: u32, completed: bool);

    /// Tells how many turns the part has use for, as a request has left that asked for one. The
    /// number is one of the part's questions.
    fn gave_back(&self, number: u64, turns: u32);

    /// Tells what was changed about the run here.
    fn adjusted(
        &self,
        incarnation: Option<u64>,
        adjusted: RunAdjustments,
        suspension: Option<bool>,
    );

    /// Tells what the part has spent in all.
    fn spent(&self, incarnation: Option<u64>, spent: TokensSpent);
}

/// This registry's part of a run that other replicas may have, too.
///
/// The part lives while the registry holds the run, or while a request asks for it.
#[derive(Debug)]
pub(crate) struct SharedRun {
    /// The number of the part among all parts of the run.
    pub(crate) part: u64,
    counts: Lock<SharedTurns>,
    /// What the other parts have spent, as far as the store has told.
    spent_elsewhere: Lock<Spending>,
    incarnations: Lock<Incarnations>,
    /// Whether this part of the run has completed.
    completed: AtomicBool,
    /// Whether the run's end came from elsewhere, so that it need not be told.
    ended_elsewhere: AtomicBool,
    /// The link to the store; `None` once the part has left.
    link: Lock<Option<Box<dyn PartLink>>>,
}

/// Which run of its id the part is one of: by the last answer of the store, and before that answer.
/// `None` until the store has said so.
///
/// A store that had lost the run may have opened it anew, for a replica that came back first.
#[derive(Clone, Copy, Debug, Default)]
struct Incarnations {
    last: Option<u64>,
    former: Option<u64>,
}

/// The turns of a run, here and elsewhere.
#[derive(Debug, Default)]
struct SharedTurns {
    /// The turns that this part has taken.
    taken: u32,
    /// The requests that have asked for a turn and have neither taken it nor gone.
    asking: u32,
    /// The turns that this part may take in all.
    granted: u32,
    /// The number of the last question, or of the last news about a turn that was given back.
    number: u64,
    /// The number of the last question.
    asked: u64,
    /// The number of the latest question that was answered.
    answered: u64,
    elsewhere: u32,
    /// The cap of the last turn that a request asked for, and what was added to it; `None` if none did.
    cap: Option<(u32, u32)>,
    /// The cap at which the run has closed elsewhere, and its reason, until no request asks.
    deferred: Option<(TerminalReason, LimitHit)>,
}

/// What a request asks the store about turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnNeeded {
    pub(crate) number: u64,
    pub(crate) taken: u32,
    pub(crate) want: u32,
    pub(crate) cap: u32,
    /// How much of the cap was added to it.
    pub(crate) added: u32,
}

/// What the store is told when turns are given back: how many the part keeps.
#[derive(Clone, Copy, Debug)]
pub(in crate::run) struct TurnsKept {
    number: u64,
    turns: u32,
}

impl SharedTurns {
    /// The turns that are taken, with those that requests have asked for.
    const fn wanted(&self) -> u32 {
        self.taken.saturating_add(self.asking)
    }

    /// The next question about turns.
    const fn question(&mut self, (cap, added): (u32, u32)) -> TurnNeeded {
        self.number += 1;
        self.asked = self.number;
        TurnNeeded {
            number: self.number,
            taken: self.taken,
            want: self.wanted(),
            cap,
            added,
        }
    }

    /// Gives back what was granted beyond the turns that are wanted.
    fn give_back(&mut self) -> TurnsKept {
        let turns = self.wanted();
        self.granted = self.granted.min(turns);
        self.number += 1;
        TurnsKept {
            number: self.number,
            turns,
        }
    }
}

impl SharedRun {
    pub(crate) fn new(part: u64, link: Box<dyn PartLink>) -> Self {
        Self {
            part,
            counts: Lock::default(),
            spent_elsewhere: Lock::default(),
            incarnations: Lock::default(),
            completed: AtomicBool::new(false),
            ended_elsewhere: AtomicBool::new(false),
            link: Lock::new(Some(link)),
        }
    }

    /// Begins a turn under `cap`, of which so much was `added`: what the request asks the store, and the
    /// mark that the turn is under way.
    pub(crate) fn begin_turn(self: &Arc<Self>, cap: u32, added: u32) -> (TurnNeeded, TurnUnderWay) {
        let mut counts = self.counts.lock();
        counts.asking += 1;
        counts.cap = Some((cap, added));
        let needed = counts.question((cap, added));
        drop(counts);
        (needed, TurnUnderWay(Some(Arc::clone(self))))
    }

    /// Asks for a turn as [`begin_turn`](Self::begin_turn) does, but by itself: for a turn that was held.
    pub(in crate::run) fn ask_for_turn(self: &Arc<Self>, cap: u32, added: u32) -> TurnQuestion {
        let (needed, turn) = self.begin_turn(cap, added);
        let answer = self.link.lock().as_ref().map(|link| link.ask(needed));
        let part = Arc::clone(self);
        let learns = async move {
            let answered = async {
                match answer {
                    Some(answer) => answer.await,
                    None => TurnsAnswered::Lost,
                }
            };
            match timeout(WAIT, answered).await {
                Ok(TurnsAnswered::Granted(run)) => {
                    part.learn(run.incarnation);
                    part.learn_turns(needed.number, run.granted, run.elsewhere);
                    part.learn_spent(run.spent_elsewhere);
                    Ok(run.adjusted)
                }
                Ok(TurnsAnswered::Ended(end)) => Err(end),
                Ok(TurnsAnswered::Lost) | Err(_) => {
                    part.grant_alone(needed.want, needed.cap);
                    Ok(RunAdjustments::default())
                }
            }
        };
        TurnQuestion {
            turn,
            learns: Lock::new(Box::pin(learns)),
        }
    }

    /// What the part asks a store that was away, which does not know of the turns that were taken
    /// meanwhile; `None` if no turn came under a cap.
    pub(crate) fn turns_anew(&self) -> Option<TurnNeeded> {
        let mut counts = self.counts.lock();
        let cap = counts.cap?;
        Some(counts.question(cap))
    }

    /// Records which run the store knows.
    pub(crate) fn learn(&self, incarnation: u64) {
        let mut known = self.incarnations.lock();
        if known.last != Some(incarnation) {
            known.former = known.last.replace(incarnation);
        }
    }

    /// Records what the store answered to the question of this number.
    pub(crate) fn learn_turns(&self, number: u64, granted: u32, elsewhere: u32) {
        let mut counts = self.counts.lock();
        // A later answer knows more than an earlier one that comes after it.
        if number > counts.answered {
            counts.answered = number;
            counts.granted = granted;
            counts.elsewhere = elsewhere;
        }
    }

    /// Grants turns without the store, which does not answer: by the last that it said of the
    /// others.
    pub(crate) fn grant_alone(&self, want: u32, cap: u32) {
        let mut counts = self.counts.lock();
        let left = cap.saturating_sub(counts.elsewhere);
        counts.granted = counts.granted.max(want.min(left));
    }

    /// The turns that this part may take under `cap`: what the others had left when the store was asked
    /// last. A request that `asked` has those that were granted, too.
    ///
    /// A request whose answer was late may have taken the turn that was granted to another one. That
    /// one then takes what is left, instead of a refusal that would close the run before its cap.
    pub(in crate::run) fn most(&self, cap: u32, asked: bool) -> u32 {
        let counts = self.counts.lock();
        let left = cap.saturating_sub(counts.elsewhere);
        let most = if asked {
            counts.granted.max(left)
        } else {
            left
        };
        most.min(cap)
    }

    /// Records the turns that were taken here. `asked` is the turn that was under way.
    pub(in crate::run) fn record_taken(&self, taken: u32, asked: Option<TurnUnderWay>) {
        let mut counts = self.counts.lock();
        counts.taken = taken;
        let ended = asked.and_then(|mut asked| asked.0.take());
        counts.asking -= u32::from(ended.is_some());
        drop(counts);
    }

    /// A turn that was taken here is given back: of those taken, so many are left. The result is for
    /// [`tell_given_back`](Self::tell_given_back).
    pub(in crate::run) fn return_taken(&self, taken: u32) -> TurnsKept {
        let mut counts = self.counts.lock();
        counts.taken = taken;
        counts.give_back()
    }

    /// Defers the closing of the part at a cap that was reached elsewhere, if a request asks for a turn:
    /// it may have been granted one, and its answer is on the way. Returns whether one does.
    pub(crate) fn defer_closing(&self, reason: &TerminalReason, passed: LimitHit) -> bool {
        let mut counts = self.counts.lock();
        let asks = counts.asking > 0;
        if asks {
            counts
                .deferred
                .get_or_insert_with(|| (reason.clone(), passed));
        }
        asks
    }

    /// The closing that was deferred, once no request asks any more.
    pub(crate) fn take_deferred_closing(&self) -> Option<(TerminalReason, LimitHit)> {
        let mut counts = self.counts.lock();
        let is_due = counts.asking == 0;
        is_due.then(|| counts.deferred.take()).flatten()
    }

    pub(crate) fn set_completed(&self) {
        self.completed.store(true, Ordering::Release);
    }

    /// Tells the store that the part is gone, unless it was told before.
    pub(crate) fn leave(&self) {
        let Some(link) = self.link.lock().take() else {
            return;
        };
        let counts = self.counts.lock();
        // What requests under way may still take stays counted, and what nobody took does not.
        let may_take = counts.granted.min(counts.wanted());
        let turns = may_take.max(counts.taken);
        drop(counts);
        link.left(turns, self.completed.load(Ordering::Acquire));
    }

    /// A request leaves that has asked for a turn, and has not taken it. What it was granted, or is
    /// about to be, goes back to all.
    fn give_back_turn(&self) {
        let mut counts = self.counts.lock();
        counts.asking -= 1;
        if counts.asked == counts.answered && counts.granted <= counts.wanted() {
            return;
        }
        let news = counts.give_back();
        drop(counts);
        self.tell_given_back(news);
    }

    /// Tells the store of turns that were given back. The caller holds no lock of the run's counts: what
    /// was changed about the run is read from them under the lock of the link.
    pub(in crate::run) fn tell_given_back(&self, TurnsKept { number, turns }: TurnsKept) {
        if let Some(link) = &*self.link.lock() {
            link.gave_back(number, turns);
        }
    }

    /// Tells the store what this part has spent, unless the part has left.
    pub(in crate::run) fn tell_spent(&self, ledger: &TokenLedger) {
        // The count is read under the lock, so that the last one told is the newest.
        if let Some(link) = &*self.link.lock() {
            link.spent(self.incarnation(), ledger.spent().into());
        }
    }

    /// Tells the store what was changed about the run here, unless the part has left.
    pub(in crate::run) fn tell_adjusted(
        &self,
        read: impl FnOnce() -> (RunAdjustments, Option<bool>),
    ) {
        // What is told last must be the newest, so it is read under the lock.
        if let Some(link) = &*self.link.lock() {
            let (adjusted, suspension) = read();
            link.adjusted(self.incarnation(), adjusted, suspension);
        }
    }

    /// Records what the other parts have spent.
    pub(crate) fn learn_spent(&self, elsewhere: TokensSpent) {
        *self.spent_elsewhere.lock() = elsewhere.into();
    }

    pub(crate) fn spent_elsewhere(&self) -> Spending {
        *self.spent_elsewhere.lock()
    }

    pub(crate) fn turns_elsewhere(&self) -> u32 {
        self.counts.lock().elsewhere
    }

    /// Whether the part may be one of this incarnation: it was, or does not know of another.
    pub(crate) fn is_of(&self, incarnation: u64) -> bool {
        let Incarnations { last, former } = *self.incarnations.lock();
        last.is_none_or(|ours| ours == incarnation) || former == Some(incarnation)
    }

    pub(crate) fn incarnation(&self) -> Option<u64> {
        self.incarnations.lock().last
    }

    pub(crate) fn set_ended_elsewhere(&self) {
        self.ended_elsewhere.store(true, Ordering::Release);
    }

    pub(crate) fn has_ended_elsewhere(&self) -> bool {
        self.ended_elsewhere.load(Ordering::Acquire)
    }
}

impl Drop for SharedRun {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The mark of a request that has asked for a turn of its run, and has not taken it yet.
#[derive(Debug)]
pub(crate) struct TurnUnderWay(Option<Arc<SharedRun>>);

impl TurnUnderWay {
    pub(in crate::run) fn is_of(&self, run: &Arc<SharedRun>) -> bool {
        self.0.as_ref().is_some_and(|own| Arc::ptr_eq(own, run))
    }
}

impl Drop for TurnUnderWay {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run.give_back_turn();
        }
    }
}

/// A question about a turn that was held, and the turn.
pub(crate) struct TurnQuestion {
    turn: TurnUnderWay,
    learns: Lock<LearnsTurns>,
}

/// A future that resolves with what was changed about the run elsewhere; an error is the run's end there.
type LearnsTurns = Pin<Box<dyn Future<Output = Result<RunAdjustments, EndElsewhere>> + Send>>;

impl TurnQuestion {
    /// Waits until the part has learned the answer, or knows that there is none. Resolves with what was
    /// changed about the run elsewhere.
    ///
    /// # Errors
    ///
    /// The run has ended elsewhere.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<RunAdjustments, EndElsewhere>> {
        self.learns.get_mut().as_mut().poll(cx)
    }

    pub(crate) fn into_turn(self) -> TurnUnderWay {
        self.turn
    }
}

impl fmt::Debug for TurnQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnQuestion")
            .field("turn", &self.turn)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;
    use crate::run::{Run, RunExtension};

    #[derive(Debug)]
    struct Silent;

    impl PartLink for Silent {
        fn ask(&self, _: TurnNeeded) -> TurnsFuture {
            Box::pin(async { TurnsAnswered::Lost })
        }

        fn left(&self, _: u32, _: bool) {}
        fn gave_back(&self, _: u64, _: u32) {}
        fn spent(&self, _: Option<u64>, _: TokensSpent) {}
        fn adjusted(&self, _: Option<u64>, _: RunAdjustments, _: Option<bool>) {}
    }

    #[test]
    fn a_turn_that_was_taken_without_an_answer_is_not_another_requests() {
        let part = Arc::new(SharedRun::new(1, Box::new(Silent)));
        let [(first, one), (second, two)] = [(); 2].map(|()| part.begin_turn(3, 0));
        // The answer to the second request is late, and it goes on alone.
        part.grant_alone(second.want, 3);
        part.record_taken(1, Some(two));
        part.learn_turns(first.number, 1, 0);
        assert!(part.most(3, true) > 1, "of three turns one is taken");
        part.record_taken(2, Some(one));
    }
    /// What is told of an extension is read from the counts, of which a turn is given back meanwhile.
    #[test]
    fn an_operator_and_a_turn_that_is_given_back_do_not_wait_for_each_other() {
        let run = Run::open();
        let part = Arc::new(SharedRun::new(1, Box::new(Silent)));
        run.node().run_state().rare().share(&part);
        let works: [fn(&Run); 2] = [
            |run| run.extend(RunExtension::new().turns(1)).unwrap(),
            |run| run.give_turn_back(1),
        ];
        let (done, over) = mpsc::channel();
        for work in works {
            let (run, done) = (run.clone(), done.clone());
            thread::spawn(move || {
                for _ in 0..50_000 {
                    work(&run);
                }
                done.send(()).unwrap();
            });
        }
        for _ in works {
            over.recv_timeout(Duration::from_secs(30))
                .expect("both go on");
        }
    }
}
