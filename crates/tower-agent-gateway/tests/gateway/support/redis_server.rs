use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::net::eventually;

/// A `redis-server` of the test's own, on a free port and in a temporary folder; it is killed at the
/// drop.
pub(crate) struct RedisServer {
    process: Child,
    folder: PathBuf,
    port: u16,
    command: Vec<String>,
}

impl RedisServer {
    /// Starts one. `None`, and a loud line, if there is no `redis-server` here.
    pub(crate) async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// Starts one with these arguments.
    pub(crate) async fn start_with(args: &[&str]) -> Option<Self> {
        let command = [&["redis-server", "--save", ""], args].concat();
        Self::start_as(&command, None).await
    }

    /// Starts a `redis-sentinel` with these lines in its configuration.
    pub(super) async fn sentinel(conf: &str) -> Option<Self> {
        Self::start_as(&["redis-sentinel"], Some(conf)).await
    }

    async fn start_as(command: &[&str], conf: Option<&str>) -> Option<Self> {
        // Another program may take the port first, and the server then ends.
        eventually(async || {
            let port = free_port();
            let name = format!("gateway-redis-{}-{port}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).unwrap();
            let mut command: Vec<_> = command.iter().map(|&word| word.to_owned()).collect();
            if let Some(conf) = conf {
                let file = folder.join("sentinel.conf");
                fs::write(&file, conf).unwrap();
                command.push(file.to_str().unwrap().to_owned());
            }
            let Ok(process) = spawn(&command, port, &folder) else {
                let _gone = fs::remove_dir_all(&folder);
                eprintln!(
                    "LEFT OUT: {} is not installed, and this test needs it",
                    command[0]
                );
                return Some(None);
            };
            let mut server = Self {
                process,
                folder,
                port,
                command,
            };
            server.begins().await.then_some(Some(server))
        })
        .await
    }

    /// Waits until the server answers; `false` if it has ended.
    async fn begins(&mut self) -> bool {
        eventually(async || {
            let has_ended = self.process.try_wait().unwrap().is_some();
            let answers = matches!(self.ask("PING").as_deref(), Ok("PONG"));
            (has_ended || answers).then_some(!has_ended)
        })
        .await
    }

    /// Kills the server by SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _gone = self.process.kill();
        let _status = self.process.wait();
    }

    /// Starts the server again on its port and in its folder, after it was killed.
    pub(crate) async fn start_again(&mut self) {
        eventually(async || {
            self.process = spawn(&self.command, self.port, &self.folder).unwrap();
            self.begins().await.then_some(())
        })
        .await;
    }

    /// The answer to a command: a line or a text.
    pub(crate) fn ask(&self, command: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let (mut stream, mut line) = (BufReader::new(stream), String::new());
        stream.read_line(&mut line)?;
        let line = line.trim_end();
        let Some(length) = line.strip_prefix('$') else {
            return Ok(line.trim_start_matches(['+', ':']).to_owned());
        };
        let mut text = vec![0; length.parse().unwrap_or(0)];
        stream.read_exact(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Waits until a section of `INFO` says this.
    pub(crate) async fn until_info(&self, section: &str, says: &str) {
        let asked = format!("INFO {section}");
        eventually(async || {
            let info = self.ask(&asked);
            info.is_ok_and(|info| info.contains(says)).then_some(())
        })
        .await;
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a signal, by its name.
    pub(crate) fn signal(&self, name: &str) {
        let process = self.process.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &process])
            .status();
        assert!(sent.unwrap().success());
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

fn spawn(command: &[String], port: u16, folder: &Path) -> io::Result<Child> {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]);
    process.arg("--port").arg(port.to_string());
    process.arg("--dir").arg(folder);
    process.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _gone = fs::remove_dir_all(&self.folder);
    }
}
