//! What the upstream is sent, and what of its answer is handed on.

use crate::{
    net::{Answer, Ask, CHAT, ClosedPort, DIALECTS, Raw, STREAM, Upstream, WHOLE, chat, run},
    support::{Config, Gateway},
};

/// What only the gateway must know of its caller.
const PRIVATE: [(&str, &str); 7] = [
    ("authorization", "Bearer caller"),
    ("x-api-key", "caller"),
    ("api-key", "caller"),
    ("x-goog-api-key", "caller"),
    ("cookie", "session=caller"),
    ("x-run-id", "caller"),
    ("x-session-id", "caller"),
];

async fn ask(gateway: &Gateway, path: &str, headers: &[(&str, &str)]) -> Answer {
    let request = gateway.post(path, chat("ok"));
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    request.ask().await
}

#[test]
fn the_candidates_key_is_sent_and_nothing_of_the_callers() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Config::default()
            .candidate("m", upstream.addr)
            .set("api_key_env = \"TEST_KEY\"")
            .env("TEST_KEY", "sk-ours")
            .start()
            .await;
        for path in ["/v1/chat/completions", "/v1/messages"] {
            assert_eq!(ask(&gateway, path, &PRIVATE).await.status, 200);
        }
        let seen = upstream.calls();
        assert_eq!(seen[0].headers["authorization"], "Bearer sk-ours");
        assert_eq!(seen[0].headers.get("x-api-key"), None);
        assert_eq!(seen[1].headers["x-api-key"], "sk-ours");
        assert_eq!(seen[1].headers.get("authorization"), None);
        for seen in &seen {
            assert!(
                !format!("{:?}", seen.headers).contains("caller"),
                "{seen:?}"
            );
            assert_eq!(seen.headers["host"], upstream.addr.to_string());
        }
    });
}

#[test]
fn without_a_key_no_credential_is_sent() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        ask(&gateway, "/v1/chat/completions", &PRIVATE).await;
        let seen = &upstream.calls()[0];
        for (name, _) in PRIVATE {
            assert_eq!(seen.headers.get(name), None);
        }
    });
}

/// Only a gateway like this one has a use for it.
#[test]
fn a_trusted_candidate_is_told_the_run() {
    run(async {
        let upstream = Upstream::model().await;
        let gateway = Config::default()
            .candidate("m", upstream.addr)
            .set("trusted = true")
            .start()
            .await;
        ask(&gateway, "/v1/chat/completions", &[("x-run-id", "r-1")]).await;
        let seen = &upstream.calls()[0];
        assert_eq!(seen.headers["x-run-id"], "r-1");
        assert_eq!(seen.headers.get_all("x-run-id").iter().count(), 1);
    });
}

#[test]
fn headers_of_one_hop_stay_on_it() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let headers = [
            ("connection", "keep-alive, x-hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("proxy-authorization", "Basic caller"),
            ("accept-encoding", "gzip, br"),
            ("anthropic-version", "2023-06-01"),
            ("user-agent", "test/1"),
        ];
        ask(&gateway, "/v1/messages", &headers).await;
        let seen = &upstream.calls()[0].headers;
        for name in ["connection", "x-hop", "te", "proxy-authorization"] {
            assert_eq!(seen.get(name), None, "{name}");
        }
        assert_eq!(seen["accept-encoding"], "identity");
        assert_eq!(seen["anthropic-version"], "2023-06-01");
        assert_eq!(seen["user-agent"], "test/1");
    });
}

#[test]
fn query_and_body_are_sent_as_they_came() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let body = "{ \"model\" : \"m\", \"seed\":1.0000000000000000001,\"a\":\"\\u00fc\" }";
        let request = gateway.post("/v1/chat/completions?api-version=2&x=%2F", body);
        assert_eq!(request.ask().await.status, 200);
        let seen = &upstream.calls()[0];
        assert_eq!(seen.uri, "/v1/chat/completions?api-version=2&x=%2F");
        assert_eq!(seen.body, body);
    });
}

/// They would speak for the gateway, to browsers and to other gateways.
/// covers: T48
#[test]
fn an_upstream_that_is_not_trusted_does_not_speak_for_the_gateway() {
    const SPOKEN: [&str; 11] = [
        "x-terminal-reason",
        "x-run-id",
        "x-served-model",
        "x-served-candidate",
        "set-cookie",
        "set-cookie",
        "alt-svc",
        "strict-transport-security",
        "clear-site-data",
        "nel",
        "report-to",
    ];
    let spoken: String = SPOKEN.map(|name| format!("{name}: theirs\r\n")).concat();
    run(async {
        for (status, trusted) in [(200, false), (429, false), (200, true)] {
            let upstream = Upstream::bytes(format!(
                "HTTP/1.1 {status} Said\r\n{spoken}x-attempt: 7\r\nx-request-id: req_1\r\n\
                 content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
            ))
            .await;
            let gateway = Config::new("[retry]\nmax_attempts_per_candidate = 1")
                .candidate("m", upstream.addr)
                .set("name = \"first\"")
                .set(format_args!("trusted = {trusted}"))
                .start()
                .await;
            let answer = ask(&gateway, CHAT, &[("x-run-id", "r-1")]).await;
            assert_eq!(answer.status, status);
            let headers = &answer.headers;
            let ours = [
                ("x-run-id", "r-1"),
                ("x-served-model", "m"),
                ("x-served-candidate", "first"),
                ("x-attempt", "1"),
            ];
            for (name, ours) in ours {
                let told: Vec<_> = headers.get_all(name).iter().collect();
                assert_eq!(told, [ours], "{name}");
            }
            for name in SPOKEN {
                let is_theirs = headers.get_all(name).iter().any(|it| it == "theirs");
                let is_ours = ours.iter().any(|(known, _)| *known == name);
                assert_eq!(is_theirs, trusted && !is_ours, "{name} under {status}");
            }
            assert_eq!(headers["x-request-id"], "req_1");
        }
    });
}

/// No reason caused it: the upstream's own word on retries counts.
#[test]
fn an_upstreams_word_on_retries_is_handed_on() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let request = gateway.post("/v1/chat/completions", chat("limited"));
        let answer = request.ask().await;
        assert_eq!(answer.status, 429);
        let headers = &answer.headers;
        assert_eq!(headers["x-should-retry"], "true");
        assert_eq!(headers["retry-after"], "7");
        assert_eq!(headers["retry-after-ms"], "6500");
        assert_eq!(headers["x-request-id"], "req_1");
        assert!(headers.contains_key("x-run-id"));
        assert_eq!(headers.get("x-terminal-reason"), None);
        assert_eq!(headers.get("keep-alive"), None);
        assert_eq!(answer.text(), "{\"slow\": \"down\"}");
        assert_eq!(upstream.count(), 1);
    });
}

#[test]
fn an_upstream_that_is_not_there_is_answered_502_without_its_address() {
    run(async {
        let closed = ClosedPort::new();
        let gateway = Config::new("")
            .candidates(&["m"], closed.addr)
            .start()
            .await;
        let answer = ask(&gateway, "/v1/chat/completions", &[]).await;
        assert_eq!(answer.status, 502);
        assert!(answer.headers.contains_key("x-run-id"));
        assert_eq!(answer.headers.get("x-terminal-reason"), None);
        assert_eq!(answer.headers.get("x-should-retry"), None);
        let text = answer.text();
        assert!(text.contains("upstream_failed"), "{text}");
        assert!(!text.contains(&closed.addr.to_string()), "{text}");
    });
}

#[test]
fn the_models_of_a_configuration_are_its_candidates() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let models = gateway.json("/v1/models").await;
        assert_eq!(models["data"].as_array().unwrap().len(), 1);
        assert_eq!(models["data"][0]["id"], "m");
        assert_eq!(upstream.count(), 0);
    });
}

/// Its time is the caller's, and no silence of anybody's.
#[test]
fn a_slow_upload_is_not_cut_by_the_step_windows() {
    run(async {
        let limits = "[run]\nstep_timeout = \"1200ms\"\n[attempt]\nstep_timeout = \"1s\"";
        let (upstream, gateway) = Config::new(limits).start_with_model(&["m"]).await;
        let body = chat("ok");
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let mut client = Raw::request(gateway.addr, &head).await;
        let (first, second) = body.split_at(10);
        for part in [first, second] {
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            client.send(part).await;
        }
        let answer = client.answer().await;
        assert_eq!(answer.status, 200);
        assert_eq!(upstream.calls()[0].body, body);
    });
}

/// With everything that reads what passes.
#[test]
fn what_only_looks_changes_no_byte() {
    run(async {
        let all = "preset = \"recommended\"\n[stop]\nphrases = [\"/stop\"]\n\
                   [loops]\nstop = 3\n[progress]\ncomments = true\n";
        let (upstream, gateway) = Config::new(all).start_with_model(&["m"]).await;
        for dialect in &DIALECTS {
            // The upstream streams as chat does, whatever it is asked for.
            for stream in [false, dialect.path == CHAT] {
                let asks = dialect.asks("m", stream).replace(':', " :\t");
                let request = gateway.post(dialect.path, asks.clone());
                let request = request.header("x-run-id", "r-1");
                let request = request.header("x-session-id", "s-1");
                let answer = request.ask().await;
                assert_eq!(answer.status, 200, "{}", dialect.path);
                let wanted = if stream { STREAM } else { WHOLE };
                assert_eq!(answer.text(), wanted);
                assert_eq!(upstream.calls().pop().unwrap().body, asks);
            }
        }
        // What is not JSON is refused as without them.
        let answer = gateway.post(CHAT, "").ask().await;
        assert_eq!(answer.status, 400);
        assert_eq!(upstream.count(), 6);
    });
}
