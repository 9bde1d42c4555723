//! Turns are counted where an agent cannot reach.

mod counted;
mod owners;
mod sent;

use reqwest::{Response, StatusCode};

use crate::net::{CHAT, Config, Gateway, Upstream, chat, within};

const KEYS: (&str, &str) = ("TEST_KEYS", "one:sk-one,two:sk-two");

/// A gateway that asks for keys, in front of an upstream that answers at once.
async fn keyed(more: &str) -> (Upstream, Gateway) {
    let upstream = Upstream::model().await;
    let auth = "[auth]\nkeys_env = \"TEST_KEYS\"\n";
    let config = Config::of(upstream.addr, &format!("{auth}{more}"));
    (
        upstream,
        Gateway::with(&config, &[KEYS, ("TEST_TOKEN", "t0ken")]).await,
    )
}

/// One request of a run; none of its own if there is no id.
async fn turn(gateway: &Gateway, key: &str, id: Option<&str>) -> Response {
    let request = gateway.post(CHAT, chat("ok")).bearer_auth(key);
    let request = match id {
        Some(id) => request.header("x-run-id", id),
        None => request,
    };
    within(request.send()).await.unwrap()
}

#[track_caller]
fn is_capped(answer: &Response) {
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer.headers()["x-terminal-reason"], "turn_cap_reached");
    assert_eq!(answer.headers()["x-should-retry"], "false");
}
