use super::*;
use crate::run::limit_kind::LimitKind;

#[test]
fn the_earliest_of_two_passed_windows_is_the_one_that_fired() {
    let tree = Sapling::new();
    let waker = tree.journal.waker(0);
    let task = TaskId::of(&waker);
    let [slow, fast] = [(), ()].map(|()| window(&tree.root, ResetOn::Content));
    run(&slow, ms(0), ms(100), task);
    run(&fast, ms(0), ms(20), task);

    let end = tree.root.check(ms(200), task).unwrap_err();

    assert_eq!(end.limit(), Some(ms(20)), "slow passed 80 ms after fast");
}

#[test]
fn of_two_windows_that_passed_at_the_same_instant_the_first_is_the_one_that_fired() {
    let tree = Sapling::new();
    let waker = tree.journal.waker(0);
    let task = TaskId::of(&waker);
    let [first, second] = [(), ()].map(|()| window(&tree.root, ResetOn::Content));
    run(&first, ms(0), ms(100), task);
    run(&second, ms(80), ms(20), task);

    let end = tree.root.check(ms(200), task).unwrap_err();

    assert_eq!(end.limit(), Some(ms(100)));
}

#[test]
fn progress_on_the_node_moves_its_window() {
    let tree = Sapling::new();
    let waker = tree.journal.waker(0);
    let task = TaskId::of(&waker);
    run(&window(&tree.root, ResetOn::Content), ms(0), ms(100), task);
    let [_, attempt] = tree.call();

    attempt.record(ResetOn::AnyByte, ms(90));
    attempt.record(ResetOn::Content, ms(50));

    assert!(attempt.check(ms(149), task).is_ok());
    let end = attempt.check(ms(150), task).unwrap_err();
    assert_eq!(cause(&end), (0, TerminalReason::StepTimeout));
    assert_eq!((end.limit(), end.lasted()), (Some(ms(100)), ms(150)));
}

/// covers: A10
#[test]
fn a_window_of_life_is_moved_by_any_byte() {
    let tree = Sapling::new();
    let waker = tree.journal.waker(0);
    let task = TaskId::of(&waker);
    let window = Arc::new(IdleWindow::new(WindowKind::Lifeless));
    tree.root.add_window(&window);
    run(&window, ms(0), ms(100), task);

    tree.root.record(ResetOn::AnyByte, ms(90));

    assert!(tree.root.check(ms(189), task).is_ok());
    let end = tree.root.check(ms(190), task).unwrap_err();
    assert_eq!(cause(&end), (0, TerminalReason::StepTimeout));
    assert_eq!(end.limit_kind, LimitKind::Lifeless);
}

#[test]
fn a_sign_counts_as_those_below_it_and_no_others() {
    let tree = Sapling::new();

    tree.root.record(ResetOn::Step, ms(10));
    tree.root.record(ResetOn::Content, ms(20));
    tree.root.record(ResetOn::AnyByte, ms(30));
    tree.root.record(ResetOn::AnyByte, ms(25));

    assert_eq!(tree.root.last(ResetOn::Step), at(10));
    assert_eq!(tree.root.last(ResetOn::Content), at(20));
    assert_eq!(tree.root.last(ResetOn::AnyByte), at(30));
}

#[test]
fn a_stopped_window_never_passes_and_a_moved_one_counts_for_its_new_task() {
    let tree = Sapling::new();
    let wakers = [0, 1].map(|id| tree.journal.waker(id));
    let [old, new] = wakers.each_ref().map(TaskId::of);
    let window = window(&tree.root, ResetOn::Content);
    run(&window, ms(0), ms(100), old);

    window.stop();
    assert!(tree.root.check(ms(500), old).is_ok());

    run(&window, ms(500), ms(100), old);
    window.set_task(new);
    assert!(tree.root.check(ms(600), old).is_ok());
    assert!(tree.root.check(ms(600), new).is_err());
}
