//! One run of an agent as a time line: a slow model, a silent one, two tools, and a user who leaves.
//!
//! ```text
//! cargo run --example timeline                             # prints what happened
//! cargo run --example timeline -- docs/pictures            # writes the two pictures of the README
//! cargo run --example timeline -- --check docs/pictures    # fails if they are not what it draws now
//! ```
//!
//! The layers are real. The models are functions and tokio's clock is paused, so that a minute takes no
//! time and the program draws the same picture each time.

#[path = "timeline/drawing.rs"]
mod drawing;
#[path = "timeline/model.rs"]
mod model;

use std::{
    fs,
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep, timeout};
use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{
    AgentStack, BoxError, Candidate, ClientDisconnectLayer, RetryBudget, Run,
    attempt::AttemptSummary,
};

use self::drawing::{Bar, draw};

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [] => play().await.map(|bars| print(&bars)),
        ["--check", folder] => pictures(Path::new(folder), true).await,
        [folder] => pictures(Path::new(folder), false).await,
        _ => Err("usage: timeline [[--check] FOLDER]".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("timeline: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(bars: &[Bar]) {
    for bar in bars {
        let (from, to) = (bar.from.as_secs_f32(), bar.to.as_secs_f32());
        println!("{from:5.1} s to {to:5.1} s  {:6} {}", bar.row, bar.text);
    }
}

/// Writes the pictures, or compares them with those that are there.
async fn pictures(folder: &Path, compares: bool) -> Result<(), BoxError> {
    let bars = play().await?;
    for name in ["light", "dark"] {
        let path = folder.join(format!("timeline-{name}.svg"));
        let picture = draw(&bars, name == "dark");
        if !compares {
            fs::write(path, picture)?;
        } else if fs::read_to_string(&path)? != picture {
            let path = path.display();
            return Err(format!("{path} is not what the run draws: write it anew").into());
        }
    }
    Ok(())
}

/// Three turns of an agent with two tools between them. The user closes the tab in the third turn.
async fn play() -> Result<Vec<Bar>, BoxError> {
    let began = Instant::now();
    let bars = Arc::new(Mutex::new(Vec::new()));
    let add = {
        let bars = Arc::clone(&bars);
        move |bar| {
            bars.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(bar)
        }
    };
    let tried = {
        let add = add.clone();
        move |tried: &AttemptSummary| add(Bar::of_attempt(tried, began.elapsed()))
    };
    let stack = AgentStack::client()
        .ceiling(Duration::from_secs(600))
        .first(Duration::from_secs(10))
        .step(Duration::from_secs(10))
        .fallback([Candidate::new("large"), Candidate::new("small")])
        .retry(RetryBudget::new().max_attempts_per_candidate(1))
        .after_attempt(tried)
        .service(model::Models::default());
    let calls = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .service(stack);

    let run = Run::open();
    for (turn, tool) in [(1, Some("search")), (2, Some("book")), (3, None)] {
        let ask = format!(r#"{{"model":"large","stream":true,"turn":{turn}}}"#);
        let ask = Request::post("/v1/chat/completions").body(Full::from(ask))?;
        let answer = calls.clone().oneshot(run.attach(ask)).await?;
        let whole = answer.into_body().collect();
        let Some(tool) = tool else {
            // The user closes the tab: the program drops the answer.
            drop(timeout(Duration::from_secs(7), whole).await);
            break;
        };
        whole.await?;
        let from = began.elapsed();
        let work = async {
            sleep(Duration::from_secs(6)).await;
            Ok::<_, BoxError>(())
        };
        run.tool(tool).call(work).await?;
        add(Bar::of_tool(tool, from, began.elapsed()));
    }
    // Whatever might still follow has a minute to do so.
    sleep(Duration::from_secs(60)).await;
    let bars = std::mem::take(&mut *bars.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(bars)
}
