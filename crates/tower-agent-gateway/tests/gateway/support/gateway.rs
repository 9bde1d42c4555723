use std::{
    net::SocketAddr,
    process::{ExitStatus, Stdio},
};

use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use tokio::process::Command;

use super::Config;
use crate::net::{Ask, CHAT, Process, Streaming, chat, eventually, within};

/// The gateway as a process that listens; it is killed at the drop.
pub(crate) struct Gateway {
    pub(crate) process: Process,
    client: reqwest::Client,
    pub(crate) addr: SocketAddr,
    /// Where the simulated upstream counts, of a gateway that brought one along.
    stats: Option<String>,
    /// The gateway whose simulated upstream this one asks.
    simulator: Option<Box<Self>>,
}

impl Gateway {
    /// Starts one in front of the simulated upstream that it brings along.
    pub(crate) async fn embedded() -> Self {
        let mut gateway = Self::listening("127.0.0.1:0", &[], &[]).await;
        let stats = gateway.process.line_after("upstream counts at ").await;
        gateway.stats = Some(stats);
        gateway
    }

    /// Starts one with simulated agents.
    pub(crate) async fn demo_load() -> Self {
        Self::listening("127.0.0.1:0", &["--demo-load"], &[]).await
    }

    /// Starts one with a simulated model that cannot fall back.
    ///
    /// Its limits are those of the embedded configuration.
    pub(crate) async fn alone(model: &str) -> Self {
        let limits = "[attempt]\nstep_timeout = \"2s\"\nfirst_token_timeout = \"5s\"";
        Self::simulated(limits, &[model]).await
    }

    /// Starts one with simulated models in this order, behind these settings.
    pub(crate) async fn simulated(settings: &str, models: &[&str]) -> Self {
        let simulator = Self::embedded().await;
        let config = Config::new(settings).candidates(models, simulator.simulated_upstream());
        let mut gateway = config.start().await;
        gateway.simulator = Some(Box::new(simulator));
        gateway
    }

    /// The simulated upstream of one that brought it along.
    pub(crate) fn simulated_upstream(&self) -> SocketAddr {
        let stats = self.stats.as_deref().unwrap();
        let upstream = stats.strip_prefix("http://").unwrap();
        upstream.strip_suffix("/stats").unwrap().parse().unwrap()
    }

    /// Starts one that cannot work: the lines that it leaves on stderr.
    pub(crate) async fn refused(args: &[&str]) -> Vec<String> {
        let (status, [said, told]) = Self::printed(args, &[]).await;
        assert_eq!(status, Some(1), "{told}");
        assert_eq!(said, "", "it says that it listens");
        told.lines().map(str::to_owned).collect()
    }

    /// Starts one that ends by itself: its exit status, and all of stdout and stderr.
    pub(crate) async fn printed(
        args: &[&str],
        env: &[(String, String)],
    ) -> (Option<i32>, [String; 2]) {
        let mut command = command(args, env);
        let output = within(command.kill_on_drop(true).output()).await.unwrap();
        let texts = [output.stdout, output.stderr];
        let texts = texts.map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), texts)
    }

    /// Starts one, and waits until it listens.
    pub(super) async fn listening(address: &str, args: &[&str], env: &[(String, String)]) -> Self {
        let args = [args, &["--listen", address]].concat();
        Self::started(&mut command(&args, env)).await
    }

    /// Starts one in a shell that has run this command before, and waits until it listens.
    pub(super) async fn listening_limited(
        limit: &str,
        args: &[&str],
        env: &[(String, String)],
    ) -> Self {
        let mut shell = Command::new("sh");
        let limited = format!("{limit}; exec \"$0\" \"$@\"");
        shell.args(["-c", &limited, env!("CARGO_BIN_EXE_tower-agent-gateway")]);
        shell.args(["--listen", "127.0.0.1:0"]);
        let env = env.iter().map(|(name, value)| (name, value));
        Self::started(shell.args(args).envs(env).stdin(Stdio::null())).await
    }

    async fn started(command: &mut Command) -> Self {
        let process = Process::start(command);
        let addr = process.line_after("listening on http://").await;
        let mut addr: SocketAddr = addr.parse().unwrap();
        if addr.ip().is_unspecified() {
            addr.set_ip([127, 0, 0, 1].into());
        }
        // A connection for each request.
        let client = reqwest::Client::builder().no_proxy();
        Self {
            process,
            client: client.pool_max_idle_per_host(0).build().unwrap(),
            addr,
            stats: None,
            simulator: None,
        }
    }

    /// How many requests for a model the simulated upstream has seen.
    pub(crate) async fn simulated_calls(&self, model: &str) -> u64 {
        self.simulated_count(model, "started").await
    }

    /// A count that the simulated upstream has of a model's requests.
    pub(crate) async fn simulated_count(&self, model: &str, count: &str) -> u64 {
        let simulator = self.simulator.as_deref().unwrap_or(self);
        let stats = self.client.get(simulator.stats.as_deref().unwrap());
        let stats = stats.ask().await.json();
        stats["by_model"][model][count].as_u64().unwrap_or(0)
    }

    /// A request on a connection of its own.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client
            .request(method, format!("http://{}{path}", self.addr))
    }

    /// A `GET` request.
    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    /// A `POST` request whose body is declared as JSON.
    pub(crate) fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        self.request(Method::POST, path)
            .header("content-type", "application/json")
            .body(body)
    }

    /// The JSON of a `GET` that must succeed.
    pub(crate) async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).ask().await;
        assert_eq!(answer.status, 200);
        answer.json()
    }

    /// Aborts the runs of a known id, as an operator, and returns whether one was live.
    pub(crate) async fn abort(&self, id: &str) -> bool {
        let answer = self.post(&format!("/runs/{id}/abort"), "").ask().await;
        assert_eq!(answer.status, 200, "{id}");
        answer.json()["aborted"].as_bool().unwrap()
    }

    /// The reason of a run; `null` while the run is open.
    pub(crate) async fn reason(&self, id: &str) -> Value {
        self.json(&format!("/runs/{id}")).await["reason"].clone()
    }

    /// The reason of the only run, once it is over.
    pub(crate) async fn only_reason(&self) -> String {
        eventually(async || {
            let runs = self.json("/runs").await;
            runs["runs"][0]["reason"].as_str().map(str::to_owned)
        })
        .await
    }

    /// The value of a series of `/metrics`, if it is there.
    pub(crate) async fn metric(&self, series: &str) -> Option<f64> {
        let metrics = self.get("/metrics").ask().await;
        let mut lines = metrics.text().lines();
        lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    /// Opens a stream of one token that then stays open, of this owner, run and session.
    pub(crate) async fn open_stream(&self, owner: &str, run: &str, session: &str) -> Streaming {
        let request = self.post(CHAT, chat("stall")).bearer_auth(owner);
        let request = request.header("x-run-id", run);
        request.header("x-session-id", session).open().await
    }

    /// All that the gateway logged so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// The records of ended runs so far: all that was printed as JSON.
    pub(crate) fn records(&self) -> Vec<Value> {
        let printed = self.process.printed();
        let records = printed.iter().filter(|line| line.starts_with('{'));
        records
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Waits for the end of the process.
    pub(crate) async fn exit_status(&mut self) -> ExitStatus {
        self.process.exit_status().await
    }
}

fn command(args: &[&str], env: &[(String, String)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tower-agent-gateway"));
    let env = env.iter().map(|(name, value)| (name, value));
    command.args(args).envs(env).stdin(Stdio::null());
    command
}
