//! Deadlines that several layers read of one call, and take back in any order.

use super::*;
use crate::run::tree::clocks::Clock;

#[test]
fn a_later_deadline_stands_when_the_earlier_is_taken_back() {
    let tree = Sapling::new();
    let clocks = &tree.root.clocks;
    let outer = clocks.announce(ms(50));
    let inner = clocks.announce(ms(100));
    assert_eq!(clocks.get(Clock::Announced), Some(ms(50)));

    clocks.withdraw(outer);
    assert_eq!(clocks.get(Clock::Announced), Some(ms(100)));
    assert_eq!(clocks.next(), Some(at(100)));

    clocks.withdraw(inner);
    assert_eq!(clocks.get(Clock::Announced), None);
}

#[test]
fn what_was_taken_back_does_not_come_back_with_another() {
    let tree = Sapling::new();
    let clocks = &tree.root.clocks;
    let outer = clocks.announce(ms(100));
    let inner = clocks.announce(ms(50));

    clocks.withdraw(outer);
    assert_eq!(clocks.get(Clock::Announced), Some(ms(50)));

    clocks.withdraw(inner);
    assert_eq!(clocks.get(Clock::Announced), None);
}

#[test]
fn of_two_that_are_equal_one_is_left() {
    let tree = Sapling::new();
    let clocks = &tree.root.clocks;
    let [one, other] = [clocks.announce(ms(50)), clocks.announce(ms(50))];

    clocks.withdraw(one);
    assert_eq!(clocks.get(Clock::Announced), Some(ms(50)));

    clocks.withdraw(other);
    assert_eq!(clocks.get(Clock::Announced), None);
}
