//! An upstream that is a process of its own, to be stopped and started again.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
};

use tokio::process::Command;

use crate::net::Process;

/// Tells this test program that it is to be the upstream, on that port or on any
/// if it is 0.
const PORT: &str = "TOWER_AGENT_TEST_UPSTREAM";
/// How many calls it answers that it loads its model.
const LOADS: &str = "TOWER_AGENT_TEST_LOADS";

const LOADING: &str =
    r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#;

/// This test program again, as an upstream; killed when it is dropped.
pub(crate) struct UpstreamProcess {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

/// Not a test: what [`UpstreamProcess`] runs.
#[test]
fn the_upstream_itself() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    let loads = std::env::var(LOADS).unwrap().parse().unwrap();
    // The end of standard input is the end of the test that started it.
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

impl UpstreamProcess {
    /// Starts on any port.
    pub(crate) async fn start() -> Self {
        Self::start_on(0, 0).await
    }

    /// Starts on that port, with so many calls answered that the model loads.
    pub(crate) async fn start_on(port: u16, loads: u32) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["upstream_process::the_upstream_itself", "--exact"])
            .args(["--nocapture", "--test-threads=1"])
            .env(PORT, port.to_string())
            .env(LOADS, loads.to_string())
            .stdin(Stdio::piped());
        let process = Process::start(&mut command);
        let port = process.line_after("listening on ").await.parse().unwrap();
        Self { process, port }
    }
}
