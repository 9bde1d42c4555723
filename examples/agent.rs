//! A small agent: model calls and tools under one run, which ends once and for
//! all of them.
//!
//! ```text
//! cargo run --all-features --example agent
//! ```
//!
//! The model is a service in this process that asks for one tool after the
//! other. The third tool hangs: its own window stops it, and the agent goes on
//! without. Then somebody aborts the run in the middle of a call.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Service, ServiceBuilder, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, Run, Scope, StepTimeoutLayer, TerminalReason, ToolError,
};

const TOOLS: [&str; 3] = ["list_files", "read_file", "search"];

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let run = Run::open();
    let mut model = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(Duration::from_secs(60)).scope(Scope::Run))
        .layer(StepTimeoutLayer::new(Duration::from_secs(2)))
        .service(service_fn(think));

    for turn in 0..TOOLS.len() {
        let request = run.attach(Request::new(turn));
        let answer = model
            .call(request)
            .await?
            .into_body()
            .collect()
            .await?
            .to_bytes();
        let name = TOOLS[usize::from(answer[0])];
        match run
            .tool(name)
            .window(Duration::from_millis(200))
            .call(work(name))
            .await
        {
            Ok(result) => println!("turn {turn}: {name} says {result}"),
            Err(ToolError::Terminated(end)) => println!("turn {turn}: {name}: {}", end.message()),
            Err(error) => println!("turn {turn}: {name}: {error}"),
        }
    }

    // Somebody presses stop while the model thinks for ever.
    let stop = run.clone();
    let stopped = async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.end(TerminalReason::Aborted);
    };
    let (answer, ()) = tokio::join!(model.call(run.attach(Request::new(usize::MAX))), stopped);
    let error = answer.err().ok_or("the call outlived its run")?;
    println!("last call: {error}");

    // Nothing starts under a run that is over.
    let late = run.tool("read_file").call(work("read_file")).await;
    println!(
        "a late tool: {}",
        late.err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    );
    println!("{}", serde_json::to_string_pretty(&run.snapshot())?);
    Ok(())
}

/// Names the next tool, by its number.
async fn think(request: Request<usize>) -> Result<Response<Full<Bytes>>, Infallible> {
    let turn = *request.body();
    if turn >= TOOLS.len() {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(Response::new(Full::new(Bytes::from(vec![turn as u8]))))
}

async fn work(tool: &'static str) -> Result<&'static str, String> {
    match tool {
        "list_files" => Ok("notes.md"),
        "read_file" => Err("notes.md is not readable".to_owned()),
        _ => std::future::pending().await,
    }
}
