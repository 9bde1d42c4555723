//! `--demo-load`: simulated agents that call the gateway as agents do, over sockets.
//!
//! The operator's page then has something to show: runs that work, fall back, stall, crawl, loop, delegate
//! and meet their caps. What each agent does depends on counters alone, so that two starts look alike.

use std::{fmt::Write as _, net::SocketAddr, time::Duration};

use http::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tower::ServiceExt;
use tower_agent::{BoxError, ReplayBody, config::ConfigError};
use tower_agent_hyper::{HyperService, UpstreamProxy};

use crate::{
    background::spawn_background,
    config::Config,
    http_client::{Roots, http_client, read_at_most},
};

/// The variable that the configuration names; the keys are here, and not in the environment.
const KEYS: &str = "DEMO_KEYS";

/// The most bytes of an answer that an agent reads.
const MOST: usize = 1 << 20;

/// The time between the starts of two agents.
const STAGGER: Duration = Duration::from_millis(250);

/// How often the cooldowns are cleared: they grow with each failure, and the page would show fewer and fewer.
const CLEARED_EVERY: Duration = Duration::from_secs(45);

/// The agents: a name, which is the owner of its runs, how many of it there are, and what they do.
const AGENTS: [(&str, u32, Habit); 9] = [
    ("coder", 4, Habit::Works),
    ("support", 2, Habit::FallsBack),
    ("tester", 2, Habit::Stalls),
    ("research", 2, Habit::Crawls),
    ("reviewer", 1, Habit::Loops),
    ("batch", 1, Habit::MeetsItsCap),
    ("nightly", 2, Habit::WaitsAtItsCap),
    ("planner", 1, Habit::Delegates),
    ("chat", 1, Habit::Leaves),
];

/// The candidates, and the simulated model of each; the first one serves where another fails.
///
/// A candidate that fails rests for a while, so that there are several of a kind.
const CANDIDATES: [(&str, &str); 14] = [
    ("fast", "sim-healthy"),
    ("careful", "sim-slow"),
    ("polling", "sim-polling"),
    ("failing", "sim-failing"),
    ("overloaded", "sim-overloaded"),
    ("limited", "sim-rate-limited"),
    ("refusing", "sim-refusing"),
    ("cut", "sim-cut"),
    ("mute", "sim-stall-head"),
    ("stalling-1", "sim-stall-stream"),
    ("stalling-2", "sim-stall-stream"),
    ("crawling-1", "sim-slow"),
    ("crawling-2", "sim-slow"),
    ("crawling-3", "sim-slow"),
];

/// What an agent does in each of its runs.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Takes some turns and says that it is done.
    Works,
    /// Asks models that fail, so that another one serves.
    FallsBack,
    /// Asks models that fall silent, are cut, or refuse.
    Stalls,
    /// Asks a model that is too slow.
    Crawls,
    /// Calls the same tool with the same arguments again and again.
    Loops,
    /// Takes one turn more than it may.
    MeetsItsCap,
    /// The same, of an agent whose runs wait for the operator.
    WaitsAtItsCap,
    /// Has sub-agents.
    Delegates,
    /// Leaves before its answer is complete.
    Leaves,
}

/// The configuration of a gateway with simulated agents in front of the simulated upstream.
///
/// # Errors
///
/// None in practice, as of [`config`](super::config).
pub fn config(upstream: SocketAddr) -> Result<Config, ConfigError> {
    let mut text = format!(
        "[run]\n\
         max_turn_time = \"3m\"\n\
         idle = \"25s\"\n\
         max_turns = 12\n\
         max_cost = 2.0\n\
         [attempt]\n\
         step_timeout = \"6s\"\n\
         first_token_timeout = \"4s\"\n\
         min_tokens_per_second = 1\n\
         over = \"12s\"\n\
         [retry]\n\
         base_delay = \"200ms\"\n\
         max_delay = \"1s\"\n\
         [fallback]\n\
         cooldown = true\n\
         [loops]\n\
         stop = 8\n\
         warn = 4\n\
         [auth]\n\
         keys_env = \"{KEYS}\"\n\
         [agents.batch]\n\
         max_turns = 4\n\
         [agents.nightly]\n\
         max_turns = 3\n\
         at_cap = \"pause\"\n"
    );
    for (name, model) in CANDIDATES {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "[[candidates]]\nname = \"{name}\"\nmodel = \"{model}\"\nbase_url = \"http://{upstream}/v1\"\n\
             price = {{ input = 800, output = 2400, cached_input = 80 }}\n"
        );
    }
    let keys = AGENTS.map(|(name, ..)| format!("{name}:{}", key(name)));
    let keys = keys.join(",");
    Config::resolve(&text, |variable| (variable == KEYS).then(|| keys.clone()))
        .map_err(|error| error.in_toml(&text).in_file("the demo's configuration"))
}

/// The key of an agent. It is not a secret: the demo serves this machine alone.
fn key(name: &str) -> String {
    format!("demo-{name}")
}

/// Starts the agents, which call the gateway at `address` until the runtime shuts down.
///
/// # Errors
///
/// If the HTTP client cannot be made.
pub fn spawn(address: SocketAddr) -> Result<(), BoxError> {
    let client = http_client(&UpstreamProxy::default(), Roots::IfAny)?;
    let on_call = OnCall {
        client: client.clone(),
        base: format!("http://{address}"),
    };
    spawn_background(on_call.clear_cooldowns());
    let mut start = Duration::ZERO;
    for (name, count, habit) in AGENTS {
        for number in 1..=count {
            let agent = Agent {
                client: client.clone(),
                base: format!("http://{address}"),
                name,
                number,
                habit,
            };
            let wait = start;
            start += STAGGER;
            spawn_background(async move {
                sleep(wait).await;
                agent.live().await;
            });
        }
    }
    Ok(())
}

/// What a user is told at the start.
#[must_use]
pub fn greeting(address: SocketAddr, upstream: SocketAddr) -> String {
    let names = AGENTS.map(|(name, ..)| name).join(", ");
    let example = AGENTS[0].0;
    format!(
        "upstream counts at http://{upstream}/stats\n\n\
         Simulated agents are at work: {names}.\n\n  \
         # what they do, and the buttons\n  \
         http://{address}/ui\n\n  \
         # the same on the command line\n  \
         tower-agent-gateway runs --url http://{address} --watch\n\n\
         An SDK of yours beside them:\n\n  \
         export OPENAI_BASE_URL=http://{address}/v1 OPENAI_API_KEY={}\n",
        key(example)
    )
}

/// A simulated operator, who has the upstreams repaired now and then.
struct OnCall {
    client: HyperService,
    base: String,
}

impl OnCall {
    async fn clear_cooldowns(self) {
        loop {
            sleep(CLEARED_EVERY).await;
            for (name, _) in CANDIDATES {
                let request = Request::post(format!("{}/cooldowns/{name}/clear", self.base));
                if let Ok(request) = request.body(ReplayBody::default()) {
                    let _ = self.client.clone().oneshot(request).await;
                }
            }
        }
    }
}

/// A simulated agent.
struct Agent {
    client: HyperService,
    base: String,
    name: &'static str,
    number: u32,
    habit: Habit,
}

/// What became of a turn.
enum SimulatedTurn {
    Served(Value),
    /// The upstream failed, and the run may go on.
    Failed,
    /// The run is over, or waits for the operator for longer than the agent does.
    Over,
}

impl Agent {
    /// Has one run after another.
    async fn live(&self) {
        for round in 0_u32.. {
            let run = format!("{}-{}.{round}", self.name, self.number);
            let session = format!("{}-{}", self.name, self.number);
            match self.habit {
                Habit::Works => self.work(&run, &session, round).await,
                Habit::FallsBack => {
                    let models = ["failing", "overloaded", "limited"];
                    self.take_turns(&run, &session, &models, round, 3).await;
                }
                Habit::Stalls => {
                    let models = ["stalling-1", "mute", "cut", "stalling-2", "refusing"];
                    self.take_turns(&run, &session, &models, round + self.number, 1)
                        .await;
                }
                Habit::Crawls => {
                    self.take_turns(
                        &run,
                        &session,
                        &["crawling-1", "crawling-2", "crawling-3"],
                        round,
                        2,
                    )
                    .await
                }
                Habit::Loops => self.call_again_and_again(&run, &session).await,
                Habit::MeetsItsCap | Habit::WaitsAtItsCap => {
                    self.take_turns(&run, &session, &["fast"], round, u32::MAX)
                        .await;
                }
                Habit::Delegates => self.delegate(round).await,
                Habit::Leaves => {
                    let chat = [user("Hello")];
                    let whole = self.turn(&run, &session, "careful", &chat, true);
                    let _ = timeout(Duration::from_secs(5), whole).await;
                }
            }
            sleep(Duration::from_secs(4)).await;
        }
    }

    /// A run that goes well: some turns of some seconds, with time for tools between them.
    async fn work(&self, run: &str, session: &str, round: u32) {
        let turns = 3 + (round + self.number) % 5;
        for turn in 0..turns {
            let is_quick = (turn + self.number) % 3 == 0;
            let model = if is_quick { "fast" } else { "careful" };
            let chat = [user(&format!("Step {turn} of the task"))];
            // An answer of `careful` that does not stream takes 3 s.
            if let SimulatedTurn::Over = self.turn(run, session, model, &chat, is_quick).await {
                return;
            }
            sleep(Duration::from_millis(700 * u64::from(1 + turn % 4))).await;
        }
        self.complete(run).await;
    }

    /// Turns with these models in turn, until the run is over.
    async fn take_turns(&self, run: &str, session: &str, models: &[&str], round: u32, turns: u32) {
        for turn in 0..turns {
            let at = (round as usize + turn as usize) % models.len();
            let chat = [user(&format!("Item {turn}"))];
            if let SimulatedTurn::Over = self.turn(run, session, models[at], &chat, true).await {
                return;
            }
            sleep(Duration::from_secs(2)).await;
        }
        self.complete(run).await;
    }

    /// The history grows by the same call and the same result each time.
    async fn call_again_and_again(&self, run: &str, session: &str) {
        let mut chat = vec![user("Is the build done?")];
        loop {
            let answer = match self.turn(run, session, "polling", &chat, false).await {
                SimulatedTurn::Served(answer) => answer,
                SimulatedTurn::Failed => {
                    sleep(Duration::from_secs(2)).await;
                    continue;
                }
                SimulatedTurn::Over => return,
            };
            let said = &answer["choices"][0]["message"];
            let id = &said["tool_calls"][0]["id"];
            let result = json!({ "role": "tool", "tool_call_id": id, "content": "still running" });
            chat.extend([said.clone(), result]);
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// A main agent and its sub-agents, which name themselves as Claude Code does.
    async fn delegate(&self, round: u32) {
        let session = format!(
            "{:08x}-0000-4000-8000-000000000000",
            0x5f3a_c1d9_u32.wrapping_add(round)
        );
        let words = format!("Plan release {round}");
        for _ in 0..3 {
            let main = self.message(&session, None, &words);
            let tests = self.message(&session, Some("tests"), "Run the tests");
            let notes = self.message(&session, Some("notes"), "Write the notes");
            // The sub-agents begin while the call of the main agent is under way.
            let below = async {
                sleep(Duration::from_millis(500)).await;
                futures_util::future::join(tests, notes).await
            };
            futures_util::future::join(main, below).await;
            sleep(Duration::from_secs(2)).await;
        }
    }

    async fn message(&self, session: &str, agent: Option<&str>, words: &str) {
        let body = json!({
            "model": "careful", "max_tokens": 1000, "messages": [user(words)],
        });
        let mut request = self
            .request("/v1/messages")
            .header("x-claude-code-session-id", session);
        if let Some(agent) = agent {
            request = request.header("x-claude-code-agent-id", format!("{agent}-{session}"));
        }
        let Ok(request) = request.body(ReplayBody::from(body.to_string())) else {
            return;
        };
        let _ = self.send(request).await;
    }

    /// One request of a run; a refusal that asks to come back later is obeyed.
    async fn turn(
        &self,
        run: &str,
        session: &str,
        model: &str,
        chat: &[Value],
        stream: bool,
    ) -> SimulatedTurn {
        let mut body = json!({ "model": model, "messages": chat, "stream": stream });
        if stream {
            body["stream_options"] = json!({ "include_usage": true });
        }
        if model == "polling" {
            let parameters = json!({ "type": "object", "properties": {} });
            let function = json!({ "name": "build_status", "parameters": parameters });
            body["tools"] = json!([{ "type": "function", "function": function }]);
        }
        loop {
            let request = self.request("/v1/chat/completions");
            let request = request
                .header("x-run-id", run)
                .header("x-session-id", session);
            let Ok(request) = request.body(ReplayBody::from(body.to_string())) else {
                return SimulatedTurn::Over;
            };
            let Ok((status, is_over, answer)) = self.send(request).await else {
                sleep(Duration::from_secs(2)).await;
                return SimulatedTurn::Failed;
            };
            match status {
                _ if is_over => return SimulatedTurn::Over,
                StatusCode::SERVICE_UNAVAILABLE => sleep(Duration::from_secs(3)).await,
                _ if status.is_success() => return SimulatedTurn::Served(answer),
                _ => return SimulatedTurn::Failed,
            }
        }
    }

    /// Says that the run is done.
    async fn complete(&self, run: &str) {
        let request = self.request(&format!("/v1/runs/{run}/complete"));
        if let Ok(request) = request.body(ReplayBody::default()) {
            let _ = self.send(request).await;
        }
    }

    fn request(&self, path: &str) -> http::request::Builder {
        Request::post(format!("{}{path}", self.base))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {}", key(self.name)))
    }

    /// The status, whether the run is over, and the body if it is JSON.
    async fn send(
        &self,
        request: Request<ReplayBody>,
    ) -> Result<(StatusCode, bool, Value), BoxError> {
        let answer = self.client.clone().oneshot(request).await?;
        let status = answer.status();
        let is_over = answer.headers().contains_key("x-terminal-reason");
        let body = read_at_most(answer.into_body(), MOST).await?;
        let body = body.unwrap_or_default();
        let answer = serde_json::from_slice(&body).unwrap_or_default();
        Ok((status, is_over, answer))
    }
}

fn user(words: &str) -> Value {
    json!({ "role": "user", "content": words })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_configuration_can_be_used() {
        let config = config(([127, 0, 0, 1], 1).into()).unwrap();
        let warnings: Vec<_> = config.warnings().map(|it| it.to_string()).collect();
        assert_eq!(warnings, [""; 0]);
        assert_eq!(config.auth.unwrap().keys.len(), AGENTS.len());
    }
}
