//! Random stacks of all layers over random upstreams, readers and outsiders,
//! on a paused clock whose grid makes deadlines coincide.
//!
//! 5,000 cases by default, the same ones each time. `STACKS_CASES=N` and
//! `STACKS_SEED=N` choose others; a failing case prints the line that replays it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

pub(crate) mod build;
mod cases;
mod drive;
mod ledger;
mod model;
mod oracles;
mod plan;
mod script;
mod sights;
mod trace;
mod upstream;

use self::plan::Plan;

use proptest::{
    strategy::{Strategy, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn runner(seed: u64) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    TestRunner::new_with_rng(Config::default(), rng)
}

#[test]
fn random_stacks_keep_every_promise() {
    let first = number("STACKS_SEED", 0);
    let cases = number("STACKS_CASES", 5_000);
    let mut violations = std::collections::BTreeMap::<&str, (usize, String)>::new();
    let mut seen = std::collections::BTreeMap::<&str, usize>::new();
    let mut ends = std::collections::BTreeMap::<String, usize>::new();
    for seed in first..first + cases {
        let tree = cases::plans().new_tree(&mut runner(seed)).unwrap();
        let plan = tree.current();
        let story = play(&plan);
        let found = judge(&plan, &story);
        for name in found.iter().map(|(name, _)| *name) {
            violations.entry(name).or_default().0 += 1;
        }
        if let Ok(story) = &story {
            for sight in sights::sights(&plan, story) {
                *seen.entry(sight).or_default() += 1;
            }
        }
        let end = story.map_or_else(|why| why, |story| story.end());
        *ends.entry(end).or_default() += 1;
        let replay = format!(
            "STACKS_SEED={seed} STACKS_CASES=1 cargo test --all-features --lib random_stacks"
        );
        for (oracle, _) in found {
            if violations[oracle].1.is_empty() {
                let tree = cases::plans().new_tree(&mut runner(seed)).unwrap();
                let example = smallest(tree, oracle);
                violations.get_mut(oracle).unwrap().1 = format!("{example}\nreplay: {replay}");
            }
        }
    }
    for (oracle, (times, example)) in &violations {
        println!("--- {oracle}: {times} of {cases}\n{example}");
    }
    println!("{ends:?}\n{seen:?}");
    assert!(violations.is_empty(), "{:?}", violations.keys());
    let kinds = [
        "completed",
        "upstream_failed",
        "step_timeout",
        "max_turn_time",
        "timeout",
        "client_disconnect",
        "aborted",
        "shutdown",
        "loop_detected",
    ];
    for sight in sights::ALL.iter().filter(|_| cases >= 1000) {
        assert!(seen.contains_key(sight), "nowhere was {sight}: {seen:?}");
    }
    for kind in kinds.into_iter().filter(|_| cases >= 1000) {
        assert!(
            ends.contains_key(kind),
            "no case ended with {kind}: {ends:?}"
        );
    }
}

/// One of many thousand stacks each: an attempt that is ended while its answer is held, an
/// error that waits for its reader, a frame before an error in one poll, and a window that
/// the first content makes shorter than the silence before it.
#[test]
fn stacks_that_broke_a_promise_keep_it() {
    for seed in [711_493, 776_361, 819_934, 825_063, 899_215] {
        let plan = cases::plans()
            .new_tree(&mut runner(seed))
            .unwrap()
            .current();
        let broken = judge(&plan, &play(&plan));
        assert!(broken.is_empty(), "{seed}: {broken:?}");
    }
}

/// The smallest plan that breaks the same promise, and what happens in it.
fn smallest(mut tree: impl ValueTree<Value = Plan>, oracle: &str) -> String {
    let broken = |plan: &Plan| {
        let story = play(plan);
        let found = judge(plan, &story);
        let (_, why) = found.into_iter().find(|(name, _)| *name == oracle)?;
        let story = story.map_or_else(|why| why, |story| story.to_string());
        Some(format!("{why}\n{plan:#?}\n{story}"))
    };
    let mut example = String::new();
    loop {
        let plan = tree.current();
        let simpler = match broken(&plan) {
            Some(broken) => {
                example = broken;
                tree.simplify()
            }
            None => tree.complicate(),
        };
        if !simpler {
            return example;
        }
    }
}

/// Plays a plan; the error says how it broke down.
fn play(plan: &Plan) -> Result<trace::Story, String> {
    let played = std::panic::catch_unwind(|| drive::run(plan));
    played.map_err(|panic| match panic.downcast_ref::<&str>() {
        Some(why) => (*why).to_owned(),
        None => "it panicked".to_owned(),
    })
}

fn judge(plan: &Plan, story: &Result<trace::Story, String>) -> Vec<(&'static str, String)> {
    let story = match story {
        Ok(story) => story,
        Err(why) => return vec![("it neither panics nor spins", why.clone())],
    };
    if !story.known {
        let found = oracles::unseen(plan, story).err();
        return found
            .map(|why| ("1 it is over before anybody knows it", why))
            .into_iter()
            .collect();
    }
    oracles::all()
        .filter_map(|(name, check)| Some((name, check(plan, story).err()?)))
        .collect()
}
