//! The operator's page: its files, and what guards them and the data that it shows.
//!
//! covers: H11

use std::collections::BTreeSet;

use reqwest::Method;

use crate::{
    net::{Answer, Ask, eventually, run},
    support::{Config, Gateway},
};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

async fn guarded() -> Gateway {
    let config = Config::new("[control]\ntoken_env = \"TEST_TOKEN\"");
    let (_upstream, gateway) = config
        .env("TEST_TOKEN", "sesame")
        .start_with_model(&["m"])
        .await;
    gateway
}

async fn get(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Answer {
    let start = gateway.get(path);
    let request = headers
        .iter()
        .fold(start, |it, (name, value)| it.header(*name, *value));
    request.ask().await
}

/// A navigation carries no token.
#[test]
fn the_files_need_no_token_and_the_data_does() {
    run(async {
        let gateway = guarded().await;
        for (path, kind) in [
            ("/ui", "text/html; charset=utf-8"),
            ("/ui/app.js", "text/javascript; charset=utf-8"),
            ("/ui/vendor/preact.js", "text/javascript; charset=utf-8"),
            ("/ui/style.css", "text/css; charset=utf-8"),
            ("/ui/icon.svg", "image/svg+xml"),
        ] {
            let answer = get(&gateway, path, &[]).await;
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(answer.header("content-type"), Some(kind), "{path}");
            assert_eq!(answer.header("content-security-policy"), Some(POLICY));
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
            assert_eq!(answer.header("cache-control"), Some("no-cache"));
            assert!(!answer.text().contains("sesame"));
        }
        for path in [
            "/runs",
            "/freeze",
            "/candidates",
            "/ends",
            "/metrics",
            "/events",
        ] {
            assert_eq!(get(&gateway, path, &[]).await.status, 403, "{path}");
        }
        let token = [("authorization", "Bearer sesame")];
        for path in ["/runs", "/freeze", "/candidates", "/ends", "/metrics"] {
            let answer = get(&gateway, path, &token).await;
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
        }
    });
}

#[test]
fn a_browser_that_has_a_file_is_answered_304() {
    run(async {
        let gateway = Gateway::embedded().await;
        let first = get(&gateway, "/ui/app.js", &[]).await;
        let tag = first.header("etag").unwrap();
        let again = get(&gateway, "/ui/app.js", &[("if-none-match", tag)]).await;
        assert_eq!((again.status.as_u16(), again.text()), (304, ""));
        assert_eq!(again.header("etag"), Some(tag));
        assert_eq!(again.header("content-security-policy"), Some(POLICY));
        let other = get(&gateway, "/ui/style.css", &[("if-none-match", tag)]).await;
        assert_eq!(other.status, 200, "the tag is of another file");
        let head = gateway.request(Method::HEAD, "/ui").ask().await;
        assert_eq!((head.status.as_u16(), head.text()), (200, ""));
    });
}

#[test]
fn a_path_that_is_no_file_of_the_page_is_404() {
    run(async {
        let gateway = Gateway::embedded().await;
        for path in [
            "/ui/app",
            "/ui/vendor/",
            "/ui/vendor/vendor.json",
            "/ui/%2e%2e/Cargo.toml",
            "/ui/..%2fCargo.toml",
            "/ui//app.js",
        ] {
            assert_eq!(get(&gateway, path, &[]).await.status, 404, "{path}");
        }
        let written = gateway.post("/ui", "").ask().await;
        assert_eq!(written.status, 405);
        assert_eq!(written.header("allow"), Some("GET,HEAD"));
    });
}

/// A page of another origin can neither read the files nor put the page into a frame.
#[test]
fn a_foreign_origin_and_a_wrong_host_get_no_file() {
    run(async {
        let gateway = Gateway::embedded().await;
        let own = format!("http://{}", gateway.addr);
        for path in ["/ui", "/ui/app.js"] {
            for headers in [
                [("origin", "http://evil.example")],
                [("origin", "http://localhost:3000")],
                [("sec-fetch-site", "cross-site")],
                [("sec-fetch-site", "same-site")],
            ] {
                assert_eq!(
                    get(&gateway, path, &headers).await.status,
                    403,
                    "{headers:?}"
                );
            }
            let host = [("host", "evil.example@127.0.0.1")];
            assert_eq!(get(&gateway, path, &host).await.status, 400);
            for headers in [[("origin", &*own)], [("sec-fetch-site", "none")]] {
                assert_eq!(
                    get(&gateway, path, &headers).await.status,
                    200,
                    "{headers:?}"
                );
            }
        }
    });
}

#[test]
fn the_demo_has_runs_of_several_agents_that_end_for_several_reasons() {
    run(async {
        let gateway = Gateway::demo_load().await;
        eventually(async || {
            let runs = gateway.json("/runs").await;
            let owners = runs["runs"].as_array().unwrap().iter();
            let owners: BTreeSet<_> = owners.map(|run| run["owner"].as_str().unwrap()).collect();
            (owners.len() >= 5).then_some(())
        })
        .await;
        eventually(async || {
            let runs = gateway.json("/runs?session=nightly-1").await;
            (runs["runs"][0]["paused"]["cap"] == "turns").then_some(())
        })
        .await;
    });
}

/// The keys of its agents are known to all.
#[test]
fn the_demo_serves_this_machine_alone() {
    run(async {
        let lines = Gateway::refused(&["--demo-load", "--listen", "0.0.0.0:0"]).await;
        assert!(
            lines[0].contains("--listen must name loopback"),
            "{lines:?}"
        );
    });
}
