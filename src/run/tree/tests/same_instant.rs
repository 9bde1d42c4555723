use super::*;
use crate::run::{limit_kind::LimitKind, tree::clocks::Clock};

#[test]
fn a_deadline_has_passed_when_it_is_now_and_not_before() {
    for clock in [Clock::Ceiling, Clock::Timeout, Clock::Announced] {
        let tree = Sapling::new();
        tree.root.clocks.tighten(clock, ms(100));

        let before = ms(100) - Duration::from_nanos(1);
        assert!(tree.root.check(before, TaskId::NONE).is_ok());
        assert!(tree.root.check(ms(100), TaskId::NONE).is_err());
    }
}

/// covers: A14
#[test]
fn a_window_has_passed_when_its_end_is_now_and_not_before() {
    let tree = Sapling::new();
    let waker = tree.journal.waker(0);
    let task = TaskId::of(&waker);
    run(&window(&tree.root, ResetOn::Content), ms(0), ms(100), task);

    let before = ms(100) - Duration::from_nanos(1);
    assert!(tree.root.check(before, task).is_ok());
    assert!(tree.root.check(ms(100), task).is_err());
}

#[test]
fn a_stored_reason_beats_a_clock_that_passed_before_it() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    for node in [&call, &attempt] {
        node.clocks.tighten(Clock::Ceiling, ms(10));
    }
    call.end(TerminalReason::Aborted, None, ms(20)).unwrap();

    let end = attempt.check(ms(20), TaskId::NONE).unwrap_err();

    assert_eq!(cause(&end), (call.number(), TerminalReason::Aborted));
    assert_eq!(call.also(), [], "no clock was even a loser");
}

/// covers: A6
#[test]
fn the_outermost_node_wins_though_an_inner_deadline_passed_earlier() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    attempt.clocks.tighten(Clock::Ceiling, ms(10));
    call.clocks.tighten(Clock::Ceiling, ms(20));
    tree.root.clocks.tighten(Clock::Timeout, ms(30));

    let end = attempt.check(ms(30), TaskId::NONE).unwrap_err();

    assert_eq!(cause(&end), (0, TerminalReason::CallerDeadline));
    for node in [&tree.root, &call, &attempt] {
        assert_eq!(reason(node), Some(TerminalReason::CallerDeadline));
    }
}

/// covers: T24
#[test]
fn an_attempts_deadline_clamped_to_its_runs_ends_the_run() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    tree.root.clocks.tighten(Clock::Ceiling, ms(100));
    attempt.clocks.tighten(Clock::Ceiling, ms(100));

    let end = attempt.check(ms(100), TaskId::NONE).unwrap_err();

    assert_eq!(cause(&end), (0, TerminalReason::HardCeiling));
    // The retry: the next attempt is over before it starts.
    assert_eq!(reason(&call), Some(TerminalReason::HardCeiling));
    let next = tree.open(&call, NodeKind::Attempt, ms(100));
    assert_eq!(reason(&next), Some(TerminalReason::HardCeiling));
}

/// covers: A6
#[test]
fn on_one_node_ceiling_then_step_then_callers_deadline() {
    use TerminalReason::{CallerDeadline, HardCeiling, StepTimeout};
    for (ceiling, step, first) in [
        (true, true, HardCeiling),
        (true, false, HardCeiling),
        (false, true, StepTimeout),
        (false, false, CallerDeadline),
    ] {
        let tree = Sapling::new();
        let waker = tree.journal.waker(0);
        let task = TaskId::of(&waker);
        // The later in rank passed the earlier in time.
        tree.root.clocks.tighten(Clock::Timeout, ms(10));
        if step {
            run(&window(&tree.root, ResetOn::Content), ms(0), ms(20), task);
        }
        if ceiling {
            tree.root.clocks.tighten(Clock::Ceiling, ms(30));
        }

        let end = tree.root.check(ms(30), task).unwrap_err();

        assert_eq!(end.reason, first);
    }
}

#[test]
fn what_a_caller_announced_is_the_last_on_its_node_and_the_earliest_of_it_wins() {
    let cases = [
        (30, 40, 40, LimitKind::Set),
        (40, 30, 40, LimitKind::Announced),
        (40, 40, 30, LimitKind::Unheard),
        (30, 30, 30, LimitKind::Set),
    ];
    for ours in [
        None,
        Some(TerminalReason::HardCeiling),
        Some(TerminalReason::StepTimeout),
    ] {
        for (timeout, announced, silence, kind) in cases {
            let tree = Sapling::new();
            let waker = tree.journal.waker(0);
            let task = TaskId::of(&waker);
            tree.root.clocks.tighten(Clock::Timeout, ms(timeout));
            tree.root.clocks.tighten(Clock::Announced, ms(announced));
            run(&callers_window(&tree.root), ms(0), ms(silence), task);
            match ours {
                Some(TerminalReason::HardCeiling) => {
                    tree.root.clocks.tighten(Clock::Ceiling, ms(50));
                }
                Some(_) => run(&window(&tree.root, ResetOn::Content), ms(0), ms(50), task),
                None => {}
            }

            let end = tree.root.check(ms(50), task).unwrap_err();

            match &ours {
                Some(reason) => assert_eq!((&end.reason, end.limit_kind), (reason, LimitKind::Set)),
                None => {
                    assert_eq!(end.reason, TerminalReason::CallerDeadline);
                    assert_eq!((end.limit(), end.limit_kind), (Some(ms(30)), kind));
                }
            }
        }
    }
}

#[test]
fn a_callers_window_knows_of_no_pause_and_of_no_sign_of_life_but_its_own() {
    let tree = Sapling::new();
    let waker = tree.journal.waker(0);
    let task = TaskId::of(&waker);
    run(&callers_window(&tree.root), ms(0), ms(10), task);

    tree.root.pause(ms(0));
    tree.root.record(ResetOn::Step, ms(9));

    assert!(
        tree.root.check(ms(10), TaskId::NONE).is_ok(),
        "of another task"
    );
    let end = tree.root.check(ms(10), task).unwrap_err();
    assert_eq!(end.reason, TerminalReason::CallerDeadline);
}

#[test]
fn a_window_of_another_task_does_not_count() {
    let tree = Sapling::new();
    let wakers = [0, 1].map(|id| tree.journal.waker(id));
    let [ours, theirs] = wakers.each_ref().map(TaskId::of);
    run(&window(&tree.root, ResetOn::Content), ms(0), ms(10), theirs);

    assert!(tree.root.check(ms(50), ours).is_ok());
    assert!(tree.root.check(ms(50), TaskId::NONE).is_ok());
    assert!(tree.root.check(ms(50), theirs).is_err());
}

/// covers: A11
#[test]
fn a_paused_nodes_window_does_not_count_and_its_ceiling_does() {
    for paused in 0..3 {
        let tree = Sapling::new();
        let [call, attempt] = tree.call();
        let waker = tree.journal.waker(0);
        let task = TaskId::of(&waker);
        run(&window(&call, ResetOn::Content), ms(0), ms(10), task);
        call.clocks.tighten(Clock::Ceiling, ms(60));

        // At, above and below the window's node.
        let pausing = [&tree.root, &call, &attempt][paused];
        pausing.pause(ms(0));
        assert!(attempt.check(ms(59), task).is_ok());

        let end = attempt.check(ms(60), task).unwrap_err();
        assert_eq!(cause(&end), (call.number(), TerminalReason::HardCeiling));
    }
}

#[test]
fn a_pause_beside_the_node_leaves_its_window_alone() {
    let tree = Sapling::new();
    let [call, _attempt] = tree.call();
    let tool = tree.open(&tree.root, NodeKind::Tool, ms(0));
    let waker = tree.journal.waker(0);
    let task = TaskId::of(&waker);
    run(&window(&call, ResetOn::Content), ms(0), ms(10), task);

    tool.pause(ms(0));

    assert!(call.check(ms(10), task).is_err());
}
