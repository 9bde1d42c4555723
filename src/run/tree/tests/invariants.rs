use super::{journal::Entry, *};
use crate::run::{
    limit_kind::{LimitHit, LimitKind},
    tree::clocks::Clock,
};

#[test]
fn invariant_1_the_first_reason_stays_and_the_losers_are_kept() {
    let tree = Sapling::new();
    tree.root
        .end(TerminalReason::Shutdown, None, ms(1))
        .unwrap();

    let late = LimitHit {
        limit: Some(ms(2)),
        kind: LimitKind::Set,
    };
    let loser = tree.root.end(TerminalReason::Aborted, Some(late), ms(2));
    let settled = tree.root.settle(TerminalReason::Completed, ms(3));

    for end in [loser.unwrap_err(), settled.unwrap_err()] {
        assert_eq!(cause(&end), (0, TerminalReason::Shutdown));
        assert_eq!((end.at(), end.limit()), (ms(1), None));
    }
    assert_eq!(reason(&tree.root), Some(TerminalReason::Shutdown));
    assert_eq!(tree.root.also(), [TerminalReason::Aborted]);
}

#[test]
fn invariant_1_a_losing_reason_is_kept_where_it_was_given() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    tree.root
        .end(TerminalReason::Shutdown, None, ms(1))
        .unwrap();

    let end = attempt.end(TerminalReason::StepTimeout, None, ms(2));

    let end = end.unwrap_err();
    assert_eq!(cause(&end), (0, TerminalReason::Shutdown));
    assert_eq!(attempt.also(), [TerminalReason::StepTimeout]);
    assert_eq!([call.also(), tree.root.also()], [[], []]);
}

#[test]
fn invariant_2_the_whole_subtree_is_over_before_anybody_is_called() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    let mut keys = [None; 3];
    for (id, node) in [&tree.root, &call, &attempt].into_iter().enumerate() {
        node.register_waker(&mut keys[id], &tree.journal.waker(id), true);
    }

    call.end(TerminalReason::Aborted, None, ms(1)).unwrap();

    let seen = tree.journal.take();
    let unknown = u64::MAX << 3;
    let ended = unknown | 0b110;
    assert_eq!(
        seen[..2],
        [1, 2].map(|node| Entry::Told { node, ended }),
        "hooks first"
    );
    let mut woken = seen[2..].to_vec();
    woken.sort_by_key(|entry| format!("{entry:?}"));
    assert_eq!(woken, [0, 1, 2].map(|waker| Entry::Woken { waker, ended }));
}

#[test]
fn invariant_3_what_is_opened_under_an_ended_node_is_over_from_its_birth() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    call.end(TerminalReason::TurnCap, None, ms(1)).unwrap();

    let retry = tree.open(&call, NodeKind::Attempt, ms(2));
    let tool = tree.open(&attempt, NodeKind::Tool, ms(2));
    let next = tree.open(&tree.root, NodeKind::Call, ms(2));

    for node in [&retry, &tool] {
        let end = node.check(ms(2), TaskId::NONE).unwrap_err();
        assert_eq!(cause(&end), (call.number(), TerminalReason::TurnCap));
        assert_eq!(end.at(), ms(1));
    }
    assert_eq!(reason(&next), None, "an end never reaches an ancestor");
}

#[test]
fn invariant_5_deadlines_only_tighten() {
    let tree = Sapling::new();
    let child = tree.open(&tree.root, NodeKind::Call, ms(0));
    for clock in [Clock::Ceiling, Clock::Timeout] {
        tree.root.clocks.tighten(clock, ms(100));
        tree.root.clocks.tighten(clock, ms(200));
        assert_eq!(tree.root.clocks.get(clock), Some(ms(100)));
        tree.root.clocks.tighten(clock, ms(50));
        assert_eq!(tree.root.clocks.get(clock), Some(ms(50)));
    }

    // A child's later deadline postpones nothing, and is its own.
    child.clocks.tighten(Clock::Ceiling, ms(300));
    assert_eq!(child.next_deadline(), Some(at(50)));
    child.clocks.tighten(Clock::Ceiling, ms(20));
    assert_eq!(child.next_deadline(), Some(at(20)));
    assert_eq!(tree.root.next_deadline(), Some(at(50)));
}

#[test]
fn invariant_5_the_longest_deadline_is_still_one() {
    let tree = Sapling::new();

    tree.root.clocks.tighten(Clock::Ceiling, Duration::MAX);

    assert!(tree.root.next_deadline().is_some());
    assert!(tree.root.check(ms(u64::MAX >> 20), TaskId::NONE).is_ok());
}

#[test]
fn invariant_7_registrations_are_released() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    let mut key = None;
    let window = window(&call, ResetOn::Content);
    call.register_waker(&mut key, &tree.journal.waker(0), true);
    call.register_waker(&mut key, &tree.journal.waker(1), false);
    assert_eq!(call.left(), [1, 1, 1], "a second wait replaces the first");

    call.deregister_waker(key.unwrap());
    call.remove_window(&window);
    drop(attempt);
    assert_eq!(call.left(), [0, 0, 0]);

    drop(call);
    assert_eq!(tree.root.left(), [0, 0, 0]);
    assert_eq!(Arc::strong_count(&tree.root), 1);
}

#[test]
fn invariant_7_a_forgotten_waiter_is_not_called() {
    let tree = Sapling::new();
    let mut keys = [None; 2];
    for (id, key) in keys.iter_mut().enumerate() {
        tree.root
            .register_waker(key, &tree.journal.waker(id), false);
    }
    tree.root.deregister_waker(keys[0].unwrap());

    tree.root.end(TerminalReason::Aborted, None, ms(1)).unwrap();

    assert_eq!(tree.journal.woken(), [1]);
}

#[test]
fn invariant_8_each_hook_is_told_exactly_once() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();

    attempt
        .end(TerminalReason::StepTimeout, None, ms(1))
        .unwrap();
    call.settle(TerminalReason::Completed, ms(2)).unwrap();
    tree.root.end(TerminalReason::Aborted, None, ms(3)).unwrap();
    let late = tree.open(&call, NodeKind::Attempt, ms(4));
    for node in [&tree.root, &call, &attempt, &late] {
        node.end(TerminalReason::Shutdown, None, ms(5)).unwrap_err();
        node.check(ms(5), TaskId::NONE).unwrap_err();
    }

    let told = tree.journal.take().into_iter().map(|entry| match entry {
        Entry::Told { node, .. } => node,
        Entry::Woken { .. } => panic!("nobody waits"),
    });
    assert_eq!(told.collect::<Vec<_>>(), [2, 1, 0, 3]);
}

#[test]
fn the_last_to_leave_an_ended_node_is_heard_of() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    let mut key = None;
    tree.root
        .register_waker(&mut key, &tree.journal.waker(0), false);
    call.begin_work();
    attempt.begin_work();
    tree.root.end(TerminalReason::Aborted, None, ms(1)).unwrap();
    assert_eq!(tree.journal.woken(), [0]);

    attempt.end_work(ms(1));
    assert_eq!((tree.root.active(), tree.journal.woken()), (1, vec![]));
    call.end_work(ms(1));
    assert_eq!((tree.root.active(), tree.journal.woken()), (0, vec![0]));
}
