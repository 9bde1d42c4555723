//! The gateway without a configuration file, in front of a simulated upstream.

pub mod load;

use std::{fmt::Write as _, io, net::SocketAddr};

use tower_agent::config::ConfigError;
use tower_agent_simulator::MODELS;

use crate::config::Config;

/// Commands that meet the cap on turns; the gateway is at `ADDRESS`.
const CAPPED: &str = r##"  # an agent that never stops: turn 21 of a run is refused
  for turn in $(seq 21); do
    curl -s http://ADDRESS/v1/chat/completions -H 'content-type: application/json' -H 'x-run-id: endless' \
      -d '{"model":"sim-healthy","messages":[{"role":"user","content":"go on"}]}' | tail -c 150; echo
  done
"##;

/// Commands of an agent that goes in circles, and sends what it has seen as agents do.
const LOOPING: &str = r##"  # an agent that polls a tool: its run ends when the same result came 10 times
  m='{"role":"user","content":"is it done?"}'
  for turn in $(seq 11); do
    curl -s http://ADDRESS/v1/chat/completions -H 'content-type: application/json' -H 'x-run-id: polling' -d '{
      "model":"sim-polling","tools":[{"type":"function","function":{"name":"status"}}],"messages":['"$m"']}' |
      tail -c 250; echo
    call='{"id":"c'$turn'","type":"function","function":{"name":"status","arguments":"{}"}}'
    m="$m"',{"role":"assistant","tool_calls":['"$call"']},'
    m="$m"'{"role":"tool","tool_call_id":"c'$turn'","content":"not yet"}'
  done
"##;

/// Starts the simulated upstream on a free loopback port, and returns its address.
///
/// The upstream serves until the runtime shuts down.
///
/// # Errors
///
/// If no port can be bound.
pub async fn spawn() -> io::Result<SocketAddr> {
    tower_agent_simulator::spawn().await
}

/// The configuration of a gateway in front of the simulated upstream.
///
/// The limits on silence are short, so that a silent attempt ends within seconds. A run has at most 20
/// turns, and ends when it got the same result of the same tool call 10 times. Each simulated model is
/// a candidate, the healthy one first.
///
/// # Errors
///
/// None in practice: the configuration is parsed as a file would be, and is valid.
pub fn config(upstream: SocketAddr) -> Result<Config, ConfigError> {
    let mut text = String::from(
        "[run]\n\
         max_turn_time = \"5m\"\n\
         max_turns = 20\n\
         [loops]\n\
         warn = 5\n\
         stop = 10\n\
         [attempt]\n\
         step_timeout = \"2s\"\n\
         first_token_timeout = \"5s\"\n\
         [retry]\n\
         base_delay = \"100ms\"\n\
         max_delay = \"1s\"\n",
    );
    for model in MODELS {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "[[candidates]]\nmodel = \"{model}\"\nbase_url = \"http://{upstream}/v1\"\n"
        );
    }
    Config::parse(&text, "the embedded configuration")
}

/// Commands that show a gateway at `address` at work, for a user to paste.
#[must_use]
pub fn greeting(address: SocketAddr, upstream: SocketAddr) -> String {
    let models = MODELS.join(", ");
    let ask = |why: &str, flags: &str, model: &str, stream: bool| {
        format!(
            "  # {why}\n  \
             curl {flags} http://{address}/v1/chat/completions -H 'content-type: application/json' \\\n    \
             -d '{{\"model\":\"{model}\",\"stream\":{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]}}'\n"
        )
    };
    let fallback = ask(
        "500 twice, then another model serves: see x-served-model and x-attempt",
        "-i",
        "sim-failing",
        false,
    );
    let silent = ask(
        "no answer: after 5 s another model serves",
        "-i",
        "sim-stall-head",
        false,
    );
    let cut = ask(
        "silent after the first tokens: an error event, and nothing is tried again",
        "-N",
        "sim-stall-stream",
        true,
    );
    let [capped, looping] = [CAPPED, LOOPING].map(|it| it.replace("ADDRESS", &address.to_string()));
    format!(
        "upstream counts at http://{upstream}/stats\n\n\
         In front of a simulated upstream, whose models are\n  {models}\n\n\
         Try:\n\n{fallback}{silent}{cut}{capped}{looping}  \
         # how each run ended, and what the upstream saw\n  \
         curl http://{address}/runs\n  \
         curl http://{upstream}/stats\n\n\
         The page of what runs:\n\n  \
         http://{address}/ui\n\n\
         Or with any SDK:\n\n  \
         export OPENAI_BASE_URL=http://{address}/v1 OPENAI_API_KEY=none\n  \
         export ANTHROPIC_BASE_URL=http://{address} ANTHROPIC_API_KEY=none\n"
    )
}
