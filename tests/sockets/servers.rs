//! The servers of `examples/`, each a process of its own in front of an upstream.
//!
//! covers: C1, H1

use tokio::process::Command;

use crate::net::{Ask, Process, STREAM, Upstream, asks, chat, client, eventually, run};

/// Starts the program of an example, which cargo has built beside the tests.
async fn start(example: &str, upstream: &Upstream) -> (Process, String) {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().unwrap().parent().unwrap();
    let program = profile.join("examples").join(example);
    assert!(
        program.exists(),
        "run `cargo build --all-features --examples`"
    );
    let url = format!("http://{}/v1", upstream.addr);
    let process = Process::start(Command::new(program).arg(url));
    let url = process.line_after("listening on ").await;
    (process, format!("{url}/v1/chat/completions"))
}

#[test]
fn they_stream_and_let_go_of_a_call_whose_caller_left() {
    run(async {
        for example in ["axum_server", "hyper_server"] {
            let upstream = Upstream::model().await;
            let (_process, url) = start(example, &upstream).await;

            let answer = client().post(&url).body(asks("large", true)).ask().await;
            assert_eq!(answer.status, 200, "{example}");
            assert_eq!(answer.text(), STREAM, "{example}");
            assert_eq!(answer.headers["x-served-model"], "large", "{example}");

            let mut stalled = client().post(&url).body(chat("stall")).open().await;
            stalled.until("data:").await;
            drop(stalled);
            let released = async || upstream.calls()[1].released;
            eventually(released).await;
            assert!(!upstream.calls()[1].complete, "{example}");
            assert_eq!(upstream.count(), 2, "{example}: nothing is sent again");
        }
    });
}
