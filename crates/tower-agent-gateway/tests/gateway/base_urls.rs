//! Upstreams that are not where the configuration says, and the question whether they are.
//!
//! covers: A5

use std::time::Instant;

use crate::{
    net::{Ask, CHAT, ClosedPort, Play, Upstream, assert_no_secrets, chat, eventually, run},
    support::{Config, Gateway},
};

/// An answer with this status and body, on a connection that stays open.
fn answer(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Waits for these words in the log.
async fn logged(gateway: &Gateway, words: &str) {
    eventually(async || gateway.log().contains(words).then_some(())).await;
}

#[test]
fn check_warns_of_a_provider_without_its_path_and_serves_all_the_same() {
    run(async {
        let upstream = Upstream::model().await;
        let config =
            Config::new("[[candidates]]\nmodel = \"m\"\nbase_url = \"https://api.openai.com\"");
        let config = config.candidate("n", upstream.addr);
        let file = config.write();
        let (status, [said, told]) = Gateway::printed(&["--check", file.path()], &[]).await;
        assert_eq!(status, Some(0), "{told}");
        assert_eq!(said, format!("{} can be used\n", file.path()));
        let warning = format!("{}:3:12: candidates[0].base_url: ", file.path());
        assert!(
            told.starts_with(&format!("gateway: warning: {warning}")),
            "{told}"
        );
        assert!(told.contains("https://api.openai.com/v1"), "{told}");

        let (gateway, file) = config.start_with_file().await;
        let warning = format!("{}:3:12: candidates[0].base_url: ", file.path());
        logged(&gateway, &warning).await;
        assert!(gateway.log().contains("WARN"), "{}", gateway.log());
    });
}

#[test]
fn a_path_that_an_upstream_does_not_have_is_logged_once_with_its_url() {
    run(async {
        let upstream = Upstream::bytes(answer("404 Not Found", "")).await;
        let other = Upstream::bytes(answer("405 Method Not Allowed", "")).await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        for path in [CHAT, &format!("{CHAT}?sig=secret"), CHAT] {
            let request = gateway.post(path, chat("m"));
            assert_eq!(request.ask().await.status, 404);
        }
        assert_eq!(
            gateway.post("/v1/responses", chat("m")).ask().await.status,
            404
        );
        // The lines come in the order of the calls.
        logged(&gateway, &format!("{}/v1/responses ", upstream.addr)).await;
        let log = gateway.log();
        for path in ["chat/completions", "responses"] {
            let url = format!("http://{}/v1/{path} ", upstream.addr);
            let lines: Vec<_> = log.lines().filter(|line| line.contains(&url)).collect();
            assert_eq!(lines.len(), 1, "{log}");
            for word in ["WARN", "status=404", "base_url", "--probe"] {
                assert!(lines[0].contains(word), "{word}: {}", lines[0]);
            }
        }
        assert_no_secrets(&log, &["secret"]);

        let gateway = Config::new("").candidate("m", other.addr).start().await;
        assert_eq!(gateway.post(CHAT, chat("m")).ask().await.status, 405);
        logged(&gateway, "status=405").await;
    });
}

#[test]
fn a_probe_asks_each_candidate_for_its_models_with_its_credential() {
    run(async {
        let list = r#"{"data":[{"id":"m"},{"id":"models/g"}]}"#;
        let upstream = Upstream::bytes(answer("200 OK", list)).await;
        let claude = "dialect = \"anthropic\"\napi_key_env = \"TEST_KEY\"";
        let file = Config::new("")
            .candidate("m", upstream.addr)
            .set("api_key_env = \"TEST_KEY\"")
            .candidate("g", upstream.addr)
            .candidate("other", upstream.addr)
            .set("name = \"backup\"")
            .set(claude)
            .write();
        let env = [("TEST_KEY".to_owned(), "sk-secret".to_owned())];
        let args = ["--check", file.path(), "--probe"];
        let (status, [said, told]) = Gateway::printed(&args, &env).await;
        assert_eq!((status, &*told), (Some(0), ""));
        let url = format!("GET http://{}/v1/models", upstream.addr);
        let lines = [
            format!("{} can be used", file.path()),
            format!("m: reachable: {url}: 200 OK; the model \"m\" is listed"),
            format!("g: reachable: {url}: 200 OK; the model \"g\" is listed"),
            format!(
                "backup: reachable: {url}?limit=1000: 200 OK; the model \"other\" is not listed"
            ),
        ];
        assert_eq!(said.lines().collect::<Vec<_>>(), lines);
        assert_no_secrets(&said, &["sk-secret"]);

        let calls = upstream.calls();
        assert_eq!(calls.len(), 3);
        let header = |name: &str| {
            let all = calls.iter().filter_map(|call| call.headers.get(name));
            all.map(|value| value.to_str().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(header("authorization"), ["Bearer sk-secret"]);
        assert_eq!(header("x-api-key"), ["sk-secret"]);
        assert_eq!(header("anthropic-version"), ["2023-06-01"]);
    });
}

#[test]
fn a_probe_fails_for_a_candidate_that_cannot_serve() {
    run(async {
        let closed = ClosedPort::new();
        for (status, fails) in [
            ("401 Unauthorized", true),
            ("403 Forbidden", true),
            ("404 Not Found", true),
            ("429 Too Many Requests", false),
            ("500 Internal Server Error", false),
            ("302 Found", false),
        ] {
            let upstream = Upstream::bytes(answer(status, "{}")).await;
            let file = Config::new("").candidate("m", upstream.addr).write();
            let args = ["--check", file.path(), "--probe"];
            let (code, [said, told]) = Gateway::printed(&args, &[]).await;
            assert_eq!(code, Some(i32::from(fails)), "{said}{told}");
            let line = said.lines().nth(1).unwrap();
            assert!(
                line.starts_with("m: reachable: ") && line.contains(status),
                "{said}"
            );
            let why = "gateway: 1 of 1 candidates cannot serve\n";
            assert_eq!(told, if fails { why } else { "" });
        }
        let file = Config::new("").candidate("m", closed.addr).write();
        let args = ["--check", file.path(), "--probe"];
        let (code, [said, _]) = Gateway::printed(&args, &[]).await;
        assert_eq!(code, Some(1));
        let line = said.lines().nth(1).unwrap();
        assert!(
            line.starts_with("m: not reachable: ") && line.contains("refused"),
            "{said}"
        );
    });
}

/// One that never answers, and one whose list never ends.
#[test]
fn a_probe_takes_bounded_time_and_memory() {
    run(async {
        let silent = Upstream::http1(Play::Silent).await;
        let endless = Upstream::http1(Play::Flood(64 << 20)).await;
        let file = Config::new("")
            .candidate("m", silent.addr)
            .candidate("n", endless.addr)
            .write();
        let args = ["--check", file.path(), "--probe"];
        let begun = Instant::now();
        let (code, [said, _]) = Gateway::printed(&args, &[]).await;
        let took = begun.elapsed().as_secs();
        assert!((5..15).contains(&took), "{took}");
        assert_eq!(code, Some(1));
        let lines: Vec<_> = said.lines().skip(1).collect();
        assert!(lines[0].ends_with("no answer within 5s"), "{said}");
        assert!(
            lines[1]
                .contains("200 OK; whether \"n\" is listed is unknown: it is longer than 8 MiB"),
            "{said}"
        );
    });
}
