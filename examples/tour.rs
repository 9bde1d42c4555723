//! Eight situations side by side: a plain tower stack against this crate.
//!
//! ```text
//! cargo run --all-features --example tour
//! ```
//!
//! The plain stack is what tower's documentation shows: `Timeout` around a
//! fallback of a few lines, around `Retry` with a `TpsBudget` and an exponential
//! backoff, around another `Timeout`. Both have the same limits, run a call in a
//! task of its own (without that hyper drops a call with its connection, and the
//! plain stack does as well in the situations in which a caller leaves), and
//! call an upstream in this process over loopback sockets, which counts.
//!
//! It fails if ours makes more calls than it should.

#[path = "tour/caller.rs"]
mod caller;
#[path = "tour/ours.rs"]
mod ours;
#[path = "tour/plain.rs"]
mod plain;
#[path = "tour/situations.rs"]
mod situations;
#[path = "tour/stage.rs"]
mod stage;
#[path = "tour/upstream.rs"]
mod upstream;

use std::process::ExitCode;

use futures_util::{StreamExt, future::join, stream::FuturesOrdered};
use tower_agent::BoxError;

use self::{situations::SITUATIONS, stage::Stage};

#[tokio::main]
async fn main() -> ExitCode {
    match tour().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tour: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn tour() -> Result<bool, BoxError> {
    // Several providers may be linked in; the example needs one chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build()?;
    let mut stages = Vec::new();
    for situation in &SITUATIONS {
        let plain = Stage::set(situation, false).await?;
        stages.push((plain, Stage::set(situation, true).await?));
    }
    println!("calls: what reached the upstream; time: until the caller had its answer, and");
    println!("nothing was under way for it any more.\n");
    println!(
        "| {:<46} | plain | time  | {:<41} | ours | time  | {:<25} |",
        "situation", "the caller got", "the caller got"
    );
    println!(
        "|{:-<48}|------:|------:|{:-<43}|-----:|------:|{:-<27}|",
        "", "", ""
    );
    let mut as_expected = true;
    // All at once, as they do nothing but wait; each row is printed when it and those before it are over.
    let rows = stages
        .iter()
        .map(|(plain, ours)| join(plain.play(&client), ours.play(&client)));
    let mut rows = rows.collect::<FuturesOrdered<_>>();
    let mut situations = SITUATIONS.iter();
    while let (Some((plain, ours)), Some(situation)) = (rows.next().await, situations.next()) {
        println!(
            "| {:<46} | {:>5} | {:.1} s | {:<41} | {:>4} | {:.1} s | {:<25} |",
            situation.name,
            plain.calls,
            plain.took.as_secs_f32(),
            plain.got,
            ours.calls,
            ours.took.as_secs_f32(),
            ours.got
        );
        if ours.calls > situation.calls {
            as_expected = false;
            eprintln!(
                "{}: ours called {} times, more than {}",
                situation.name, ours.calls, situation.calls
            );
        }
    }
    Ok(as_expected)
}
