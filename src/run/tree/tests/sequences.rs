//! The tree against its model; closing is one of the events.
//!
//! covers: C2

use std::cell::Cell;

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{RngSeed, TestError, TestRunner},
};

use super::{event::Event, tree::Tree};

const CASES: u32 = 20_000;

/// Names the seed of another run than the one that always repeats.
const SEED: &str = "TOWER_AGENT_SEED";

#[test]
fn a_tree_does_what_its_model_does() {
    let seed = std::env::var(SEED).map_or(0, |seed| seed.parse().expect("a number"));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: CASES,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let (cases, failed) = (Cell::new(0), Cell::new(None));
    let events = vec(any::<[u8; 4]>().prop_map(Event::decode), 0..=60);

    let outcome = runner.run(&events, |events| {
        cases.set(cases.get() + 1);
        let compared = Tree::new().run(&events);
        if compared.is_err() && failed.get().is_none() {
            failed.set(Some(cases.get()));
        }
        compared.map_err(TestCaseError::fail)
    });

    if let Err(TestError::Fail(why, events)) = outcome {
        let case = failed.get();
        panic!("{why}\nin case {case:?} of {SEED}={seed}, shrunk to {events:#?}");
    }
    assert_eq!(outcome, Ok(()), "{SEED}={seed}");
}
