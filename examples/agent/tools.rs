//! What the agent can do.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use tower_agent::{Run, ToolError};

use crate::{SILENCE, model::WantedTool};

/// As the model is told of them.
pub(crate) fn declared(names: &[&str]) -> Value {
    let tool = |name: &&str| {
        json!({"type": "function", "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {}},
        }})
    };
    names.iter().map(tool).collect()
}

/// Runs what the model asked for side by side: it is one turn, however many there
/// are. Each becomes a message of the history, a failure too.
pub(crate) async fn run(run: &Run, calls: &[WantedTool]) -> Vec<Value> {
    let results = calls.iter().map(async |call| {
        let name = call.function.name.clone();
        let arguments: Value = serde_json::from_str(&call.function.arguments).unwrap_or_default();
        let tool = run.tool(name.clone()).window(SILENCE);
        // With them the run itself notices when the agent goes in circles.
        let tool = tool.arguments(&arguments);
        let said = match tool.call(work(&name)).await {
            Ok(said) => said.to_owned(),
            Err(ToolError::Terminated(end)) => end.message(),
            Err(error) => error.to_string(),
        };
        println!("  {name}({}) says {said}", call.function.arguments);
        json!({"role": "tool", "tool_call_id": call.id, "content": said})
    });
    join_all(results).await
}

async fn work(name: &str) -> Result<&'static str, String> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    match name {
        "list_files" => Ok("notes.md"),
        "read_file" => Ok("The meeting is on Tuesday."),
        "poll_job" => Ok("still running"),
        _ => Err(format!("there is no tool {name}")),
    }
}
