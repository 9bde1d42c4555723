//! What is said of calls that take long.

use crate::net::{CHAT, Config, Gateway, Upstream, run, within};

/// A call that says nothing after its first token.
async fn silent(more: &str) -> (Upstream, Gateway, reqwest::Response) {
    let upstream = Upstream::model().await;
    let gateway = Gateway::with(&Config::of(upstream.addr, more), &[]).await;
    let body = "{\"model\":\"m\",\"user\":\"stall\",\"stream\":true,\"messages\":[]}";
    let request = gateway.post(CHAT, body).header("x-run-id", "r-1");
    let stream = within(request.send()).await.unwrap();
    (upstream, gateway, stream)
}

async fn reads_until(answer: &mut reqwest::Response, what: &str) {
    let mut text = String::new();
    while !text.contains(what) {
        let chunk = within(answer.chunk()).await.unwrap().unwrap();
        text += std::str::from_utf8(&chunk).unwrap();
    }
}

#[test]
fn a_stream_that_is_silent_is_kept_alive_again_and_again() {
    run(async {
        let more = "[progress]\nnotify_after = \"0s\"\nkeep_alive = \"50ms\"";
        let (_upstream, _gateway, mut stream) = silent(more).await;
        for _ in 0..3 {
            reads_until(&mut stream, "\n:").await;
        }
    });
}

#[test]
fn observers_are_told_what_takes_long() {
    run(async {
        let more = "[progress]\nnotify_after = \"100ms\"";
        let upstream = Upstream::model().await;
        let gateway = Gateway::with(&Config::of(upstream.addr, more), &[]).await;
        let mut events = within(gateway.get("/events").send()).await.unwrap();
        let body = "{\"model\":\"m\",\"user\":\"silent\",\"messages\":[]}";
        let call = tokio::spawn(gateway.post(CHAT, body).send());
        reads_until(&mut events, "\"kind\":\"working\"").await;
        call.abort();
    });
}
