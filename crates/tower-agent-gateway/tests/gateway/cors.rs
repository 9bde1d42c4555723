//! Pages of other origins, and the routes that they may call.
//!
//! covers: T96

use http::HeaderMap;
use reqwest::Method;

use crate::{
    net::{Ask, CHAT, Upstream, chat, run},
    support::{Config, Gateway},
};

const APP: &str = "https://app.example";

const KEYS: (&str, &str) = ("TEST_KEYS", "coder:sk-coder");

const AUTH: &str = "[auth]\nkeys_env = \"TEST_KEYS\"\n";

async fn start(more: &str) -> (Upstream, Gateway) {
    let (upstream, gateway) = Config::new(more)
        .env(KEYS.0, KEYS.1)
        .start_with_model(&["m"])
        .await;
    (upstream, gateway)
}

/// What a browser asks before a page's request.
async fn preflight(gateway: &Gateway, path: &str, origin: &str) -> (u16, HeaderMap) {
    let asked = gateway
        .request(Method::OPTIONS, path)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,x-stainless-lang",
        );
    let answer = asked.ask().await;
    (answer.status.as_u16(), answer.headers)
}

fn says_nothing_of_cors(headers: &HeaderMap) {
    let told = format!("{headers:?}");
    assert!(!told.contains("access-control"), "{told}");
}

#[test]
fn a_page_on_the_list_is_told_what_it_may_and_reads_what_its_sdk_decides_by() {
    run(async {
        let (upstream, gateway) = start(&format!(
            "{AUTH}[cors]\norigins = [\"https://b.example\", \"{APP}\"]"
        ))
        .await;
        // Without a key: browsers ask without one.
        let (status, headers) = preflight(&gateway, CHAT, APP).await;
        assert_eq!(status, 200);
        assert_eq!(headers["access-control-allow-origin"], APP);
        assert_eq!(
            headers["access-control-allow-headers"],
            "authorization,x-stainless-lang"
        );
        assert_eq!(headers["access-control-allow-methods"], "GET,POST");
        assert!(!headers.contains_key("access-control-allow-credentials"));
        assert_eq!(upstream.count(), 0);

        let request = gateway.post(CHAT, chat("ok")).header("origin", APP);
        let answer = request.bearer_auth("sk-coder").ask().await;
        assert_eq!(answer.status, 200);
        let told = &answer.headers["access-control-expose-headers"];
        assert_eq!(
            told,
            "x-should-retry,x-terminal-reason,x-run-id,retry-after,x-served-model,\
             x-served-candidate,x-attempt"
        );
        assert_eq!(answer.headers["access-control-allow-origin"], APP);
        let varies = answer.headers["vary"].to_str().unwrap();
        assert!(varies.contains("origin"), "{varies}");
        assert_eq!(upstream.count(), 1);

        // It is told that its key is wrong, too.
        let request = gateway.post(CHAT, chat("ok")).header("origin", APP);
        let answer = request.ask().await;
        assert_eq!(answer.status, 401);
        assert_eq!(answer.headers["access-control-allow-origin"], APP);
    });
}

/// Not even with a key: a page that is not on the list may have stolen it.
#[test]
fn a_page_that_is_not_on_the_list_is_refused() {
    run(async {
        let with = format!("{AUTH}[cors]\norigins = [\"{APP}\"]");
        for more in [AUTH, &with] {
            let (upstream, gateway) = start(more).await;
            for origin in [
                "https://evil.example",
                "https://app.example.evil.example",
                "http://app.example",
                "https://app.example:8443",
                "null",
            ] {
                // A form, or a script that asks nobody.
                let simple = gateway.request(Method::POST, CHAT).body(chat("ok"));
                let simple = simple.header("content-type", "text/plain");
                let simple = simple.header("origin", origin).bearer_auth("sk-coder");
                let answer = simple.ask().await;
                assert_eq!(answer.status, 403, "{origin}");
                says_nothing_of_cors(&answer.headers);
                let (_, headers) = preflight(&gateway, CHAT, origin).await;
                says_nothing_of_cors(&headers);
                let models = gateway.get("/v1/models").header("origin", origin);
                let answer = models.bearer_auth("sk-coder").ask().await;
                assert_eq!(answer.status, 403, "{origin}");
                says_nothing_of_cors(&answer.headers);
            }
            assert_eq!(upstream.count(), 0);
        }
    });
}

/// Only what is no browser's, or of this machine, calls; and nobody is told
/// that there is such a thing as a page.
#[test]
fn it_is_off_by_default() {
    run(async {
        let (upstream, gateway) = start("").await;
        let (status, headers) = preflight(&gateway, CHAT, APP).await;
        assert_eq!(status, 403);
        says_nothing_of_cors(&headers);
        let local = gateway
            .post(CHAT, chat("ok"))
            .header("origin", "http://localhost:3000");
        let answer = local.ask().await;
        assert_eq!(answer.status, 200);
        says_nothing_of_cors(&answer.headers);
        assert_eq!(upstream.count(), 1);
    });
}

#[test]
fn with_a_star_any_page_may_call_that_has_a_key() {
    run(async {
        let (upstream, gateway) = start(&format!("{AUTH}[cors]\norigins = [\"*\"]")).await;
        for origin in ["https://any.example", "null"] {
            let (status, headers) = preflight(&gateway, CHAT, origin).await;
            assert_eq!(status, 200);
            assert_eq!(headers["access-control-allow-origin"], "*");
            let call = || gateway.post(CHAT, chat("ok")).header("origin", origin);
            let answer = call().ask().await;
            assert_eq!(answer.status, 401);
            let answer = call().bearer_auth("sk-coder").ask().await;
            assert_eq!(answer.status, 200);
            // Never the operator's.
            let (status, headers) = preflight(&gateway, "/runs", origin).await;
            assert_eq!(status, 403);
            says_nothing_of_cors(&headers);
        }
        assert_eq!(upstream.count(), 2);
    });
}
