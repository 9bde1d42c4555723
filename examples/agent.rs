//! An agent: a loop of model calls and tools under one run, in front of a gateway
//! that caps what the loop may do.
//!
//! ```text
//! cargo run --all-features --example agent
//! cargo run --all-features --example agent -- --stuck
//! cargo run --all-features --example agent -- --gateway http://127.0.0.1:8787
//! ```
//!
//! The first plays a whole task: tools, and then an answer. With `--stuck` the
//! model asks for the same tool for ever, as models do. The agent goes along with
//! it, and the gateway ends the run at its cap, whatever the agent sends after that;
//! the record of that end is printed, and the exit status is 122, as of any process
//! whose run hit a limit.
//!
//! Without `--gateway` it brings a small one along, and a simulated model behind it.

#[path = "agent/gateway.rs"]
mod gateway;
#[path = "agent/model.rs"]
mod model;
#[path = "agent/tools.rs"]
mod tools;

use std::{process::ExitCode, time::Duration};

use serde_json::json;
use tower_agent::{BoxError, Run};

use self::model::{ChatModel, GatewayRefusal, Reply};

/// The simulated model that asks for each tool once, and the one that polls for ever.
const AGENT: &str = "sim-agent";
const POLLING: &str = "sim-polling";

/// The longest that anything may be silent.
const SILENCE: Duration = Duration::from_secs(10);

/// The longest that a model call may take.
const CALL_LIMIT: Duration = Duration::from_secs(60);

/// How often the agent would go round by itself: the number of the field's report.
const ROUNDS: usize = 103;

const USAGE: &str = "usage: agent [--stuck] [--gateway URL]";

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let _ = rustls::crypto::ring::default_provider().install_default();
    match start().await {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(refusal)) => {
            let reason = refusal.reason.as_deref().unwrap_or("refused");
            eprintln!("agent: {reason}: {}", refusal.message);
            ExitCode::from(refusal.exit_code())
        }
        Err(error) => {
            eprintln!("agent: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers why the agent had to stop, if it did.
async fn start() -> Result<Option<GatewayRefusal>, BoxError> {
    let (mut stuck, mut outside) = (false, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--stuck" => stuck = true,
            "--gateway" => outside = Some(args.next().ok_or("--gateway needs a URL")?),
            _ => return Err(format!("unknown argument {arg}\n{USAGE}").into()),
        }
    }
    let gateway = match outside {
        Some(url) => url,
        None => gateway::start().await?,
    };
    let model = match stuck {
        true => ChatModel::new(&gateway, POLLING)?,
        false => ChatModel::new(&gateway, AGENT)?,
    };
    let tools = match stuck {
        true => tools::declared(&["poll_job"]),
        false => tools::declared(&["list_files", "read_file"]),
    };
    work(&Run::open(), &model, &tools).await
}

/// The loop. It has no cap of its own that is worth the name, and needs none.
async fn work(
    run: &Run,
    model: &ChatModel,
    tools: &serde_json::Value,
) -> Result<Option<GatewayRefusal>, BoxError> {
    let mut history = vec![json!({"role": "user", "content": "When is the meeting?"})];
    for round in 1..=ROUNDS {
        match model.ask(run, &history, tools).await? {
            Reply::Text(text) => {
                println!("answer: {text}");
                return Ok(None);
            }
            Reply::Tools { said, calls } => {
                println!("turn {round}:");
                history.push(said);
                history.extend(tools::run(run, &calls).await);
            }
            Reply::Refused(refusal) => {
                // It is over, and stays so: one more try shows it.
                let again = model.ask(run, &history[..1], tools).await?;
                if !matches!(again, Reply::Refused(_)) {
                    return Err("a run that was over went on".into());
                }
                return Ok(Some(refusal));
            }
        }
    }
    Err("nobody stopped it".into())
}
