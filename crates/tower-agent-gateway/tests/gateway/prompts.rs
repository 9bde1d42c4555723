//! What prompts cost whose upstream says nothing of them.
//!
//! covers: H8

use reqwest::StatusCode;
use serde_json::json;

use crate::{
    net::{Answer, Ask, CHAT, Upstream, eventually, run},
    support::{Config, Gateway},
};

const KEY: &str = "sk-one";

/// A gateway whose owners may use 100,000 tokens an hour.
async fn capped(more: &str) -> (Upstream, Gateway) {
    let auth = "[auth]\nkeys_env = \"TEST_KEYS\"\ntotal_tokens_per_hour = 100000\n";
    Config::new(format_args!("{auth}{more}"))
        .env("TEST_KEYS", "one:sk-one")
        .start_with_model(&["m"])
        .await
}

fn prompt(user: &str, content: &str, stream: bool) -> String {
    let messages = [json!({"role": "user", "content": content})];
    json!({"model": "m", "user": user, "stream": stream, "messages": messages}).to_string()
}

#[track_caller]
fn is_refused(answer: &Answer) {
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer.reason(), Some("token_cap_reached"));
    assert!(answer.text().contains("estimated"), "{}", answer.text());
}

#[test]
fn streams_without_usage_do_not_pass_a_cap_on_tokens() {
    run(async {
        let (upstream, gateway) = capped("").await;
        let prompt = prompt("ok", &"word ".repeat(80_000), true);
        let mut served = 0;
        for _ in 0..25 {
            let answer = gateway
                .post(CHAT, prompt.clone())
                .bearer_auth(KEY)
                .ask()
                .await;
            match answer.status {
                StatusCode::OK => served += 1,
                _ => is_refused(&answer),
            }
        }
        assert_eq!((served, upstream.count()), (1, 1));
    });
}

#[test]
fn calls_that_are_left_early_do_not_pass_a_cap_on_tokens() {
    run(async {
        let (upstream, gateway) = capped("").await;
        let prompt = prompt("silent", &"word ".repeat(80_000), false);
        for number in 1..=25 {
            let call = gateway.post(CHAT, prompt.clone()).bearer_auth(KEY);
            let call = tokio::spawn(call.ask());
            if number == 1 {
                upstream.until_open(1).await;
                call.abort();
                upstream.until_open(0).await;
                // The gateway learns of it before its next request.
                eventually(async || {
                    let row = gateway.json("/runs").await;
                    let reason = &row["runs"][0]["reason"];
                    (reason == "client_disconnect").then_some(())
                })
                .await;
                let row = gateway.json("/runs").await;
                let tokens = row["runs"][0]["spent"]["estimated_input_tokens"].clone();
                assert_eq!(tokens, prompt.len().div_ceil(4), "{row}");
                continue;
            }
            is_refused(&call.await.unwrap());
        }
        assert_eq!(upstream.count(), 1);
    });
}

#[test]
fn a_screenshot_counts_as_one_and_a_refused_prompt_as_nothing() {
    run(async {
        let (upstream, gateway) = capped("[retry]\nmax_attempts_per_candidate = 1").await;
        let ask = async |body: String| {
            let call = gateway.post(CHAT, body).bearer_auth(KEY);
            call.header("x-run-id", "r-1").ask().await
        };
        let spent = async || gateway.json("/runs/r-1").await["spent"].clone();
        for _ in 0..3 {
            let refused = ask(prompt("503", &"word ".repeat(80_000), false)).await;
            assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!(spent().await["input_tokens"], 0);

        let pixels = (0..400_000_u32).map(|at| {
            let place = (at.wrapping_mul(2_654_435_761) >> 26) as usize;
            char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[place])
        });
        let url = format!("data:image/png;base64,{}", pixels.collect::<String>());
        let shown = prompt("ok", &url, true);
        let around = (shown.len() - url.len()).div_ceil(4);
        assert_eq!(ask(shown).await.status, StatusCode::OK);

        let spent = spent().await;
        assert_eq!(spent["estimated_input_tokens"], 1500 + around, "{spent}");
        assert_eq!(upstream.count(), 4);
    });
}
