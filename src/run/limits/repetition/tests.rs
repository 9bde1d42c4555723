//! covers: A8

use std::num::NonZeroU32;

use super::{
    RepeatDetector,
    Repetition::{self, Moving},
};

const A: u64 = 1;
const B: u64 = 2;

const fn stuck(repeats: u32, now: bool) -> Repetition {
    Repetition::Stuck {
        repeats,
        now,
        ends: false,
    }
}

fn limit(repeats: u32) -> NonZeroU32 {
    NonZeroU32::new(repeats).unwrap()
}

/// Counts each action in turn, and returns the result of the last one.
fn after(standstill: &RepeatDetector, actions: impl IntoIterator<Item = u64>) -> Repetition {
    let stood = actions.into_iter().map(|action| standstill.repeat(action));
    stood.last().unwrap()
}

#[test]
fn the_fifth_of_equal_actions_is_the_one() {
    let standstill = RepeatDetector::default();

    assert_eq!(after(&standstill, [A; 4]), Moving);
    assert_eq!(standstill.repeat(A), stuck(5, true));
    assert_eq!(standstill.repetition(), stuck(5, false));
}

#[test]
fn it_is_told_once_and_again_after_as_many_more() {
    let standstill = RepeatDetector::default();
    let told: Vec<_> = (1..=16)
        .filter(|_| matches!(standstill.repeat(A), Repetition::Stuck { now: true, .. }))
        .collect();

    assert_eq!(told, [5, 10, 15]);
}

#[test]
fn another_action_begins_another_row() {
    let standstill = RepeatDetector::default();

    assert_eq!(after(&standstill, [A, A, A, A, B, A, A, A, A]), Moving);
    assert_eq!(after(&standstill, [A]), stuck(5, true));
    assert_eq!(after(&standstill, [B]), Moving, "and is out of it");
    assert_eq!(after(&standstill, [B; 4]), stuck(5, true), "told anew");
}

#[test]
fn two_that_take_turns_are_not_the_same() {
    assert_eq!(after(&RepeatDetector::default(), [A, B].repeat(50)), Moving);
}

#[test]
fn progress_begins_another_row() {
    let standstill = RepeatDetector::default();
    after(&standstill, [A; 5]);

    standstill.moved();

    assert_eq!(standstill.repetition(), Moving);
    assert_eq!(after(&standstill, [A; 4]), Moving);
    assert_eq!(standstill.repeat(A), stuck(5, true));
}

#[test]
fn rounds_count_where_no_action_is_seen_and_nowhere_else() {
    let standstill = RepeatDetector::default();
    for action in 0..20 {
        assert_eq!(standstill.beat(), Moving);
        assert_eq!(standstill.repeat(action), Moving);
    }

    let stood: Vec<_> = (0..5).map(|_| standstill.beat()).collect();

    assert_eq!(stood[..4], [Moving; 4]);
    assert_eq!(stood[4], stuck(5, true));
}

#[test]
fn it_ends_at_its_limit_and_looks_stuck_long_before() {
    let standstill = RepeatDetector::default();
    standstill.end_at(limit(12));
    let ended = |repeats, now| Repetition::Stuck {
        repeats,
        now,
        ends: true,
    };

    assert_eq!(after(&standstill, [A; 5]), stuck(5, true));
    assert_eq!(after(&standstill, [A; 5]), stuck(10, true));
    assert_eq!(standstill.repeat(A), stuck(11, false));
    assert_eq!(standstill.repeat(A), ended(12, false));
    assert_eq!(standstill.repeat(A), ended(13, false));
}

#[test]
fn of_two_limits_the_smaller_stays_also_in_the_middle_of_a_row() {
    let standstill = RepeatDetector::default();
    after(&standstill, [A; 4]);

    standstill.end_at(limit(3));
    standstill.end_at(limit(9));

    let ended = Repetition::Stuck {
        repeats: 4,
        now: false,
        ends: true,
    };
    assert_eq!(standstill.repetition(), ended);
    standstill.moved();
    assert_eq!(after(&standstill, [A; 2]), Moving);
    assert!(matches!(
        standstill.repeat(A),
        Repetition::Stuck { ends: true, .. }
    ));
}

#[test]
fn a_row_of_actions_after_stuck_rounds_is_told_at_its_fifth() {
    let standstill = RepeatDetector::default();
    after(&standstill, [A, A]);
    let stood: Vec<_> = (0..5).map(|_| standstill.beat()).collect();
    assert_eq!(stood[4], stuck(5, true));

    assert_eq!(
        after(&standstill, [A, A]),
        Moving,
        "the third and the fourth"
    );
    assert_eq!(standstill.repeat(A), stuck(5, true));
}
