//! The example as processes of their own: what holds between them holds between two servers.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use http::Request;
use http_body_util::BodyExt;
use tokio::{
    net::TcpListener,
    time::{Instant, sleep},
};
use tower::ServiceExt;
use tower_agent::ReplayBody;
use tower_agent_hyper::HyperService;

use crate::server::Server;

#[path = "../../examples/two_servers.rs"]
#[allow(dead_code, reason = "the example has a main")]
mod two_servers;

const SECRET: &str = "the secret of two processes";

/// The example, killed when it is dropped.
struct Process {
    child: Child,
    base: String,
    client: HyperService,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = self.child.wait();
    }
}

fn command(server: &Server, secret: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "processes::the_process_of_a_replica",
        "--nocapture",
    ]);
    command.env("REPLICA_STORE", server.url());
    command.env("REPLICA_SECRET", secret);
    command.stdout(Stdio::piped());
    command
}

/// Serves, if another test has started this program for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_process_of_a_replica() {
    let Ok(url) = std::env::var("REPLICA_STORE") else {
        return;
    };
    let secret = std::env::var("REPLICA_SECRET").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // Long, so that a machine under load refuses nothing.
    let wait = Duration::from_secs(5);
    two_servers::serve(listener, &url, &secret, wait)
        .await
        .unwrap();
}

impl Process {
    fn start(server: &Server) -> Self {
        let mut child = command(server, SECRET).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let base = lines
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once("listening on ")?.1.to_owned()));
        Self {
            child,
            base: base.expect("the process listens"),
            client: HyperService::new().unwrap(),
        }
    }

    /// A chat of a run; the status, the reason and the body.
    async fn chat(&self, model: &str, run: &str, stream: bool) -> (u16, Option<String>, String) {
        let body = format!(
            r#"{{"model":"{model}","stream":{stream},"messages":[{{"role":"user","content":"hi"}}]}}"#
        );
        let request = Request::post(format!("{}/v1/chat/completions", self.base))
            .header("content-type", "application/json")
            .header("x-run-id", run);
        self.send(request.body(ReplayBody::from(body)).unwrap())
            .await
    }

    async fn abort(&self, run: &str) -> (u16, String) {
        let request = Request::post(format!("{}/runs/{run}/abort", self.base));
        let (status, _, text) = self
            .send(request.body(ReplayBody::default()).unwrap())
            .await;
        (status, text)
    }

    async fn send(&self, request: Request<ReplayBody>) -> (u16, Option<String>, String) {
        let answer = self.client.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let reason = answer.headers().get("x-terminal-reason");
        let reason = reason.map(|reason| reason.to_str().unwrap().to_owned());
        let mut body = answer.into_body();
        let mut text = String::new();
        // A cut stream ends in an error event.
        while let Some(Ok(frame)) = body.frame().await {
            if let Some(data) = frame.data_ref() {
                text.push_str(&String::from_utf8_lossy(data));
            }
        }
        (status, reason, text)
    }
}

#[tokio::test]
async fn an_abort_at_one_process_ends_the_stream_of_the_other() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let one = Arc::new(Process::start(&server));
    let two = Process::start(&server);
    let streams: Vec<_> = (0..20)
        .map(|call| {
            let (one, run) = (Arc::clone(&one), format!("r-{call}"));
            tokio::spawn(async move { one.chat("sim-slow", &run, true).await })
        })
        .collect();
    // Each stream has begun, and would go on for seconds.
    sleep(Duration::from_millis(1500)).await;
    let mut took = Vec::new();
    for (call, stream) in streams.into_iter().enumerate() {
        let (run, start) = (format!("r-{call}"), Instant::now());
        assert_eq!(
            two.abort(&run).await,
            (200, "\"told the others\"".to_owned())
        );
        let (status, _, text) = stream.await.unwrap();
        took.push(start.elapsed());
        assert_eq!(status, 200);
        assert!(text.contains("aborted"), "{text}");
        // Refused where it never was, with the same reason.
        let (status, reason, _) = two.chat("sim-healthy", &run, false).await;
        assert_eq!((status, reason.as_deref()), (499, Some("aborted")));
    }
    let (_, _, text) = two.chat("sim-healthy", "r-0", false).await;
    assert!(text.contains("stopped after 1."), "{text}");
    took.sort();
    eprintln!(
        "an abort over two processes: p50 {:?}, longest {:?}",
        took[10], took[19]
    );
    assert!(took[10] < Duration::from_millis(250), "{took:?}");
}

#[tokio::test]
async fn two_processes_serve_thirty_turns_of_sixty() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let processes = [Process::start(&server), Process::start(&server)];
    let calls = (0..60).map(|call| processes[call % 2].chat("sim-healthy", "r", false));
    let answers = join_all(calls).await;
    let served = answers.iter().filter(|it| it.0 == 200).count();
    let refused: Vec<_> = answers.iter().filter(|it| it.0 != 200).collect();
    assert_eq!(served, 30, "{refused:?}");
    let by_cap = |it: &&&(u16, Option<String>, String)| {
        (it.0, it.1.as_deref()) == (422, Some("turn_cap_reached"))
    };
    assert_eq!(refused.iter().filter(by_cap).count(), 30, "{refused:?}");
}

#[tokio::test]
async fn a_process_that_was_killed_refuses_what_had_ended_before() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let one = Process::start(&server);
    assert_eq!(one.chat("sim-healthy", "r", false).await.0, 200);
    assert_eq!(one.abort("r").await.1, "\"ended here\"");
    // `kill -9`, once the store has the end.
    sleep(Duration::from_millis(500)).await;
    drop(one);
    let again = Process::start(&server);
    let (status, reason, _) = again.chat("sim-healthy", "r", false).await;
    assert_eq!((status, reason.as_deref()), (499, Some("aborted")));
}

#[tokio::test]
async fn a_process_with_another_secret_does_not_start() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let _one = Process::start(&server);
    let output = command(&server, "another secret, as long")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("the replicas have another secret"), "{said}");
}
