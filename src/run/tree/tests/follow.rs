use super::*;

/// A call under the root that follows `found`, another tree's run.
fn follower(tree: &Sapling, found: &Sapling) -> Arc<Node<Log>> {
    let call = tree.open(&tree.root, NodeKind::Call, ms(0));
    call.follow(&found.root);
    call
}

#[test]
fn a_follower_ends_with_what_it_follows_and_its_parent_does_not() {
    let [tree, found] = [Sapling::new(), Sapling::new()];
    let call = follower(&tree, &found);
    let attempt = tree.open(&call, NodeKind::Attempt, ms(0));

    found
        .root
        .end(TerminalReason::ClientDisconnect, None, ms(5))
        .unwrap();

    let gone = Some(TerminalReason::ClientDisconnect);
    assert_eq!(
        [&call, &attempt].map(|node| reason(node)),
        [gone.clone(), gone]
    );
    assert_eq!(reason(&tree.root), None);
}

#[test]
fn a_node_that_follows_an_ended_one_is_ended_at_once() {
    let [tree, found] = [Sapling::new(), Sapling::new()];
    found
        .root
        .end(TerminalReason::Aborted, None, ms(5))
        .unwrap();

    let call = follower(&tree, &found);

    assert_eq!(reason(&call), Some(TerminalReason::Aborted));
    assert_eq!(tree.journal.take().len(), 1, "its hook, once");
}

#[test]
fn a_dropped_follower_is_forgotten_by_what_it_followed() {
    let [tree, found] = [Sapling::new(), Sapling::new()];

    for _ in 0..100 {
        drop(follower(&tree, &found));
    }

    assert_eq!(tree.root.left(), [0, 0, 0]);
    assert_eq!(found.root.left(), [0, 0, 0]);
}

#[test]
fn a_driver_above_a_follower_hears_of_its_end() {
    let [tree, found] = [Sapling::new(), Sapling::new()];
    let _call = follower(&tree, &found);
    let mut key = None;
    tree.root
        .register_waker(&mut key, &tree.journal.waker(7), true);

    found
        .root
        .end(TerminalReason::Aborted, None, ms(5))
        .unwrap();

    assert_eq!(tree.journal.woken(), [7]);
}

/// `HardCeilingLayer` outside a `RunLayer` whose id is taken: the outer layer's
/// task polls the follower, and holds its one waiter on what is followed.
#[test]
fn a_driver_of_the_followed_node_hears_of_its_followers_end() {
    let [tree, found] = [Sapling::new(), Sapling::new()];
    let call = follower(&tree, &found);
    let mut key = None;
    found
        .root
        .register_waker(&mut key, &found.journal.waker(7), true);

    tree.root.end(TerminalReason::Aborted, None, ms(5)).unwrap();

    assert_eq!(reason(&call), Some(TerminalReason::Aborted));
    assert_eq!(found.journal.woken(), [7]);
}
