//! Public reports of what upstreams send, each played against a gateway as a process.
//!
//! `tests/field/README.md` says how a report becomes a case. `FIELD_CASES` names another folder
//! of cases, or a single one.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod answer;
mod case;
mod check;
mod healthy;
#[path = "../../../../tests/support/net/mod.rs"]
mod net;
mod play;
mod read;
#[allow(dead_code, unused_imports, reason = "this target uses a part of it")]
#[path = "../gateway/support/mod.rs"]
mod support;

use std::{
    panic::AssertUnwindSafe,
    path::PathBuf,
    time::{Duration, Instant},
};

use futures_util::{FutureExt, StreamExt, stream};

use self::{case::Case, play::Outcome};

/// How many cases play at a time: a case mostly waits for its gateway to start.
const AT_A_TIME: usize = 16;

/// The longest that one case may take.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn each_report_is_judged_by_its_cause() {
    let folder = std::env::var_os("FIELD_CASES").map_or_else(cases, PathBuf::from);
    let (cases, mistakes) = read::folder(&folder);
    for mistake in &mistakes {
        println!("MISTAKE {mistake}");
    }
    // Several providers may be linked in; reqwest needs one chosen.
    drop(rustls::crypto::ring::default_provider().install_default());
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let [mut held, mut open] = [0; 2];
    let mut failed = Vec::new();
    runtime.block_on(async {
        let played = stream::iter(cases).map(|case| async move {
            let outcome = outcome(&case).await;
            (case, outcome)
        });
        let mut played = played.buffer_unordered(AT_A_TIME);
        while let Some((case, differences)) = played.next().await {
            let name = &case.name;
            match (differences.is_empty(), case.open) {
                (true, false) => {
                    held += 1;
                    println!("ok      {name}");
                }
                (true, true) => {
                    failed.push(format!("{name}\n          it holds: remove `open`"));
                }
                (false, true) => {
                    open += 1;
                    println!(
                        "open    {name}\n          {}",
                        differences.join("\n          ")
                    );
                }
                (false, false) => {
                    failed.push(format!(
                        "{name}\n          {}",
                        differences.join("\n          ")
                    ));
                }
            }
        }
    });
    runtime.shutdown_background();
    // At the end, where an excerpt of the output has them.
    for failure in &failed {
        println!("FAILED  {failure}");
    }
    println!(
        "{held} hold, {open} are known not to hold, {} failed, {} files have mistakes: {:.1} s",
        failed.len(),
        mistakes.len(),
        began.elapsed().as_secs_f32()
    );
    assert!(
        held + open + failed.len() > 0,
        "no case in {}",
        folder.display()
    );
    assert_eq!(
        (failed.len(), mistakes.len()),
        (0, 0),
        "failed, and mistakes"
    );
}

/// Plays a case; a panic is a difference too.
async fn outcome(case: &Case) -> Outcome {
    let playing = AssertUnwindSafe(play::play(case)).catch_unwind();
    match tokio::time::timeout(PATIENCE, playing).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => {
            let said = panic.downcast_ref::<String>().map(String::as_str);
            let said = said.or_else(|| panic.downcast_ref::<&str>().copied());
            vec![format!("could not be played: {}", said.unwrap_or_default())]
        }
        Err(_) => vec![format!("the case takes longer than {PATIENCE:?}")],
    }
}

fn cases() -> PathBuf {
    PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/field/cases"
    ))
}
