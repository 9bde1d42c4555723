//! A server of a test's own, in a temporary folder and on a free port.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tower_agent::registry::SharedSecret;
use tower_agent_redis::{RedisOptions, RedisRunStore};

/// A process that is killed when it is dropped.
pub(crate) struct Server {
    process: Option<Child>,
    folder: PathBuf,
    pub(crate) port: u16,
    args: Vec<String>,
}

/// The secret of all replicas of the tests. Installed, so that no digest is made before.
pub(crate) fn secret() -> SharedSecret {
    let secret = SharedSecret::new(b"a secret of the tests").unwrap();
    secret.install().unwrap();
    secret
}

/// Whether a program can be run; says loudly if it cannot, as its tests are then left out.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        eprintln!("LEFT OUT: {program} is not installed, and this test needs it");
    }
    found
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

impl Server {
    /// `None` if there is no `redis-server` here.
    pub(crate) fn start(args: &[&str]) -> Option<Self> {
        let _installed = secret();
        has("redis-server").then(|| Self::start_as("redis-server", args, ""))
    }

    /// A sentinel with these lines in its configuration.
    pub(crate) fn sentinel(conf: &str) -> Self {
        Self::start_as("redis-sentinel", &[], conf)
    }

    fn start_as(program: &str, args: &[&str], conf: &str) -> Self {
        let port = free_port();
        let name = format!("tower-agent-redis-{}-{port}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("sentinel.conf"), conf).unwrap();
        let mut server = Self {
            process: None,
            folder,
            port,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
        };
        server.run(program);
        server
    }

    fn run(&mut self, program: &str) {
        let mut command = Command::new(program);
        if program == "redis-sentinel" {
            command.arg(self.folder.join("sentinel.conf"));
            command.arg("--logfile").arg(self.log_file());
        } else {
            command.args(["--save", ""]);
        }
        command.arg("--port").arg(self.port.to_string());
        command.arg("--dir").arg(&self.folder).args(&self.args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.process = Some(command.spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < until, "{program} does not listen");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills the server, if it runs, and starts it again in the same folder.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.run("redis-server");
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _gone = process.kill();
            process.wait().unwrap();
        }
    }

    /// Sends the process a signal, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.as_ref().unwrap().id().to_string();
        let done = Command::new("kill")
            .args([&format!("-{name}"), &id])
            .status();
        assert!(done.unwrap().success());
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What a sentinel has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) async fn store(&self) -> Arc<RedisRunStore> {
        self.store_with(RedisOptions::new()).await
    }

    pub(crate) async fn store_with(&self, options: RedisOptions) -> Arc<RedisRunStore> {
        // The server may still load its file.
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match RedisRunStore::connect(&self.url(), &secret(), options.clone()).await {
                Ok(store) => return store,
                Err(error) if Instant::now() > until => panic!("{error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// A connection of the test's own.
    pub(crate) async fn connection(&self) -> redis::aio::MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

/// Waits until a condition holds, and fails after 10 s.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let at = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !holds() {
            assert!(Instant::now() < deadline, "{at}: {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
