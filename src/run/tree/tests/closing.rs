//! Between alive and ended.
//!
//! covers: C2

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Wake, Waker},
};

use super::*;
use crate::run::{
    limit_kind::{LimitHit, LimitKind},
    tree::clocks::Clock,
};

const GONE: TerminalReason = TerminalReason::ClientDisconnect;
const CLIENT_DISCONNECT: Option<TerminalReason> = Some(GONE);

#[test]
fn what_works_goes_on_and_the_last_to_leave_ends_it() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    call.begin_work();
    attempt.begin_work();

    call.close(&GONE, ms(100), ms(1));
    assert!(call.refuses_work() && attempt.refuses_work() && !tree.root.refuses_work());
    assert_eq!((reason(&call), reason(&attempt)), (None, None));

    attempt.settle(TerminalReason::Completed, ms(2)).unwrap();
    attempt.end_work(ms(2));
    assert_eq!(reason(&call), None, "somebody works on it yet");
    call.end_work(ms(3));
    assert_eq!(reason(&call), CLIENT_DISCONNECT);
    assert_eq!(call.own_end().unwrap().at(), ms(3));
    assert_eq!(reason(&attempt), Some(TerminalReason::Completed));
    assert_eq!(reason(&tree.root), None);
}

#[test]
fn a_node_nobody_works_on_ends_at_once() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();

    call.close(&GONE, ms(100), ms(1));

    assert_eq!(
        (reason(&call), reason(&attempt)),
        (CLIENT_DISCONNECT, CLIENT_DISCONNECT)
    );
}

#[test]
fn nothing_is_opened_alive_below_it() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    attempt.begin_work();
    call.close(&GONE, ms(100), ms(1));

    for under in [&call, &attempt] {
        let late = tree.open(under, NodeKind::Attempt, ms(2));
        assert_eq!(
            cause(late.own_end().unwrap()),
            (late.number(), TerminalReason::ClientDisconnect)
        );
        let later = tree.open(&late, NodeKind::Tool, ms(2));
        assert_eq!(reason(&later), CLIENT_DISCONNECT);
    }
    let beside = tree.open(&tree.root, NodeKind::Call, ms(2));
    assert_eq!(reason(&beside), None);
    assert_eq!(reason(&attempt), None);
}

#[test]
fn the_limit_ends_it_with_all_that_works() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    attempt.begin_work();
    call.close(&GONE, ms(100), ms(1));
    assert_eq!(attempt.next_deadline(), Some(at(100)));

    attempt.check(ms(99), TaskId::NONE).unwrap();
    let end = attempt.check(ms(100), TaskId::NONE).unwrap_err();

    assert_eq!(
        cause(&end),
        (call.number(), TerminalReason::ClientDisconnect)
    );
    assert_eq!(end.limit(), None);
}

#[test]
fn a_second_closing_never_prolongs_it() {
    let tree = Sapling::new();
    let [call, _] = tree.call();
    call.begin_work();
    call.close(&GONE, ms(100), ms(1));

    call.close(&GONE, ms(200), ms(2));
    assert_eq!(call.next_deadline(), Some(at(100)));
    call.close(&GONE, ms(50), ms(3));
    assert_eq!(call.next_deadline(), Some(at(50)));
}

#[test]
fn ends_and_clocks_win_over_it() {
    let clocks = [
        (Clock::Ceiling, TerminalReason::HardCeiling),
        (Clock::Timeout, TerminalReason::CallerDeadline),
    ];
    for (clock, expected) in clocks {
        let tree = Sapling::new();
        let [call, _] = tree.call();
        call.begin_work();
        call.close(&GONE, ms(100), ms(1));
        call.clocks.tighten(clock, ms(100));

        call.check(ms(100), TaskId::NONE).unwrap_err();
        call.end_work(ms(100));

        assert_eq!(reason(&call), Some(expected));
    }
    let tree = Sapling::new();
    let [call, _] = tree.call();
    call.begin_work();
    call.close(&GONE, ms(100), ms(1));
    tree.root
        .end(TerminalReason::Shutdown, None, ms(2))
        .unwrap();
    call.end_work(ms(3));
    assert_eq!(reason(&call), Some(TerminalReason::Shutdown));
    assert!(call.also().is_empty());
}

#[test]
fn a_node_that_is_over_is_not_closed() {
    let tree = Sapling::new();
    let [call, _] = tree.call();
    call.end(TerminalReason::Aborted, None, ms(1)).unwrap();

    call.close(&GONE, ms(100), ms(2));

    assert!(!call.is_closed_itself());
    assert_eq!(
        (reason(&call), call.also()),
        (Some(TerminalReason::Aborted), vec![])
    );
}

#[test]
fn whoever_waits_at_or_below_it_is_called() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    call.begin_work();
    let mut keys = [None, None, None];
    for (key, (node, waker)) in keys
        .iter_mut()
        .zip([(&call, 0), (&attempt, 1), (&tree.root, 2)])
    {
        node.register_waker(key, &tree.journal.waker(waker), false);
    }
    let heard = attempt.epoch();

    call.close(&GONE, ms(100), ms(1));

    let mut woken = tree.journal.woken();
    woken.sort_unstable();
    assert_eq!(woken, [0, 1]);
    assert_ne!(
        attempt.epoch(),
        heard,
        "who registers now learns that it came late"
    );
}

#[test]
fn what_follows_it_starts_nothing_either() {
    let tree = Sapling::new();
    let [call, _] = tree.call();
    let before = tree.open(&tree.root, NodeKind::Call, ms(0));
    before.follow(&call);
    call.begin_work();
    before.begin_work();

    call.close(&GONE, ms(100), ms(1));
    assert!(before.refuses_work() && !before.is_closed_itself());
    assert_eq!(reason(&before), None);

    let after = tree.open(&tree.root, NodeKind::Call, ms(2));
    after.follow(&call);
    assert_eq!(reason(&after), CLIENT_DISCONNECT);
}

#[test]
fn tasks_are_work_that_is_not_counted_as_such() {
    let tree = Sapling::new();
    let [call, _] = tree.call();
    call.begin_work();
    call.begin_task();
    assert_eq!((tree.root.active(), call.active()), (1, 1));

    call.close(&GONE, ms(100), ms(1));
    call.end_work(ms(2));
    assert_eq!((call.active(), reason(&call)), (0, None));
    call.end_task(ms(3));
    assert_eq!(reason(&call), CLIENT_DISCONNECT);
}

/// One thread closes while the other is the last to leave: one of them sees it.
/// covers: T14
#[test]
fn closing_and_leaving_at_the_same_time_always_ends_it() {
    for _ in 0..2_000 {
        let tree = Sapling::new();
        let [call, _] = tree.call();
        call.begin_work();
        std::thread::scope(|scope| {
            scope.spawn(|| call.close(&GONE, ms(100), ms(1)));
            scope.spawn(|| call.end_work(ms(1)));
        });
        assert_eq!(reason(&call), CLIENT_DISCONNECT);
    }
}

#[test]
fn it_ends_for_what_it_was_closed_for_first() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    attempt.begin_work();
    call.close(&TerminalReason::Shutdown, ms(100), ms(1));
    call.close(&TerminalReason::TurnCap, ms(50), ms(2));

    let late = tree.open(&attempt, NodeKind::Tool, ms(3));
    assert_eq!(reason(&late), Some(TerminalReason::Shutdown));

    assert_eq!(call.check(ms(49), TaskId::NONE).ok(), Some(()));
    assert!(
        call.check(ms(50), TaskId::NONE).is_err(),
        "the earlier clock"
    );
    assert_eq!(reason(&call), Some(TerminalReason::Shutdown));
    assert_eq!(reason(&attempt), Some(TerminalReason::Shutdown));
    assert_eq!(reason(&tree.root), None);
}

const CAP: LimitHit = LimitHit {
    limit: None,
    kind: LimitKind::Turns(3),
};

/// A run that reached its cap, held open for its last call.
fn held() -> Sapling {
    let tree = Sapling::new();
    tree.root.begin_task();
    tree.root
        .close_at_cap(&TerminalReason::TurnCap, CAP, Some(ms(100)), ms(1));
    tree
}

/// A run at its cap whose call and tool are in progress.
fn capped() -> (Sapling, [Arc<Node<Log>>; 3]) {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    let tool = tree.open(&tree.root, NodeKind::Tool, ms(0));
    for node in [&call, &attempt, &tool] {
        node.begin_work();
    }
    tree.root
        .close_at_cap(&TerminalReason::TurnCap, CAP, None, ms(1));
    (tree, [call, attempt, tool])
}

/// covers: D1
#[test]
fn a_call_that_was_open_goes_on_with_all_it_starts_after_a_closing_at_a_cap() {
    let (tree, [call, attempt, tool]) = capped();
    assert!(tree.root.refuses_work() && tool.refuses_work());
    assert!(!call.refuses_work() && !attempt.refuses_work());
    assert_eq!(tree.root.next_deadline(), None, "no limit of its own");

    for under in [&call, &attempt] {
        for kind in [NodeKind::Attempt, NodeKind::Tool, NodeKind::Run] {
            assert_eq!(reason(&tree.open(under, kind, ms(2))), None, "{kind:?}");
        }
    }
    for under in [&tree.root, &tool] {
        for kind in [
            NodeKind::Call,
            NodeKind::Attempt,
            NodeKind::Tool,
            NodeKind::Run,
        ] {
            let late = tree.open(under, kind, ms(2));
            assert_eq!(reason(&late), Some(TerminalReason::TurnCap), "{kind:?}");
        }
    }

    for node in [&attempt, &tool, &call] {
        assert_eq!(reason(&tree.root), None);
        node.settle(TerminalReason::Completed, ms(3)).unwrap();
        node.end_work(ms(3));
    }
    let end = tree.root.own_end().unwrap();
    assert_eq!((&end.reason, end.at()), (&TerminalReason::TurnCap, ms(3)));
    assert_eq!((end.limit(), end.limit_kind), (None, LimitKind::Turns(3)));
}

/// covers: C10, D1
#[test]
fn a_drain_after_it_spares_no_call() {
    let (tree, [call, attempt, _tool]) = capped();
    let mut key = None;
    attempt.register_waker(&mut key, &tree.journal.waker(0), false);

    tree.root.close(&TerminalReason::Shutdown, ms(100), ms(2));

    assert_eq!(tree.journal.woken(), [0]);
    assert!(call.refuses_work() && attempt.refuses_work());
    for under in [&call, &attempt] {
        let late = tree.open(under, NodeKind::Attempt, ms(3));
        assert_eq!(reason(&late), Some(TerminalReason::Shutdown));
    }
    let late = tree.open(&tree.root, NodeKind::Call, ms(3));
    assert_eq!(reason(&late), Some(TerminalReason::TurnCap), "the first");
    let end = attempt.check(ms(100), TaskId::NONE).unwrap_err();
    assert_eq!(
        cause(&end),
        (tree.root.number(), TerminalReason::Shutdown),
        "the drain cuts what the cap has spared"
    );
}

/// One thread closes while the other is the last to leave: one of them sees it.
/// covers: T14
#[test]
fn closing_at_a_cap_and_leaving_at_the_same_time_always_ends_it() {
    for _ in 0..2_000 {
        let tree = Sapling::new();
        let [call, _] = tree.call();
        call.begin_work();
        std::thread::scope(|scope| {
            let close = || {
                tree.root
                    .close_at_cap(&TerminalReason::TurnCap, CAP, None, ms(1));
            };
            scope.spawn(close);
            scope.spawn(|| call.end_work(ms(1)));
        });
        assert_eq!(reason(&tree.root), Some(TerminalReason::TurnCap));
    }
}

/// covers: D8
#[test]
fn the_last_call_lives_with_its_attempts_and_starts_nothing_else() {
    let tree = held();
    let late = tree.open(&tree.root, NodeKind::Call, ms(2));
    assert_eq!(reason(&late), Some(TerminalReason::TurnCap));

    let call = tree.last_call(&tree.root, ms(2));
    call.begin_work();
    tree.root.end_task(ms(2));
    assert!(call.is_last() && !call.refuses_work());
    let attempt = tree.open(&call, NodeKind::Attempt, ms(3));
    let inner = tree.open(&attempt, NodeKind::Attempt, ms(3));
    for node in [&call, &attempt, &inner] {
        assert_eq!(reason(node), None);
    }
    for under in [&call, &attempt, &inner] {
        for kind in [NodeKind::Tool, NodeKind::Call, NodeKind::Run] {
            let other = tree.open(under, kind, ms(3));
            assert_eq!(reason(&other), Some(TerminalReason::TurnCap), "{kind:?}");
        }
    }

    call.settle(TerminalReason::Completed, ms(4)).unwrap();
    assert_eq!(reason(&tree.root), None);
    call.end_work(ms(4));
    let end = tree.root.own_end().unwrap();
    assert_eq!(end.reason, TerminalReason::TurnCap);
    assert_eq!((end.limit(), end.limit_kind), (None, LimitKind::Turns(3)));
}

/// covers: D8
#[test]
fn the_last_call_ends_with_the_limit_of_the_closing() {
    let tree = held();
    let call = tree.last_call(&tree.root, ms(2));
    call.begin_work();
    tree.root.end_task(ms(2));

    call.check(ms(99), TaskId::NONE).unwrap();
    let end = call.check(ms(100), TaskId::NONE).unwrap_err();

    assert_eq!(
        cause(&end),
        (tree.root.number(), TerminalReason::TurnCap),
        "the run's end"
    );
    assert_eq!(end.limit_kind, LimitKind::Turns(3));
}

#[test]
fn a_ceiling_of_the_same_instant_wins_over_the_cap() {
    let tree = held();
    tree.root.clocks.tighten(Clock::Ceiling, ms(100));
    let call = tree.last_call(&tree.root, ms(2));

    let end = call.check(ms(100), TaskId::NONE).unwrap_err();

    assert_eq!(end.reason, TerminalReason::HardCeiling);
}

/// covers: D8
#[test]
fn the_last_call_can_be_closed_itself() {
    let tree = held();
    let call = tree.last_call(&tree.root, ms(2));
    call.begin_work();
    tree.root.end_task(ms(2));

    call.close(&GONE, ms(50), ms(3));
    let late = tree.open(&call, NodeKind::Attempt, ms(4));
    assert_eq!(reason(&late), CLIENT_DISCONNECT);
    call.end_work(ms(5));

    assert_eq!(reason(&call), CLIENT_DISCONNECT);
    assert_eq!(reason(&tree.root), Some(TerminalReason::TurnCap));
}

/// covers: D8
#[test]
fn a_last_call_that_comes_too_late_is_over_from_its_birth() {
    let tree = held();
    tree.root.end(TerminalReason::Aborted, None, ms(2)).unwrap();

    let call = tree.last_call(&tree.root, ms(3));

    assert_eq!(reason(&call), Some(TerminalReason::Aborted));
}

#[test]
fn whoever_works_below_hears_of_a_sooner_limit() {
    let tree = Sapling::new();
    let [call, attempt] = tree.call();
    attempt.begin_work();
    call.close(&TerminalReason::TurnCap, ms(600), ms(1));
    let woken = [(); 2].map(|()| Arc::new(WakeCounter::default()));
    for (node, count) in [&call, &attempt].into_iter().zip(&woken) {
        node.register_waker(&mut None, &Waker::from(Arc::clone(count)), true);
    }
    let counts = || {
        woken
            .each_ref()
            .map(|count| count.0.load(Ordering::Relaxed))
    };

    call.close(&TerminalReason::Shutdown, ms(700), ms(2));
    assert_eq!(counts(), [0, 0], "later is no news");
    call.close(&TerminalReason::Shutdown, ms(50), ms(3));
    assert_eq!(counts(), [1, 1]);
}

#[derive(Default)]
struct WakeCounter(AtomicU32);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
