//! The operator's command line: `runs`, `run`, `abort`, `freeze`, `thaw` and `candidates` of a gateway that
//! runs, by its routes.

mod client;
mod table;

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::time::sleep;
use tower_agent::BoxError;

use self::client::{OperatorClient, TokenArgs};
use crate::printing::print;

/// The time between two looks of `--watch`.
const WATCH: Duration = Duration::from_secs(2);

/// What an operator does with a gateway that runs.
#[derive(Debug, clap::Subcommand)]
pub enum OperatorCommand {
    /// Lists runs: open ones, those without progress for the longest time first.
    Runs(Listed),
    /// Shows a run: its end in a sentence, its work in flight and its last attempts.
    Run {
        /// The id of the run.
        id: String,
        /// Where the gateway is.
        #[command(flatten)]
        gateway: GatewayArgs,
    },
    /// Ends a run by its id, or with --yes all open runs that fit every flag.
    Abort(Abort),
    /// Raises the caps of a run; one that waits at its cap goes on.
    Extend(Extend),
    /// Holds the turns of a run; calls in flight go on.
    Pause(Named),
    /// Lets the turns of a run go on that a pause holds.
    Resume(Named),
    /// Refuses new runs: of everybody, or of one owner.
    Freeze(Whose),
    /// Admits new runs again.
    Thaw(Whose),
    /// Shows how each candidate fares.
    Candidates {
        /// Where the gateway is.
        #[command(flatten)]
        gateway: GatewayArgs,
    },
}

/// Where the gateway is, and how to print.
#[derive(Debug, clap::Args)]
pub struct GatewayArgs {
    /// The gateway.
    #[arg(long, env = "TOWER_AGENT_URL", default_value = "http://127.0.0.1:8787")]
    url: String,
    #[command(flatten)]
    token: TokenArgs,
    /// Prints what the gateway answers, as JSON.
    #[arg(long)]
    json: bool,
}

/// Whose runs are meant.
#[derive(Debug, clap::Args)]
struct Selected {
    /// Those of the NAME of a key, or of an owner as the log prints it.
    #[arg(long)]
    owner: Option<String>,
    /// Those of a session.
    #[arg(long)]
    session: Option<String>,
    /// Those that ask a candidate now.
    #[arg(long)]
    candidate: Option<String>,
}

impl Selected {
    const fn keys(&self) -> [(&'static str, Option<&String>); 3] {
        [
            ("owner", self.owner.as_ref()),
            ("session", self.session.as_ref()),
            ("candidate", self.candidate.as_ref()),
        ]
    }
}

/// Which runs to list.
#[derive(Debug, clap::Args)]
pub struct Listed {
    #[command(flatten)]
    gateway: GatewayArgs,
    /// The state of the runs.
    #[arg(long, value_parser = ["open", "ended", "all"], default_value = "open")]
    state: String,
    #[command(flatten)]
    selected: Selected,
    /// Those that ended for a reason; with --state ended or all.
    #[arg(long)]
    reason: Option<String>,
    /// The order.
    #[arg(long, value_parser = ["started", "silent", "spent", "turns", "oldest"], default_value = "silent")]
    sort: String,
    /// The most rows.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Those of all gateways of [replicas].
    #[arg(long)]
    replicas: bool,
    /// Prints them again every 2 s.
    #[arg(long)]
    watch: bool,
}

/// What to abort.
#[derive(Debug, clap::Args)]
pub struct Abort {
    #[command(flatten)]
    gateway: GatewayArgs,
    /// The id of a run.
    #[arg(conflicts_with_all = ["owner", "session", "candidate", "older_than", "all"])]
    id: Option<String>,
    #[command(flatten)]
    selected: Selected,
    /// Runs that are older, such as 1h.
    #[arg(long, value_name = "DURATION")]
    older_than: Option<String>,
    /// All open runs.
    #[arg(long)]
    all: bool,
    /// Ends them; without it only says which.
    #[arg(long)]
    yes: bool,
}

/// What to add to the caps of a run.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("more").required(true).multiple(true).args(["turns", "tokens", "cost", "time"])))]
pub struct Extend {
    /// The id of the run.
    id: String,
    /// So many more turns.
    #[arg(long)]
    turns: Option<u32>,
    /// So many more tokens, under each of the caps on tokens.
    #[arg(long)]
    tokens: Option<u64>,
    /// So much more cost.
    #[arg(long)]
    cost: Option<f64>,
    /// So much more time, such as 10m.
    #[arg(long, value_name = "DURATION")]
    time: Option<String>,
    /// Why, for the gateway's log.
    #[arg(long)]
    why: Option<String>,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// A run.
#[derive(Debug, clap::Args)]
pub struct Named {
    /// The id of the run.
    id: String,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// Whose new runs are meant.
#[derive(Debug, clap::Args)]
pub struct Whose {
    /// The NAME of a key, or `anonymous`; without it all.
    owner: Option<String>,
    #[command(flatten)]
    gateway: GatewayArgs,
}

impl OperatorCommand {
    /// Carries the command out, and prints what came of it.
    ///
    /// # Errors
    ///
    /// The gateway cannot be reached, refuses the request, or the output cannot be written. A reader of
    /// the output that has left is no error.
    pub async fn run(&self) -> Result<(), BoxError> {
        match self {
            Self::Runs(listed) => listed.run().await,
            Self::Run { id, gateway } => {
                let run = gateway
                    .client()?
                    .get(&format!("/runs/{}", encoded(id)))
                    .await?;
                gateway.print(&run, |out, run| table::detail(out, run))
            }
            Self::Abort(abort) => abort.run().await,
            Self::Extend(extend) => extend.run().await,
            Self::Pause(run) => run.post("pause", "paused").await,
            Self::Resume(run) => run.post("resume", "resumed").await,
            Self::Freeze(whose) => whose.set("PUT").await,
            Self::Thaw(whose) => whose.set("DELETE").await,
            Self::Candidates { gateway } => {
                let candidates = gateway.client()?.get("/candidates").await?;
                gateway.print(&candidates, |out, it| table::candidates(it).write(out))
            }
        }
    }
}

impl GatewayArgs {
    fn client(&self) -> Result<OperatorClient, BoxError> {
        OperatorClient::new(&self.url, &self.token)
    }

    fn print(
        &self,
        answer: &Value,
        text: impl Fn(&mut dyn Write, &Value) -> io::Result<()>,
    ) -> Result<(), BoxError> {
        self.print_on(answer, text).map(drop)
    }

    /// Prints an answer; returns whether the reader of the output is still there.
    fn print_on(
        &self,
        answer: &Value,
        text: impl Fn(&mut dyn Write, &Value) -> io::Result<()>,
    ) -> Result<bool, BoxError> {
        let printed = print(|out| match self.json {
            true => writeln!(out, "{answer:#}"),
            false => text(out, answer),
        });
        Ok(printed?)
    }
}

impl Listed {
    async fn run(&self) -> Result<(), BoxError> {
        let client = self.gateway.client()?;
        let path = self.path();
        let clears = self.watch && io::stdout().is_terminal();
        let mut is_first = true;
        loop {
            let list = client.get(&path).await?;
            if !is_first && !io::stdout().is_terminal() && !print(|out| writeln!(out))? {
                return Ok(());
            }
            is_first = false;
            let is_read = self.gateway.print_on(&list, |out, list| {
                if clears {
                    // Clears the screen.
                    write!(out, "\x1b[2J\x1b[H")?;
                }
                let runs = list["runs"].as_array().map_or(&[][..], Vec::as_slice);
                match runs.is_empty() {
                    true => writeln!(out, "no runs"),
                    false => table::runs(runs).write(out),
                }?;
                table::missing(out, list)
            })?;
            if !self.watch || !is_read {
                return Ok(());
            }
            sleep(WATCH).await;
        }
    }

    fn path(&self) -> String {
        let state = Some(&self.state).filter(|state| *state != "all");
        let own = [("state", state), ("reason", self.reason.as_ref())];
        let parameters = own.into_iter().chain(self.selected.keys());
        let given = parameters.filter_map(|(key, value)| Some((key, value?)));
        let given: String = given
            .map(|(key, value)| format!("&{key}={}", encoded(value)))
            .collect();
        let replicas = if self.replicas { "&replicas=all" } else { "" };
        format!(
            "/runs?sort={}&limit={}{given}{replicas}",
            self.sort, self.limit
        )
    }
}

impl Abort {
    async fn run(&self) -> Result<(), BoxError> {
        let client = self.gateway.client()?;
        if let Some(id) = &self.id {
            let answer = client
                .send("POST", &format!("/runs/{}/abort", encoded(id)), None)
                .await?;
            return self.gateway.print(&answer, |out, answer| {
                match answer["aborted"] == true {
                    true => writeln!(out, "aborted"),
                    false => writeln!(out, "it was over already"),
                }?;
                table::missing(out, answer)
            });
        }
        let mut body = json!({ "dry_run": !self.yes });
        let older_than = [("older_than", self.older_than.as_ref())];
        for (key, value) in older_than.into_iter().chain(self.selected.keys()) {
            if let Some(value) = value {
                body[key] = json!(value);
            }
        }
        if self.all {
            body["all"] = json!(true);
        }
        let answer = client.send("POST", "/abort", Some(&body)).await?;
        self.gateway.print(&answer, |out, answer| {
            let runs = answer["runs"].as_array().map_or(&[][..], Vec::as_slice);
            if !runs.is_empty() {
                table::aborted(runs).write(out)?;
            }
            let count = answer["count"].as_u64().unwrap_or(0);
            match (answer["dry_run"] == true, count) {
                (_, 0) => writeln!(out, "no open run fits"),
                (true, count) => writeln!(out, "{count} would be aborted: add --yes"),
                (false, count) => writeln!(out, "{count} aborted"),
            }?;
            table::missing(out, answer)
        })
    }
}

impl Extend {
    async fn run(&self) -> Result<(), BoxError> {
        let mut body = json!({});
        let numbers = [
            ("turns", self.turns.map(|it| json!(it))),
            ("tokens", self.tokens.map(|it| json!(it))),
            ("cost", self.cost.map(|it| json!(it))),
            ("time", self.time.as_ref().map(|it| json!(it))),
            ("why", self.why.as_ref().map(|it| json!(it))),
        ];
        for (key, value) in numbers {
            if let Some(value) = value {
                body[key] = value;
            }
        }
        let path = format!("/runs/{}/extend", encoded(&self.id));
        let answer = self.gateway.client()?;
        let answer = answer.send("POST", &path, Some(&body)).await?;
        changed(&self.gateway, &answer, "extended")
    }
}

impl Named {
    async fn post(&self, action: &str, done: &'static str) -> Result<(), BoxError> {
        let path = format!("/runs/{}/{action}", encoded(&self.id));
        let answer = self.gateway.client()?.send("POST", &path, None).await?;
        changed(&self.gateway, &answer, done)
    }
}

/// Prints whether a run was changed.
fn changed(gateway: &GatewayArgs, answer: &Value, done: &str) -> Result<(), BoxError> {
    gateway.print(answer, |out, answer| {
        match answer[done] == true {
            true => writeln!(out, "{done}"),
            false => writeln!(out, "not {done}: it is over, or that changes nothing"),
        }?;
        table::missing(out, answer)
    })
}

impl Whose {
    async fn set(&self, method: &str) -> Result<(), BoxError> {
        let path = match &self.owner {
            Some(owner) => format!("/freeze/{}", encoded(owner)),
            None => "/freeze".to_owned(),
        };
        let answer = self.gateway.client()?.send(method, &path, None).await?;
        self.gateway.print(&answer, |out, answer| {
            let owners = answer["owners"].as_array().map_or(&[][..], Vec::as_slice);
            let names: Vec<_> = owners
                .iter()
                .filter_map(Value::as_str)
                .map(table::plain)
                .collect();
            match (answer["all"] == true, names.is_empty()) {
                (true, true) => writeln!(out, "new runs of everybody are refused"),
                (true, false) => writeln!(
                    out,
                    "new runs of everybody are refused; without that, those of {}",
                    names.join(", ")
                ),
                (false, false) => writeln!(out, "new runs of {} are refused", names.join(", ")),
                (false, true) => writeln!(out, "new runs are admitted"),
            }
        })
    }
}

/// A part of a path or of a query, percent-encoded.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plain_letter_is_encoded() {
        assert_eq!(encoded("r-1_a.b~c"), "r-1_a.b~c");
        assert_eq!(encoded("a b/c?d&e=ü"), "a%20b%2Fc%3Fd%26e%3D%C3%BC");
    }
}
