//! Turns that wait where an early head is set.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower::ServiceExt;
use tower_agent::{TokenCapLayer, TokenCaps, TurnCapLayer, run::PauseAtCap};

use super::{Served, WAIT, turns};
use crate::support::{DONE, ReadExt, Script, USAGE, chat, secs};

/// A server that sends an early head, whose runs pause after one turn; the upstream takes a minute.
fn serving() -> Served {
    let slow = Script::sse().data(chat("a")).data(DONE).delayed(60);
    let layer = TurnCapLayer::new(1).pause(PauseAtCap::new());
    let served = Served::new(slow, |stack| stack.early_head(secs(20)).max_turns(layer));
    served.streaming()
}

#[tokio::test(start_paused = true)]
async fn a_held_turn_gets_no_head_so_that_its_client_sends_it_again() {
    let served = serving();
    let first = served.turn("a").await;
    assert_eq!((first.status, first.at), (200, secs(60)));

    let refused = served.turn("b").await;

    assert_eq!((refused.status, refused.at), (503, WAIT));
    assert_eq!(refused.header("x-should-retry"), Some("true"));
    let json: serde_json::Value = serde_json::from_str(&refused.text).unwrap();
    assert_eq!(json["error"]["type"], "run_paused");
}

/// When the head of a second turn comes whose run is extended so many seconds after it, and when its
/// body is whole.
async fn extended_after(seconds: u64) -> [Duration; 2] {
    let served = serving();
    assert_eq!(served.turn("a").await.status, 200);
    let (service, request) = (served.service.clone(), served.request("b"));
    let sent = Instant::now();
    let held = tokio::spawn(async move {
        let answer = service.oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let head = sent.elapsed();
        let text = answer.into_body().read().await.whole();
        assert!(text.ends_with(DONE), "{text}");
        [head, sent.elapsed()]
    });
    sleep(secs(seconds)).await;
    served.run().extend(turns(1)).unwrap();
    held.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_goes_on_gets_its_head_soon() {
    let [head, whole] = extended_after(30).await;

    assert!((secs(30)..=secs(31)).contains(&head), "{head:?}");
    assert_eq!(whole, secs(90));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_goes_on_in_time_gets_its_head_when_it_is_due() {
    assert_eq!(extended_after(5).await, [secs(20), secs(65)]);
}

#[tokio::test(start_paused = true)]
async fn so_it_is_at_a_cap_on_tokens() {
    let script = Script::sse().data(chat("a")).data(USAGE).data(DONE);
    let caps = TokenCaps::new().max_output_tokens(1);
    let layer = TokenCapLayer::new(caps).pause(PauseAtCap::new());
    let served = Served::new(script, |stack| stack.early_head(secs(20)).token_caps(layer));
    let served = served.streaming();
    assert_eq!(served.turn("a").await.status, 200);

    let refused = served.turn("b").await;

    assert_eq!((refused.status, refused.at), (503, WAIT));
}
