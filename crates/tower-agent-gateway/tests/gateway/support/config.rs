use std::{
    fmt::{Display, Write as _},
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

use super::Gateway;
use crate::net::Upstream;

/// The configuration of a gateway, and its environment.
///
/// ```ignore
/// let gateway = Config::new("[retry]\nper_run = 1")
///     .candidate("500", upstream.addr)
///     .candidate("ok", upstream.addr)
///     .set("api_key_env = \"KEY\"")
///     .env("KEY", "sk-1")
///     .start()
///     .await;
/// ```
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    text: String,
    env: Vec<(String, String)>,
    listen: Option<&'static str>,
}

impl Config {
    /// What stands before the candidates, in TOML.
    pub(crate) fn new(settings: impl Display) -> Self {
        Self {
            text: format!("{settings}\n"),
            ..Self::default()
        }
    }

    /// Adds a candidate's table.
    pub(crate) fn candidate(self, model: &str, upstream: SocketAddr) -> Self {
        self.set("[[candidates]]")
            .set(format_args!("model = {}", toml_string(model)))
            .set(format_args!("base_url = \"http://{upstream}/v1\""))
    }

    /// Adds a candidate for each of the models, all of one upstream.
    pub(crate) fn candidates(self, models: &[&str], upstream: SocketAddr) -> Self {
        let add = |config: Self, model: &&str| config.candidate(model, upstream);
        models.iter().fold(self, add)
    }

    /// Adds a line to the table of the last candidate.
    pub(crate) fn set(mut self, line: impl Display) -> Self {
        let _ = writeln!(self.text, "{line}");
        self
    }

    /// Sets a variable of the gateway's environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the address to listen on, instead of a free port of loopback.
    pub(crate) fn listen(mut self, address: &'static str) -> Self {
        self.listen = Some(address);
        self
    }

    /// Starts a gateway.
    pub(crate) async fn start(self) -> Gateway {
        self.start_with_file().await.0
    }

    /// Starts a gateway with this much address space, in KiB.
    pub(crate) async fn start_within(self, kib: u32) -> Gateway {
        self.start_limited(&format!("ulimit -v {kib}")).await
    }

    /// Starts a gateway in a shell that has run this command before.
    pub(crate) async fn start_limited(self, limit: &str) -> Gateway {
        let file = self.write();
        Gateway::listening_limited(limit, &["--config", file.path()], &self.env).await
    }

    /// Starts a gateway, and keeps its file for a reload.
    pub(crate) async fn start_with_file(self) -> (Gateway, File) {
        let file = self.write();
        let args = ["--config", file.path()];
        let address = self.listen.unwrap_or("127.0.0.1:0");
        (Gateway::listening(address, &args, &self.env).await, file)
    }

    /// Starts a model upstream, and a gateway that has these models of it.
    pub(crate) async fn start_with_model(self, models: &[&str]) -> (Upstream, Gateway) {
        let upstream = Upstream::model().await;
        let gateway = self.candidates(models, upstream.addr).start().await;
        (upstream, gateway)
    }

    /// Starts a gateway that refuses its file: the file's path, and the lines on stderr.
    pub(crate) async fn refused(self) -> (String, Vec<String>) {
        let file = self.write();
        let args = ["--config", file.path(), "--listen", "127.0.0.1:0"];
        let lines = Gateway::refused(&args).await;
        (file.path().to_owned(), lines)
    }

    pub(crate) fn write(&self) -> File {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("gateway-{}-{number}.toml", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, &self.text).unwrap();
        File { path }
    }
}

fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A configuration file, removed at the drop: a gateway reads it at its start.
pub(crate) struct File {
    path: PathBuf,
}

impl File {
    pub(crate) fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Writes another configuration into the file.
    pub(crate) fn replace(&self, config: &Config) {
        fs::write(&self.path, &config.text).unwrap();
    }

    /// Replaces the file by a FIFO without a writer.
    pub(crate) fn become_fifo(&self) {
        fs::remove_file(&self.path).unwrap();
        let made = Command::new("mkfifo").arg(&self.path).status().unwrap();
        assert!(made.success());
    }
}

impl Drop for File {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.path));
    }
}
