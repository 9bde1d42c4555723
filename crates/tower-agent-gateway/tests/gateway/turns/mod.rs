//! Turns are counted where an agent cannot reach.

mod counted;
mod owners;
mod periods;
mod sent;
mod uncapped;

use reqwest::StatusCode;

use crate::{
    net::{Answer, Ask, CHAT, Upstream, chat},
    support::{Config, Gateway},
};

const KEYS: (&str, &str) = ("TEST_KEYS", "one:sk-one,two:sk-two");

/// A gateway that asks for keys, in front of an upstream that answers at once.
async fn keyed(more: &str) -> (Upstream, Gateway) {
    let auth = "[auth]\nkeys_env = \"TEST_KEYS\"\n";
    Config::new(format_args!("{auth}{more}"))
        .env(KEYS.0, KEYS.1)
        .env("TEST_TOKEN", "t0ken")
        .start_with_model(&["m"])
        .await
}

/// One request of a run; none of its own if there is no id.
async fn turn(gateway: &Gateway, key: &str, id: Option<&str>) -> Answer {
    let request = gateway.post(CHAT, chat("ok")).bearer_auth(key);
    let request = match id {
        Some(id) => request.header("x-run-id", id),
        None => request,
    };
    request.ask().await
}

#[track_caller]
fn is_capped(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer.reason(), Some("turn_cap_reached"));
    assert_eq!(answer.headers["x-should-retry"], "false");
}
