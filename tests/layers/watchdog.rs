//! Runs that look stuck, and who is asked about them.

mod on_demand;

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, advance, sleep, timeout},
};
use tower::{Service, service_fn};
use tower_agent::{
    BoxError, Owner, Run, RunEvent, RunNotice, RunRegistry, RunSnapshot, TerminalReason, Watchdog,
    run::{Answer, RunEvents, Status, Verdict},
    watchdog::Question,
};

use crate::support::{LogCapture, secs};

/// What a stage does when it is asked.
#[derive(Clone)]
enum Reply<A> {
    After(u64, A),
    Error(&'static str),
    Never,
}

use Reply::{After, Error, Never};

/// A stage that plays its replies, the last one over and over.
struct Asked<Q, A> {
    replies: Arc<Mutex<VecDeque<Reply<A>>>>,
    seen: Arc<Mutex<Vec<Q>>>,
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl<Q, A> Clone for Asked<Q, A> {
    fn clone(&self) -> Self {
        Self {
            replies: Arc::clone(&self.replies),
            seen: Arc::clone(&self.seen),
            under_way: Arc::clone(&self.under_way),
            most: Arc::clone(&self.most),
        }
    }
}

impl<Q, A> Asked<Q, A> {
    fn new<const N: usize>(replies: [Reply<A>; N]) -> Self {
        Self {
            replies: Arc::new(Mutex::new(replies.into())),
            seen: Arc::default(),
            under_way: Arc::default(),
            most: Arc::default(),
        }
    }

    fn times(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }
}

struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<Q, A: Clone + Send + 'static> Service<Q> for Asked<Q, A> {
    type Response = A;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<A, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, question: Q) -> Self::Future {
        self.seen.lock().unwrap().push(question);
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let guard = UnderWay(Arc::clone(&self.under_way));
        let mut replies = self.replies.lock().unwrap();
        let reply = match replies.len() {
            1 => replies[0].clone(),
            _ => replies.pop_front().unwrap(),
        };
        drop(replies);
        Box::pin(async move {
            let _guard = guard;
            match reply {
                After(seconds, answer) => {
                    sleep(secs(seconds)).await;
                    Ok(answer)
                }
                Error(message) => Err(message.into()),
                Never => std::future::pending().await,
            }
        })
    }
}

type Checker = Asked<RunSnapshot, Verdict>;
type Person = Asked<Question, Answer>;

fn verdict(seconds: u64, status: Status) -> Reply<Verdict> {
    After(seconds, Verdict::new(status, "so it seems"))
}

/// So many rounds without a change.
fn rounds(run: &Run, count: u64) {
    for round in 0..count {
        run.heartbeat_at(round, "polling");
    }
}

/// Lets the watchdog do what it can at this instant.
async fn settle() {
    for _ in 0..20 {
        yield_now().await;
    }
}

async fn pass(seconds: u64) {
    settle().await;
    sleep(secs(seconds)).await;
    settle().await;
}

fn watch(watchdog: Watchdog) -> JoinHandle<()> {
    tokio::spawn(watchdog.run())
}

/// What was told but for the end, after which nothing is.
async fn told(run: &Run, mut events: RunEvents) -> Vec<RunNotice> {
    run.end(TerminalReason::Aborted);
    let mut told = Vec::new();
    loop {
        match timeout(secs(1), events.next()).await.unwrap().unwrap() {
            RunEvent::Notice { notice, .. } => told.push(notice),
            RunEvent::Ended { .. } => break,
            lost => panic!("{lost:?}"),
        }
    }
    assert!(timeout(secs(1), events.next()).await.unwrap().is_none());
    told
}

fn checked(status: Status) -> RunNotice {
    RunNotice::Checked {
        status,
        reason: "so it seems".into(),
    }
}

const LOOKS_STUCK: RunNotice = RunNotice::LooksStuck { repeats: 5 };

/// covers: E1
#[tokio::test(start_paused = true)]
async fn a_run_that_works_is_left_alone_and_nobody_waits_for_the_check() {
    let run = Run::open();
    let events = run.subscribe();
    let checker = Checker::new([verdict(4, Status::Working)]);
    let person = Person::new([Never]);
    let watchdog = Watchdog::of_run(&run).checker(checker.clone());
    let watching = watch(watchdog.question(person.clone()).ends(true));
    let start = Instant::now();

    rounds(&run, 4);
    pass(0).await;
    assert_eq!(checker.times(), 0);
    rounds(&run, 1);
    assert_eq!(start.elapsed(), secs(0));
    pass(1).await;
    assert_eq!(checker.under_way(), 1);
    assert!(checker.seen.lock().unwrap()[0].stuck);
    pass(4).await;

    assert_eq!(run.terminal_reason(), None);
    assert_eq!((checker.times(), person.times()), (1, 0));
    assert_eq!(
        told(&run, events).await,
        [LOOKS_STUCK, checked(Status::Working)]
    );
    watching.await.unwrap();
}

/// covers: E1
#[tokio::test(start_paused = true)]
async fn it_is_asked_about_again_after_as_many_repeats_and_one_check_at_a_time() {
    let run = Run::open();
    let checker = Checker::new([verdict(3, Status::Working)]);
    watch(Watchdog::of_run(&run).checker(checker.clone()));

    rounds(&run, 12);
    pass(1).await;
    assert_eq!(checker.times(), 1, "at five; at ten it is being checked");
    pass(3).await;
    rounds(&run, 2);
    pass(1).await;
    assert_eq!(checker.times(), 1, "fourteen");
    rounds(&run, 1);
    pass(1).await;
    assert_eq!(checker.times(), 2);
    run.state_change("a file was written");
    rounds(&run, 5);
    pass(5).await;
    rounds(&run, 5);
    pass(1).await;
    assert_eq!(checker.times(), 3, "a new row");
    assert_eq!(checker.most.load(Ordering::SeqCst), 1);
}

/// covers: E1
#[tokio::test(start_paused = true)]
async fn a_checker_that_takes_too_long_or_fails_knows_nothing() {
    let cases = [
        (Never, "no answer within 5s", 5),
        (verdict(6, Status::Stuck), "no answer within 5s", 5),
        (Error("no credit"), "no credit", 0),
    ];
    for (reply, words, seconds) in cases {
        let run = Run::open();
        let events = run.subscribe();
        let checker = Checker::new([reply]);
        watch(Watchdog::of_run(&run).checker(checker.clone()).ends(true));
        rounds(&run, 5);

        if seconds > 0 {
            pass(seconds - 1).await;
            assert_eq!(checker.under_way(), 1);
        }
        pass(1).await;

        assert_eq!(checker.under_way(), 0);
        assert_eq!(
            run.terminal_reason(),
            None,
            "what nobody knows ends nothing"
        );
        let unknown = RunNotice::Checked {
            status: Status::Unknown,
            reason: words.into(),
        };
        assert_eq!(told(&run, events).await, [LOOKS_STUCK, unknown]);
    }
}

/// covers: E1
#[tokio::test(start_paused = true)]
async fn the_time_for_a_check_is_a_setting_and_counts_waiting_for_readiness() {
    #[derive(Clone)]
    struct Unready;
    impl Service<RunSnapshot> for Unready {
        type Response = Verdict;
        type Error = Infallible;
        type Future = std::future::Pending<Result<Verdict, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Pending
        }

        fn call(&mut self, _: RunSnapshot) -> Self::Future {
            panic!("it is not ready")
        }
    }
    let run = Run::open();
    let mut events = run.subscribe();
    let watchdog = Watchdog::of_run(&run).checker(Unready);
    watch(watchdog.check_within(secs(2)));
    rounds(&run, 5);
    let start = Instant::now();

    events.next().await.unwrap();
    let event = events.next().await.unwrap();

    assert_eq!(start.elapsed(), secs(2));
    let RunEvent::Notice { notice, .. } = event else {
        panic!("{event:?}");
    };
    let words = "no answer within 2s".to_owned();
    let status = Status::Unknown;
    assert_eq!(
        notice,
        RunNotice::Checked {
            status,
            reason: words
        }
    );
}

/// covers: E2
#[tokio::test(start_paused = true)]
async fn a_verdict_ends_the_run_if_it_may() {
    for status in [Status::Stuck, Status::Looping] {
        for ends in [true, false] {
            let run = Run::open();
            let checker = Checker::new([verdict(2, status)]);
            let watchdog = Watchdog::of_run(&run).checker(checker);
            let watching = watch(watchdog.ends(ends));
            rounds(&run, 5);
            pass(3).await;

            let expected = ends.then_some(TerminalReason::Stuck);
            assert_eq!(run.terminal_reason(), expected);
            assert_eq!(watching.is_finished(), ends);
        }
    }
}

/// covers: E2
#[tokio::test(start_paused = true)]
async fn a_person_may_stop_the_run_or_let_it_go_on_after_any_time() {
    for answer in [Answer::Continue, Answer::Stop] {
        let run = Run::open();
        let events = run.subscribe();
        let person = Person::new([After(7200, answer)]);
        watch(Watchdog::of_run(&run).question(person.clone()));
        run.note_tool("search").await;
        rounds(&run, 5);
        pass(7000).await;
        assert_eq!(run.terminal_reason(), None);
        pass(200).await;

        let stops = answer == Answer::Stop;
        assert_eq!(
            run.terminal_reason(),
            stops.then_some(TerminalReason::Stuck)
        );
        let asked = person.seen.lock().unwrap()[0].clone();
        assert!(asked.snapshot.stuck);
        assert_eq!(
            asked.message,
            format!(
                "The run {} did the same thing 5 times in a row (last step: tool_complete \
                 (search)). Shall it continue?",
                run.id()
            )
        );
        let answered = RunNotice::Answered {
            answer: Some(answer),
        };
        assert_eq!(
            told(&run, events).await,
            [LOOKS_STUCK, RunNotice::Asked, answered]
        );
    }
}

/// A tool that finishes at once.
trait NoteTool {
    async fn note_tool(&self, name: &'static str);
}

impl NoteTool for Run {
    async fn note_tool(&self, name: &'static str) {
        self.tool(name).watch(async {}).await.unwrap();
    }
}

/// covers: E2
#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_answers_in_time_ends_nothing() {
    for reply in [Never, Error("nobody is there")] {
        let run = Run::open();
        let events = run.subscribe();
        let person = Person::new([reply]);
        let watchdog = Watchdog::of_run(&run).question(person.clone());
        watch(watchdog.answer_within(secs(60)));
        rounds(&run, 5);
        pass(60).await;

        assert_eq!(person.under_way(), 0);
        assert_eq!(run.terminal_reason(), None);
        let unanswered = RunNotice::Answered { answer: None };
        assert_eq!(
            told(&run, events).await,
            [LOOKS_STUCK, RunNotice::Asked, unanswered]
        );
    }
}

/// covers: E2
#[tokio::test(start_paused = true)]
async fn each_stage_leads_to_the_next_and_what_none_ends_meets_its_limit() {
    let run = Run::open();
    run.end_when_stuck(NonZeroU32::new(20).unwrap());
    let events = run.subscribe();
    let checker = Checker::new([
        verdict(1, Status::Working),
        verdict(1, Status::Unknown),
        verdict(1, Status::Looping),
    ]);
    let person = Person::new([After(30, Answer::Continue)]);
    let watchdog = Watchdog::of_run(&run).checker(checker.clone());
    let watching = watch(watchdog.question(person.clone()));

    for (checks, questions) in [(1, 0), (2, 1), (3, 2)] {
        assert_eq!(run.terminal_reason(), None);
        rounds(&run, 5);
        pass(60).await;
        assert_eq!((checker.times(), person.times()), (checks, questions));
    }
    rounds(&run, 4);
    assert_eq!(run.terminal_reason(), None);
    rounds(&run, 1);

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Stuck));
    watching.await.unwrap();
    let looks = |repeats| RunNotice::LooksStuck { repeats };
    let goes_on = || RunNotice::Answered {
        answer: Some(Answer::Continue),
    };
    assert_eq!(
        told(&run, events).await,
        [
            looks(5),
            checked(Status::Working),
            looks(10),
            checked(Status::Unknown),
            RunNotice::Asked,
            goes_on(),
            looks(15),
            checked(Status::Looping),
            RunNotice::Asked,
            goes_on(),
        ]
    );
}

/// covers: E2
#[tokio::test(start_paused = true)]
async fn what_is_asked_is_dropped_with_its_run_and_nothing_follows() {
    for question in [false, true] {
        let run = Run::open();
        let other = run.clone();
        let events = run.subscribe();
        let checker = Checker::new([verdict(4, Status::Unknown)]);
        let person = Person::new([Never]);
        let watchdog = Watchdog::of_run(&run).checker(checker.clone());
        let watching = watch(watchdog.question(person.clone()));
        rounds(&run, 5);
        pass(if question { 100 } else { 2 }).await;
        assert_eq!(checker.under_way() + person.under_way(), 1);

        other.end(TerminalReason::ClientDisconnect);
        settle().await;

        assert!(watching.is_finished());
        assert_eq!(checker.under_way() + person.under_way(), 0);
        pass(100).await;
        assert_eq!(person.times(), usize::from(question));
        let told = told(&run, events).await;
        let asked = told.contains(&RunNotice::Asked);
        assert_eq!(asked, question, "{told:?}");
    }
}

/// covers: E2
#[tokio::test(start_paused = true)]
async fn the_end_of_one_run_of_a_registry_drops_what_is_asked_about_it_and_nothing_else() {
    let registry = RunRegistry::new();
    let person = Person::new([Never]);
    let watching = watch(Watchdog::new(&registry).question(person.clone()));
    let runs = ["a", "b"].map(|id| registry.open(Owner::default(), id.parse().unwrap()));
    for run in &runs {
        rounds(run, 5);
    }
    pass(100).await;
    assert_eq!(person.under_way(), 2);

    runs[0].end(TerminalReason::Aborted);
    settle().await;

    assert_eq!(person.under_way(), 1);
    assert!(!watching.is_finished());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_about_a_run_that_ended_before_the_watchdog_looked() {
    let run = Run::open();
    let checker = Checker::new([verdict(0, Status::Working)]);
    let watchdog = Watchdog::of_run(&run).checker(checker.clone());
    rounds(&run, 5);
    run.end(TerminalReason::Aborted);

    watchdog.run().await;

    assert_eq!(checker.times(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_registrys_runs_are_watched_until_it_is_gone_and_kept_by_nobody() {
    let registry = RunRegistry::new();
    let checker = Checker::new([verdict(1, Status::Stuck)]);
    let watchdog = Watchdog::new(&registry).checker(checker.clone());
    let watching = watch(watchdog.ends(true));
    let runs: Vec<_> = ["a", "b", "c"]
        .map(|id| registry.open(Owner::default(), id.parse().unwrap()))
        .into();
    rounds(&runs[0], 5);
    rounds(&runs[2], 5);
    pass(2).await;

    let stuck = Some(TerminalReason::Stuck);
    let reasons: Vec<_> = runs.iter().map(Run::terminal_reason).collect();
    assert_eq!(reasons, [stuck.clone(), None, stuck]);
    assert_eq!(checker.times(), 2);

    assert!(!watching.is_finished());
    drop(registry);
    settle().await;
    assert!(watching.is_finished(), "the runs do not keep it");
}

/// covers: E1
#[tokio::test(start_paused = true)]
async fn checks_wait_for_their_turn_and_who_moved_on_is_not_checked() {
    let registry = RunRegistry::new();
    let checker = Checker::new([verdict(2, Status::Working)]);
    let watchdog = Watchdog::new(&registry).checker(checker.clone());
    watch(watchdog.checks(3));
    let open = |id: usize| registry.open(Owner::default(), format!("r{id}").parse().unwrap());
    let runs: Vec<_> = (0..10).map(open).collect();
    for run in &runs {
        rounds(run, 5);
    }
    pass(1).await;
    assert_eq!(checker.under_way(), 3);
    let waiting = |run: &&Run| {
        let seen = checker.seen.lock().unwrap();
        seen.iter().all(|seen| seen.run != run.id())
    };
    let last: Vec<_> = runs.iter().filter(waiting).cloned().collect();
    assert_eq!(last.len(), 7);
    last[5].state_change("it moved");
    last[6].end(TerminalReason::Aborted);

    pass(20).await;

    assert_eq!(checker.most.load(Ordering::SeqCst), 3);
    assert_eq!(checker.times(), 8);
}

#[tokio::test(start_paused = true)]
async fn who_was_too_slow_for_the_events_looks_at_all_runs() {
    let registry = RunRegistry::new();
    let checker = Checker::new([verdict(1, Status::Working)]);
    let watchdog = Watchdog::new(&registry).checker(checker.clone());
    let stuck = registry.open(Owner::default(), "stuck".parse().unwrap());
    rounds(&stuck, 5);
    let _others: Vec<_> = (0..RunRegistry::EVENTS)
        .map(|id| registry.open(Owner::default(), format!("r{id}").parse().unwrap()))
        .collect();

    watch(watchdog);
    pass(2).await;

    let seen = checker.seen.lock().unwrap();
    let seen: Vec<_> = seen.iter().map(|run| run.run.clone()).collect();
    assert_eq!(seen, [stuck.id()]);
}

/// covers: A12
#[tokio::test(start_paused = true)]
async fn in_shadow_mode_it_says_what_it_would_have_done() {
    for (ends, expected) in [
        (
            true,
            RunNotice::WouldHaveEnded {
                reason: TerminalReason::Stuck,
                limit: None,
            },
        ),
        (false, RunNotice::WouldHaveAsked),
    ] {
        let run = Run::open();
        let events = run.subscribe();
        let checker = Checker::new([verdict(1, Status::Stuck)]);
        let person = Person::new([After(0, Answer::Stop)]);
        let watchdog = Watchdog::of_run(&run).checker(checker).ends(ends);
        watch(watchdog.question(person.clone()).shadow());
        rounds(&run, 5);
        pass(10).await;

        assert_eq!(run.terminal_reason(), None);
        assert_eq!(person.times(), 0);
        let expected = [LOOKS_STUCK, checked(Status::Stuck), expected];
        assert_eq!(told(&run, events).await, expected);
    }
}

/// covers: A12
#[tokio::test(start_paused = true)]
async fn a_false_alarm_in_shadow_mode_is_told_when_the_run_completes() {
    let run = Run::open();
    let events = run.subscribe();
    let checker = Checker::new([verdict(1, Status::Stuck)]);
    let watchdog = Watchdog::of_run(&run).checker(checker).ends(true);
    watch(watchdog.shadow());
    advance(Duration::from_secs(9)).await;
    rounds(&run, 5);
    pass(31).await;
    run.end(TerminalReason::Completed);

    let told = told(&run, events).await;

    assert_eq!(
        told.last(),
        Some(&RunNotice::FalsePositive {
            reason: TerminalReason::Stuck,
            after: secs(10),
            took: secs(40),
        }),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watchdog_that_is_dropped_leaves_the_runs_alone() {
    let run = Run::open();
    let checker = Checker::new([Never]);
    let watching = watch(Watchdog::of_run(&run).checker(checker.clone()));
    rounds(&run, 5);
    pass(1).await;
    assert_eq!(checker.under_way(), 1);

    watching.abort();
    settle().await;

    assert_eq!(checker.under_way(), 0);
    assert_eq!(run.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_or_an_answer_is_nothing_to_a_run_that_has_moved_on() {
    let run = Run::open();
    let checker = Checker::new([verdict(4, Status::Stuck)]);
    watch(Watchdog::of_run(&run).checker(checker.clone()).ends(true));
    rounds(&run, 5);
    pass(1).await;
    run.state_change("a file was written");
    pass(10).await;
    assert_eq!((checker.times(), run.terminal_reason()), (1, None));

    let run = Run::open();
    let person = Person::new([After(4, Answer::Stop)]);
    watch(Watchdog::of_run(&run).question(person.clone()));
    rounds(&run, 5);
    pass(1).await;
    run.state_change("a file was written");
    pass(10).await;
    assert_eq!((person.times(), run.terminal_reason()), (1, None));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stuck_at_something_else_by_then_is_asked_about_anew() {
    let run = Run::open();
    let working = verdict(4, Status::Working);
    let checker = Checker::new([verdict(4, Status::Stuck), working]);
    watch(Watchdog::of_run(&run).checker(checker.clone()).ends(true));
    rounds(&run, 5);
    pass(1).await;
    run.state_change("a file was written");
    rounds(&run, 5);
    pass(10).await;
    assert_eq!((checker.times(), run.terminal_reason()), (2, None));

    let run = Run::open();
    let person = Person::new([After(4, Answer::Stop)]);
    watch(Watchdog::of_run(&run).question(person.clone()));
    rounds(&run, 5);
    pass(1).await;
    run.state_change("a file was written");
    rounds(&run, 5);
    pass(4).await;
    assert_eq!((person.times(), run.terminal_reason()), (2, None));
    pass(4).await;
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Stuck));
}

/// A stage that panics the first time: at once, or once it is polled.
#[derive(Clone)]
struct Panics<A> {
    late: bool,
    then: Arc<Mutex<Option<A>>>,
    asked: Arc<AtomicUsize>,
}

impl<A> Panics<A> {
    fn new(late: bool, then: A) -> Self {
        Self {
            late,
            then: Arc::new(Mutex::new(Some(then))),
            asked: Arc::default(),
        }
    }
}

impl<Q, A: Clone + Send + 'static> Service<Q> for Panics<A> {
    type Response = A;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<A, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Q) -> Self::Future {
        let first = self.asked.fetch_add(1, Ordering::SeqCst) == 0;
        assert!(!first || self.late, "a stage that panics");
        let then = self.then.lock().unwrap().clone();
        Box::pin(async move {
            sleep(secs(1)).await;
            assert!(!first, "a stage that panics late");
            Ok(then.unwrap())
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_stage_that_panics_is_one_that_failed_and_other_runs_are_watched_on() {
    for late in [false, true] {
        let registry = RunRegistry::new();
        let stuck = Verdict::new(Status::Stuck, "so it seems");
        let checker = Panics::new(late, stuck);
        let person = Panics::new(late, Answer::Stop);
        let watchdog = Watchdog::new(&registry).checker(checker.clone()).ends(true);
        let watching = watch(watchdog.question(person.clone()));

        let first = registry.open(Owner::default(), "first".parse().unwrap());
        let events = first.subscribe();
        rounds(&first, 5);
        pass(5).await;
        assert_eq!(first.terminal_reason(), None);
        let second = registry.open(Owner::default(), "second".parse().unwrap());
        rounds(&second, 5);
        pass(5).await;

        assert_eq!(second.terminal_reason(), Some(TerminalReason::Stuck));
        assert_eq!(person.asked.load(Ordering::SeqCst), 1);
        let unknown = RunNotice::Checked {
            status: Status::Unknown,
            reason: "it panicked".into(),
        };
        let none = RunNotice::Answered { answer: None };
        assert_eq!(
            told(&first, events).await,
            [LOOKS_STUCK, unknown, RunNotice::Asked, none]
        );
        assert!(!watching.is_finished());
    }
}

/// A person who is away must not fill the gateway with open requests.
#[tokio::test(start_paused = true)]
async fn at_most_64_questions_are_open_and_the_log_says_so_once_a_minute() {
    let registry = RunRegistry::new();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let person = service_fn({
        let asked = Arc::clone(&asked);
        move |question: Question| {
            asked
                .lock()
                .unwrap()
                .push(question.snapshot.run.to_string());
            std::future::pending::<Result<Answer, Infallible>>()
        }
    });
    let watching = tokio::spawn(Watchdog::new(&registry).question(person).run());
    let heard = LogCapture::start();
    let stick = async |run: &Run| {
        for round in 0..5 {
            run.heartbeat_at(round, "polling");
        }
        yield_now().await;
    };
    let open = |index: usize| {
        let id = format!("r-{index}").parse().unwrap();
        registry.open(Owner::default(), id)
    };
    let runs: Vec<_> = (0..100).map(open).collect();
    for run in &runs {
        stick(run).await;
    }
    sleep(secs(1)).await;

    assert_eq!(asked.lock().unwrap().len(), 64);
    assert_eq!(
        registry.open_runs(),
        100,
        "the others are left to their limits"
    );
    let [told] = &heard.events("question not asked")[..] else {
        panic!("{:?}", heard.events("question not asked"));
    };
    assert_eq!((&*told["level"], &*told["open"]), ("WARN", "64"));
    assert_eq!(told["run"], "r-64");

    // A question that is over makes room.
    runs[0].end(TerminalReason::Aborted);
    sleep(secs(60)).await;
    let [next, late] = [open(100), open(101)];
    stick(&next).await;
    stick(&late).await;
    sleep(secs(1)).await;
    assert_eq!(asked.lock().unwrap().len(), 65);
    let told = &heard.events("question not asked")[1];
    assert_eq!((&*told["run"], &*told["not_asked"]), ("r-101", "36"));
    watching.abort();
}
