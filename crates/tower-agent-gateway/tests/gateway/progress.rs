//! What is said of calls that take long.
//!
//! covers: B4, B5

use crate::{
    net::{Ask, CHAT, Streaming, Upstream, run},
    support::{Config, Gateway},
};

/// A call that says nothing after its first token.
async fn silent(more: &str) -> (Upstream, Gateway, Streaming) {
    let (upstream, gateway) = Config::new(more).start_with_model(&["m"]).await;
    let body = "{\"model\":\"m\",\"user\":\"stall\",\"stream\":true,\"messages\":[]}";
    let request = gateway.post(CHAT, body).header("x-run-id", "r-1");
    let stream = request.open().await;
    (upstream, gateway, stream)
}

#[test]
fn a_stream_that_is_silent_is_kept_alive_again_and_again() {
    run(async {
        let more = "[progress]\nnotify_after = \"0s\"\nkeep_alive = \"50ms\"";
        let (_upstream, _gateway, mut stream) = silent(more).await;
        for _ in 0..3 {
            stream.until("\n:").await;
        }
    });
}

#[test]
fn observers_are_told_what_takes_long() {
    run(async {
        let more = "[progress]\nnotify_after = \"100ms\"";
        let (_upstream, gateway) = Config::new(more).start_with_model(&["m"]).await;
        let mut events = gateway.get("/events").open().await;
        let body = "{\"model\":\"m\",\"user\":\"silent\",\"messages\":[]}";
        let call = tokio::spawn(gateway.post(CHAT, body).ask());
        events.until("\"kind\":\"working\"").await;
        call.abort();
    });
}
