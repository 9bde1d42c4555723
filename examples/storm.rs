//! A simulated outage: a thousand agents, and a model that is down for a minute.
//!
//! ```text
//! cargo run --example storm
//! ```
//!
//! Each agent makes seven calls, one after the other; every fifth leaves in the
//! middle. The first candidate refuses connections, answers 503 or hangs, each as
//! often as the others; the second is well. In between stand, one at a time:
//!
//! - the layers of this crate, which share one `RetryBudget`, once with
//!   `Cooldowns`;
//! - tower's `Retry` with a policy as in its documentation, with a `TpsBudget`
//!   for each candidate and without, and a fallback of a few lines;
//! - the layers of `tower-resilience`, with an `AimdBudget` for each candidate.
//!
//! All make at most three attempts of five seconds per candidate, with backoffs
//! from 500 ms to 8 s. Their budgets are a fifth and, where they know time, ten
//! repeats per second: a fifth of the first attempts here, of the successes
//! there, so that ours grants more while nothing succeeds. All run a call in a
//! task of its own, as a server does, but for the one that says so.
//!
//! The clock is tokio's, paused: a minute takes seconds, and the same storm
//! comes each time. It fails if ours breaks a promise.

#[path = "storm/bound.rs"]
mod bound;
#[path = "storm/load.rs"]
mod load;
#[path = "storm/ours.rs"]
mod ours;
#[path = "storm/peers.rs"]
mod peers;
#[path = "storm/plain.rs"]
mod plain;
#[path = "storm/play.rs"]
mod play;
#[path = "storm/resilience.rs"]
mod resilience;
#[path = "storm/systems.rs"]
mod systems;
#[path = "storm/table.rs"]
mod table;
#[cfg(test)]
#[path = "storm/tests.rs"]
mod tests;
#[path = "storm/upstream.rs"]
mod upstream;

use std::{process::ExitCode, thread};

use tower_agent::BoxError;

use self::{
    play::{SystemOutcome, play},
    systems::{GROUPS, System},
};

fn main() -> ExitCode {
    match storm() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("storm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn storm() -> Result<bool, BoxError> {
    // Each in a clock of its own, so they do not see one another.
    let outcomes: Vec<Vec<_>> = thread::scope(|scope| {
        let start = |system: &'static System| scope.spawn(|| play(system));
        let groups = GROUPS.map(|(_, systems)| systems.iter().map(start).collect::<Vec<_>>());
        let join = |storm: thread::ScopedJoinHandle<'_, _>| storm.join();
        let join = |group: Vec<_>| group.into_iter().map(join).collect();
        groups.into_iter().map(join).collect()
    });
    table::explain();
    let mut kept = true;
    for ((title, systems), outcomes) in GROUPS.iter().zip(outcomes) {
        table::head(title);
        for (system, outcome) in systems.iter().zip(outcomes) {
            let outcome: SystemOutcome = outcome.map_err(|_| "a storm panicked")??;
            table::row(system, &outcome);
            kept &= !system.is_ours() || outcome.keeps_our_promises();
        }
        println!();
    }
    Ok(kept)
}
