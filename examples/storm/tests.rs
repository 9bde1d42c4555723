//! What the shared budget promises for an outage, to the repeat, however many
//! runs meet it.

use crate::{
    ours, plain,
    play::{SystemOutcome, play},
    systems::{NESTED, ONE, SystemShape, TWO, system},
};

fn ours(shape: SystemShape) -> SystemOutcome {
    play(&system("ours", shape, ours::start)).unwrap()
}

/// At every moment of the outage; and of what was granted nearly all was asked
/// for, so that a budget of a little more would be seen.
#[track_caller]
fn assert_bounded(outcome: &SystemOutcome) {
    assert_eq!(outcome.broken, None, "{outcome:?}");
    let repeats = outcome.first.all - outcome.first.traffic;
    assert!(repeats <= outcome.granted, "{outcome:?}");
    assert!(repeats * 100 >= outcome.granted * 95, "{outcome:?}");
}

/// covers: G4, T42
#[test]
fn an_outage_is_bounded_and_the_healthy_candidate_serves_everyone() {
    let outcome = ours(TWO);

    assert_bounded(&outcome);
    assert!(outcome.served > 0);
    assert_eq!((outcome.failed, outcome.failed_besides), (0, 0));
    assert_eq!(outcome.second.all, outcome.second.traffic, "nothing failed");
    assert_eq!(outcome.for_nobody, 0);
}

#[test]
fn a_candidate_that_is_left_alone_is_asked_by_hardly_anybody() {
    let outcome = play(&system("cooled", TWO, ours::start_cooled)).unwrap();

    // Those that met the outage at once, and whoever came when a window ended.
    assert!(outcome.first.traffic > 0, "{outcome:?}");
    assert!(outcome.first.traffic * 5 < outcome.served, "{outcome:?}");
    assert_eq!(outcome.broken, None, "{outcome:?}");
    assert_eq!((outcome.failed, outcome.failed_besides), (0, 0));
    assert_eq!(outcome.for_nobody, 0);
}

/// covers: G4, T42
#[test]
fn an_outage_of_the_only_candidate_is_bounded_and_handed_up() {
    let outcome = ours(ONE);

    assert_bounded(&outcome);
    assert!(outcome.failed > outcome.served, "{outcome:?}");
    assert_eq!(outcome.failed_besides, 0, "it is served again afterwards");
    assert_eq!(outcome.for_nobody, 0);
}

/// covers: G5, T41
#[test]
fn retries_in_retries_are_bounded_as_one() {
    let outcome = ours(NESTED);

    assert_bounded(&outcome);
    assert_eq!(outcome.failed_besides, 0);
    assert_eq!(outcome.for_nobody, 0);
}

#[test]
fn the_same_storm_comes_twice() {
    let storm = || play(&system("plain", TWO, plain::start_in_line)).unwrap();

    let outcome = storm();

    assert_eq!(outcome, storm());
    // What is dropped in line stops, whoever wrote it.
    assert_eq!(outcome.for_nobody, 0);
}
