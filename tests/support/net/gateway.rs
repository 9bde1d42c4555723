use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use super::{dialect::clients, within};

/// The example's binary, which cargo builds for tests of all features.
fn binary() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.push("examples");
    path.push(format!("gateway{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.is_file(),
        "{} is missing: run `cargo test --all-features`, or first \
         `cargo build --all-features --example gateway`",
        path.display()
    );
    path
}

fn command(args: &[&str], env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(binary());
    command
        .args(args)
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs a gateway that cannot start: the lines that it leaves on stderr.
pub(crate) async fn fails(args: &[&str], env: &[(&str, &str)]) -> Vec<String> {
    let output = within(command(args, env).output()).await.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(output.stdout.is_empty(), "it says that it listens");
    told.lines().map(str::to_owned).collect()
}

/// One candidate's table, which the keys of more may follow.
pub(crate) fn candidate(model: &str, upstream: &str) -> String {
    format!("[[candidates]]\nmodel = \"{model}\"\nbase_url = \"{upstream}/v1\"\n")
}

/// A configuration file, gone with this.
pub(crate) struct Config {
    path: PathBuf,
}

impl Config {
    pub(crate) fn new(text: &str) -> Self {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("gateway-{}-{number}.toml", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, text).unwrap();
        Self { path }
    }

    /// One candidate, and what `more` says before it.
    pub(crate) fn of(upstream: SocketAddr, more: &str) -> Self {
        Self::candidates(upstream, more, &["m"])
    }

    /// Several candidates of one upstream, and what `more` says before them.
    pub(crate) fn candidates(upstream: SocketAddr, more: &str, models: &[&str]) -> Self {
        let upstream = format!("http://{upstream}");
        let candidates = models.iter().map(|model| candidate(model, &upstream));
        Self::new(&format!("{more}\n{}", candidates.collect::<String>()))
    }

    pub(crate) fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

impl Drop for Config {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}

/// A gateway that listens; it is killed with this.
pub(crate) struct Gateway {
    child: Child,
    clients: reqwest::Client,
    pub(crate) addr: SocketAddr,
    /// Where the simulated upstream counts, of a gateway that brought it along.
    stats: Option<String>,
    log: Arc<Mutex<String>>,
    /// What it prints after its greeting.
    printed: Arc<Mutex<Vec<String>>>,
    /// Another, which is to live as long.
    beside: Option<Box<Self>>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("The gateway's log:\n{}", self.log.lock().unwrap());
        }
    }
}

impl Gateway {
    /// In front of the upstream that it brings along.
    pub(crate) async fn embedded() -> Self {
        Self::start(&[], &[]).await
    }

    /// One simulated model that cannot fall back, in front of the upstream of
    /// another gateway. Its limits are those of the embedded configuration.
    pub(crate) async fn alone(model: &str) -> Self {
        let limits = "[attempt]\nstep_timeout = \"2s\"\nfirst_token_timeout = \"5s\"";
        Self::simulated(limits, &[model]).await
    }

    /// Simulated models in this order, behind what `more` says.
    pub(crate) async fn simulated(more: &str, models: &[&str]) -> Self {
        let beside = Self::embedded().await;
        let upstream = beside.upstream().to_owned();
        let candidates = models.iter().map(|model| candidate(model, &upstream));
        let config = Config::new(&format!("{more}\n{}", candidates.collect::<String>()));
        let mut gateway = Self::with(&config, &[]).await;
        gateway.beside = Some(Box::new(beside));
        gateway
    }

    fn upstream(&self) -> &str {
        let stats = self.stats.as_deref().unwrap();
        stats.strip_suffix("/stats").unwrap()
    }

    /// How many requests for a model the simulated upstream has seen.
    pub(crate) async fn simulated_calls(&self, model: &str) -> u64 {
        let brought = self.beside.as_deref().unwrap_or(self);
        let stats = self.clients.get(brought.stats.as_deref().unwrap());
        let answer = within(stats.send()).await.unwrap();
        let stats: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        stats["by_model"][model]["started"].as_u64().unwrap_or(0)
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) async fn with(config: &Config, env: &[(&str, &str)]) -> Self {
        Self::start(&["--config", config.path()], env).await
    }

    /// Reached from other machines too, and here on loopback.
    pub(crate) async fn everywhere(config: &Config, env: &[(&str, &str)]) -> Self {
        let args = ["--config", config.path()];
        let mut gateway = Self::listening("0.0.0.0:0", &args, env).await;
        gateway.addr.set_ip([127, 0, 0, 1].into());
        gateway
    }

    async fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        Self::listening("127.0.0.1:0", args, env).await
    }

    async fn listening(address: &str, args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = command(&[args, &["--listen", address]].concat(), env)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = within(lines.next_line()).await.unwrap().unwrap();
        let addr = first.strip_prefix("listening on http://").unwrap();
        let addr = addr.parse().unwrap();
        let stats = if args.is_empty() {
            let second = within(lines.next_line()).await.unwrap().unwrap();
            let stats = second.strip_prefix("upstream counts at ").unwrap();
            Some(stats.to_owned())
        } else {
            None
        };
        // A pipe that nobody reads would block it.
        let printed = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&printed);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                kept.lock().unwrap().push(line);
            }
        });
        let log = Arc::<Mutex<String>>::default();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let logged = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                *logged.lock().unwrap() += &(line + "\n");
            }
        });
        Self {
            child,
            clients: clients(),
            addr,
            stats,
            log,
            printed,
            beside: None,
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.clients
            .request(method, format!("http://{}{path}", self.addr))
    }

    pub(crate) fn get(&self, path: &str) -> RequestBuilder {
        self.request(Method::GET, path)
    }

    pub(crate) fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        self.request(Method::POST, path)
            .header("content-type", "application/json")
            .body(body)
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let answer = within(self.get(path).send()).await.unwrap();
        assert_eq!(answer.status(), 200);
        serde_json::from_slice(&within(answer.bytes()).await.unwrap()).unwrap()
    }

    pub(crate) async fn abort(&self, id: &str) -> bool {
        let abort = self.post(&format!("/runs/{id}/abort"), "");
        let answer = within(abort.send()).await.unwrap();
        let body: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        body["aborted"].as_bool().unwrap()
    }

    /// What was printed so far of the runs that were ended: all that is JSON.
    pub(crate) fn records(&self) -> Vec<Value> {
        let printed = self.printed.lock().unwrap();
        let records = printed.iter().filter(|line| line.starts_with('{'));
        records
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// How many files and sockets its process holds.
    #[cfg(target_os = "linux")]
    pub(crate) fn open_files(&self) -> usize {
        let process = self.child.id().unwrap();
        fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
    }

    /// What it has taken of the processors so far.
    #[cfg(target_os = "linux")]
    pub(crate) fn processor_time(&self) -> std::time::Duration {
        let process = self.child.id().unwrap();
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        // Behind the name: of the program's own time and the kernel's, in ticks of 10 ms.
        let (_, rest) = stat.rsplit_once(')').unwrap();
        let ticks = rest.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        std::time::Duration::from_millis(10 * ticks)
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.child.id().unwrap().to_string();
        let sent = std::process::Command::new("kill")
            .args([&format!("-{name}"), &process])
            .status();
        assert!(sent.unwrap().success());
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        within(self.child.wait()).await.unwrap()
    }
}
