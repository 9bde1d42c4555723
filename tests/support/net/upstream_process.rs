//! An upstream that is a process of its own, to be stopped and started again.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

/// Tells this test program that it is to be the upstream, on that port or on any
/// if it is 0.
const PORT: &str = "TOWER_AGENT_TEST_UPSTREAM";
/// How many calls it answers that it loads its model.
const LOADS: &str = "TOWER_AGENT_TEST_LOADS";

const LOADING: &str =
    r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;

/// This test program again, as an upstream; killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    pub(crate) port: u16,
}

/// Not a test: what [`Process`] runs.
#[test]
fn the_upstream_itself() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    let loads = std::env::var(LOADS).unwrap().parse().unwrap();
    // Whoever started it is gone, in whatever way, when this ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let listener = listen(port.parse().unwrap());
    println!("listening on {}", listener.local_addr().unwrap().port());
    serve(&listener, loads);
}

/// On a port from which no connection goes out: a client that knocks at a closed
/// one of those may be connected to itself.
fn listen(port: u16) -> TcpListener {
    let any = (0..1000).map(|it| 20_000 + (std::process::id() * 31 + it * 7) % 12_000);
    let given = (port > 0).then_some(u32::from(port));
    let mut ports = given
        .into_iter()
        .chain(any.take(if port > 0 { 0 } else { 1000 }));
    let bound = ports.find_map(|it| TcpListener::bind(("127.0.0.1", u16::try_from(it).ok()?)).ok());
    bound.expect("a port is free")
}

/// One request a connection: `GET` is well, anything else is numbered.
fn serve(listener: &TcpListener, mut loads: u32) {
    let mut served = 0;
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        let Some(method) = read(&mut stream) else {
            continue;
        };
        let (status, body) = match method.as_str() {
            "GET" => ("200 OK", String::from("{}")),
            _ if loads > 0 => {
                loads -= 1;
                ("503 Service Unavailable", LOADING.to_owned())
            }
            _ => {
                served += 1;
                ("200 OK", format!("{{\"served\":{served}}}"))
            }
        };
        let length = body.len();
        // It may be gone.
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
    }
}

/// The whole of a request; answers its method.
fn read(stream: &mut TcpStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    Some(first.split(' ').next()?.to_owned())
}

impl Process {
    /// On any port.
    pub(crate) fn start() -> Self {
        Self::start_on(0, 0)
    }

    /// On that port, and with so many calls answered that it loads.
    pub(crate) fn start_on(port: u16, loads: u32) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "support::net::upstream_process::the_upstream_itself",
                "--exact",
            ])
            .args(["--nocapture", "--test-threads=1"])
            .env(PORT, port.to_string())
            .env(LOADS, loads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut ports = lines.filter_map(|line| {
            let line = line.ok()?;
            // The test harness has begun the line.
            line.split_once("listening on ")?.1.parse().ok()
        });
        let port = ports.next().expect("the upstream listens");
        Self { child, port }
    }

    /// Stops it in the middle of whatever it does.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// It lives and does nothing any more: connections are still accepted.
    #[cfg(unix)]
    pub(crate) fn freeze(&self) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-STOP", &pid]).status();
        assert!(status.unwrap().success());
    }

    fn end(&mut self) {
        drop(self.child.kill());
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
