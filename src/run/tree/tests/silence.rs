use std::task::Waker;

use tokio::time::Instant;

use super::*;
use crate::run::{handle::Run, idle_timer::IdleTimer, state::NodeState};

const LENGTH: Duration = ms(100);

/// A wrapper's silence on a node, and the two tasks that may poll it.
struct Quiet {
    node: Arc<Node<NodeState>>,
    silence: IdleTimer,
    wakers: [Waker; 2],
}

impl Quiet {
    fn new(resets_on: ResetOn) -> Self {
        let journal = Arc::new(Journal::default());
        Self {
            node: Node::root(NodeKind::Run, 0, NodeState::root(Instant::now(), 0)),
            silence: IdleTimer::new(resets_on, nanos(LENGTH)),
            wakers: [0, 1].map(|id| journal.waker(id)),
        }
    }

    fn task(&self, number: usize) -> TaskId {
        TaskId::of(&self.wakers[number])
    }

    /// A pending poll: answers when the window will pass.
    fn wait(&mut self, now: u64) -> Option<Nanos> {
        let task = self.task(0);
        self.silence.wait(&self.node, at(now), task)
    }

    fn interrupt(&mut self, now: u64) {
        self.silence.interrupt(&self.node, ms(now));
    }

    /// Silence ends the node at `at`, and not a nanosecond earlier.
    #[track_caller]
    fn assert_passes_at(&self, millis: u64) {
        let before = ms(millis) - Duration::from_nanos(1);
        let early = self.node.check(before, self.task(0));
        assert!(early.is_ok(), "before its time: {early:?}");
        let end = self.node.check(ms(millis), self.task(0)).unwrap_err();
        assert_eq!(end.reason, TerminalReason::StepTimeout);
        assert_eq!(end.limit(), Some(LENGTH));
    }
}

/// covers: A14
#[test]
fn it_passes_exactly_one_window_after_the_first_wait() {
    let mut quiet = Quiet::new(ResetOn::Content);

    assert_eq!(quiet.wait(30), Some(at(130)));
    assert_eq!(
        quiet.wait(70),
        Some(at(130)),
        "a later wait is the same one"
    );
    quiet.assert_passes_at(130);
}

#[test]
fn the_readers_time_after_a_reset_is_taken_out() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    quiet.silence.reset(&quiet.node);
    assert!(
        quiet.node.check(ms(5_000), quiet.task(0)).is_ok(),
        "nobody waits"
    );

    assert_eq!(quiet.wait(5_000), Some(at(5_100)));
    quiet.assert_passes_at(5_100);
}

#[test]
fn a_window_that_is_looked_at_in_time_passes_in_time() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    assert_eq!(quiet.wait(109), Some(at(100)), "a timer may be late");
    quiet.assert_passes_at(100);
}

#[test]
fn a_window_that_is_found_late_runs_on_once() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    assert_eq!(quiet.wait(170), Some(at(240)), "as long as it was late");
    quiet.interrupt(180);
    assert_eq!(quiet.wait(187), Some(at(247)), "7 were the reader's");
    assert_eq!(quiet.wait(900), Some(at(247)), "late again");
    quiet.assert_passes_at(247);
}

#[test]
fn a_grace_has_bounds() {
    for (length, found, due) in [
        (100, 110, 160),
        (100, 5_000, 5_100),
        (9_000, 12_000, 12_200),
        (9_000, 9_120, 9_240),
    ] {
        let mut quiet = Quiet::new(ResetOn::Content);
        quiet.silence = IdleTimer::new(ResetOn::Content, nanos(ms(length)));
        quiet.wait(0);

        assert_eq!(quiet.wait(found), Some(at(due)), "{length}");
    }
}

#[test]
fn each_silence_may_be_found_late() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);
    assert_eq!(quiet.wait(120), Some(at(170)));

    quiet.silence.reset(&quiet.node);
    assert_eq!(quiet.wait(1_010), Some(at(1_110)));
    assert_eq!(quiet.wait(1_130), Some(at(1_180)));

    quiet.node.record(ResetOn::Content, ms(2_010));
    assert_eq!(quiet.wait(2_020), Some(at(2_110)), "progress elsewhere");
    assert_eq!(quiet.wait(2_130), Some(at(2_180)));

    quiet.interrupt(2_140);
    quiet.node.record(ResetOn::Content, ms(2_150));
    assert_eq!(quiet.wait(2_160), Some(at(2_260)), "it was stopped");
    assert_eq!(quiet.wait(2_280), Some(at(2_330)));
    quiet.assert_passes_at(2_330);
}

#[test]
fn a_ping_interrupts_and_the_silence_on_both_sides_adds_up() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    // 30 of silence, 500 of a reader, 20 of silence, 7 of a reader, the rest.
    quiet.interrupt(30);
    quiet.interrupt(200);
    assert_eq!(quiet.wait(530), Some(at(600)));
    quiet.interrupt(550);
    assert_eq!(quiet.wait(557), Some(at(607)));
    quiet.assert_passes_at(607);
}

#[test]
fn a_pause_is_taken_out_exactly() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    quiet.node.pause(ms(40));
    assert_eq!(quiet.wait(40), None);
    assert_eq!(quiet.wait(900), None);
    quiet.node.resume(ms(1_000));

    assert_eq!(quiet.wait(1_000), Some(at(1_060)));
    quiet.assert_passes_at(1_060);
}

#[test]
fn progress_elsewhere_while_it_waits_extends_it() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    quiet.node.record(ResetOn::AnyByte, ms(80));
    assert_eq!(quiet.wait(80), Some(at(100)), "a byte is no content");
    quiet.node.record(ResetOn::Content, ms(60));

    assert_eq!(quiet.wait(90), Some(at(160)));
    quiet.assert_passes_at(160);
}

#[test]
fn progress_elsewhere_before_an_interruption_is_not_counted_as_silence() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);
    quiet.node.record(ResetOn::Step, ms(60));

    quiet.interrupt(90);

    assert_eq!(
        quiet.wait(200),
        Some(at(270)),
        "30 were counted, 70 are left"
    );
    quiet.assert_passes_at(270);
}

#[test]
fn progress_elsewhere_after_an_interruption_clears_what_was_counted() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);
    quiet.interrupt(30);

    quiet.node.record(ResetOn::Content, ms(31));

    assert_eq!(quiet.wait(50), Some(at(150)));
    quiet.assert_passes_at(150);
}

#[test]
fn progress_elsewhere_in_the_instant_of_an_interruption_clears_it_too() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);
    quiet.interrupt(30);

    quiet.node.record(ResetOn::Content, ms(30));

    assert_eq!(quiet.wait(50), Some(at(150)), "20 were the reader's");
    quiet.assert_passes_at(150);
}

#[test]
fn an_error_in_the_instant_in_which_it_passes_is_the_silences() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    let task = quiet.task(0);
    quiet.silence.update(&quiet.node, at(99), task);
    assert!(quiet.node.check(ms(99), task).is_ok());

    quiet.silence.update(&quiet.node, at(100), task);
    assert!(quiet.node.check(ms(100), task).is_err());
    let end = quiet.node.own_end().unwrap();
    assert_eq!(end.reason, TerminalReason::StepTimeout);
    assert_eq!((end.at(), end.limit()), (ms(100), Some(LENGTH)));
}

#[test]
fn an_error_while_nothing_is_counted_is_not_the_silences() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);
    quiet.interrupt(50);

    let task = quiet.task(0);
    quiet.silence.update(&quiet.node, at(500), task);

    assert!(quiet.node.check(ms(500), task).is_ok());
}

#[test]
fn another_task_that_polls_it_takes_it_over() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);
    let [old, new] = [quiet.task(0), quiet.task(1)];

    let deadline = quiet.silence.wait(&quiet.node, at(50), new);

    assert_eq!(deadline, Some(at(100)), "the silence goes on");
    assert!(quiet.node.check(ms(100), old).is_ok());
    assert!(quiet.node.check(ms(100), new).is_err());
}

#[test]
fn it_counts_towards_an_ancestor_and_stops_for_a_pause_below() {
    let mut quiet = Quiet::new(ResetOn::Content);
    let found = quiet.node.child(
        NodeKind::Call,
        1,
        quiet.node.payload.for_child(NodeKind::Call),
        ms(0),
    );
    let task = quiet.task(0);
    quiet.silence.wait(&quiet.node, at(0), task);

    found.pause(ms(40));
    assert_eq!(quiet.silence.wait(&quiet.node, at(40), task), None);
    found.resume(ms(90));
    let deadline = quiet.silence.wait(&quiet.node, at(90), task);

    assert_eq!(deadline, Some(at(150)));
    let end = found.check(ms(150), task).unwrap_err();
    assert_eq!(cause(&end), (0, TerminalReason::StepTimeout));
}

#[test]
fn a_closed_one_is_forgotten_by_the_node_and_starts_afresh() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);
    quiet.interrupt(30);
    assert_eq!(quiet.node.left(), [0, 0, 1]);

    quiet.silence.close(&quiet.node);
    assert_eq!(quiet.node.left(), [0, 0, 0]);

    assert_eq!(quiet.wait(50), Some(at(150)));
}

/// A prompt that blocks the only thread: the waiting task is woken by the
/// pause, and polled after it.
/// covers: A11
#[tokio::test(start_paused = true)]
async fn a_pause_that_no_poll_saw_is_taken_out_as_well() {
    let (run, waker) = (Run::open(), Arc::new(Journal::default()).waker(0));
    let (node, task) = (run.node(), TaskId::of(&waker));
    let mut silence = IdleTimer::new(ResetOn::Content, nanos(LENGTH));
    silence.wait(node, nanos(run.now()), task);

    tokio::time::advance(ms(40)).await;
    let pause = run.pause();
    tokio::time::advance(ms(960)).await;
    drop(pause);

    silence.wait(node, nanos(run.now()), task);
    let checked = node.check(run.now(), task);
    assert!(checked.is_ok(), "40 ms of silence: {checked:?}");
}

#[tokio::test(start_paused = true)]
async fn an_error_during_a_pause_that_no_poll_saw_is_not_the_silences() {
    let (run, waker) = (Run::open(), Arc::new(Journal::default()).waker(0));
    let (node, task) = (run.node(), TaskId::of(&waker));
    let mut silence = IdleTimer::new(ResetOn::Content, nanos(LENGTH));
    silence.wait(node, nanos(run.now()), task);

    let _pause = run.pause();
    tokio::time::advance(ms(1_000)).await;
    silence.update(node, nanos(run.now()), task);

    assert!(node.check(run.now(), task).is_ok());
}

#[test]
fn a_frame_during_a_pause_counts_the_silence_before_the_pause() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    quiet.node.pause(ms(40));
    quiet.interrupt(60);
    quiet.node.resume(ms(70));

    assert_eq!(quiet.wait(70), Some(at(130)));
}

#[test]
fn a_wait_during_a_pause_counts_the_silence_before_the_pause() {
    let mut quiet = Quiet::new(ResetOn::Content);
    quiet.wait(0);

    quiet.node.pause(ms(40));
    assert_eq!(quiet.wait(70), None);
    quiet.node.resume(ms(90));

    assert_eq!(quiet.wait(90), Some(at(150)));
}
