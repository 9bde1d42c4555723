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

use super::{client, within};

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
        let candidate =
            format!("[[candidates]]\nmodel = \"m\"\nbase_url = \"http://{upstream}/v1\"\n");
        Self::new(&format!("{more}\n{candidate}"))
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
    pub(crate) addr: SocketAddr,
    log: Arc<Mutex<String>>,
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

    pub(crate) async fn with(config: &Config, env: &[(&str, &str)]) -> Self {
        Self::start(&["--config", config.path()], env).await
    }

    async fn start(args: &[&str], env: &[(&str, &str)]) -> Self {
        let mut child = command(&[args, &["--listen", "127.0.0.1:0"]].concat(), env)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = within(lines.next_line()).await.unwrap().unwrap();
        let addr = first.strip_prefix("listening on http://").unwrap();
        let addr = addr.parse().unwrap();
        // A pipe that nobody reads would block it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let log = Arc::<Mutex<String>>::default();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let logged = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                *logged.lock().unwrap() += &(line + "\n");
            }
        });
        Self { child, addr, log }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        client().request(method, format!("http://{}{path}", self.addr))
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
