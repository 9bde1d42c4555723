use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
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
}

impl RedisServer {
    /// Starts one. `None`, and a loud line, if there is no `redis-server` here.
    pub(crate) async fn start() -> Option<Self> {
        // Another program may take the port first, and the server then ends.
        eventually(async || {
            let Some(mut server) = Self::spawn() else {
                return Some(None);
            };
            let answers = eventually(async || {
                let has_ended = server.process.try_wait().unwrap().is_some();
                (has_ended || server.answers()).then_some(!has_ended)
            });
            answers.await.then_some(Some(server))
        })
        .await
    }

    fn spawn() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = port.local_addr().unwrap().port();
        let name = format!("gateway-redis-{}-{port}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--save", "", "--port", &port.to_string(), "--dir"]);
        command.arg(&folder);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(process) = command.spawn() else {
            let _gone = fs::remove_dir_all(&folder);
            eprintln!("LEFT OUT: redis-server is not installed, and this test needs it");
            return None;
        };
        Some(Self {
            process,
            folder,
            port,
        })
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else {
            return false;
        };
        let mut answer = [0; 7];
        stream
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        let asked = stream.write_all(b"PING\r\n");
        asked.and_then(|()| stream.read_exact(&mut answer)).is_ok() && answer == *b"+PONG\r\n"
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

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _status = self.process.wait();
        let _gone = fs::remove_dir_all(&self.folder);
    }
}
