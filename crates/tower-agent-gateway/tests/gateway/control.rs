//! The operator's routes, and who may use them.

use crate::{
    net::{Ask, CHAT, Raw, chat, error_event, eventually, run, within},
    support::{Config, Gateway},
};
use reqwest::Method;
use serde_json::{Value, json};

/// Every route of the operator's.
const ROUTES: [(Method, &str); 22] = [
    (Method::GET, "/runs"),
    (Method::GET, "/runs/r-1"),
    (Method::GET, "/runs/r-1/wait"),
    (Method::POST, "/runs/r-1/abort"),
    (Method::POST, "/runs/r-1/complete"),
    (Method::POST, "/sessions/s-1/abort"),
    (Method::GET, "/events"),
    (Method::GET, "/metrics"),
    (Method::GET, "/cooldowns"),
    (Method::POST, "/cooldowns/m/clear"),
    (Method::POST, "/runs/r-1/pause"),
    (Method::POST, "/runs/r-1/resume"),
    (Method::POST, "/runs/r-1/extend"),
    (Method::POST, "/abort"),
    (Method::GET, "/freeze"),
    (Method::PUT, "/freeze"),
    (Method::DELETE, "/freeze"),
    (Method::PUT, "/freeze/one"),
    (Method::DELETE, "/freeze/one"),
    (Method::GET, "/ends"),
    (Method::GET, "/candidates"),
    (Method::GET, "/openapi.json"),
];

/// As browsers may write what is no page of this machine.
const FOREIGN: [&str; 7] = [
    "http://evil.example",
    "https://127.0.0.1.evil.example",
    "http://localhost.evil.example:8787",
    "http://localhost@evil.example",
    "null",
    "",
    "file://",
];

/// What proxies add.
const PROXIES: [&str; 19] = [
    "via",
    "forwarded",
    "x-real-ip",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-forwarded-server",
    "x-forwarded-client-cert",
    "x-envoy-external-address",
    "x-envoy-internal",
    "cf-ray",
    "cf-visitor",
    "cf-connecting-ip",
    "true-client-ip",
    "x-cluster-client-ip",
    "fastly-client-ip",
    "do-connecting-ip",
    "client-ip",
];

async fn status(gateway: &Gateway, route: &(Method, &str), headers: &[(&str, &str)]) -> u16 {
    let (method, path) = route;
    let request = gateway.request(method.clone(), path);
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, *value)
    });
    request.ask().await.status.as_u16()
}

/// covers: C4
#[test]
fn a_run_is_listed_shown_and_aborted_once() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let stream = gateway.post(CHAT, chat("stall")).header("x-run-id", "r-1");
        let mut stream = stream.header("x-session-id", "s-1").open().await;
        assert_eq!(stream.headers["x-run-id"], "r-1");

        let runs = gateway.json("/runs").await;
        assert_eq!(runs["runs"].as_array().unwrap().len(), 1);
        let shown = gateway.json("/runs/r-1").await;
        assert_eq!(shown["run"], "r-1");
        assert_eq!(shown["session"], "s-1");
        assert_eq!(shown["reason"], Value::Null);
        // The call, its candidate and the try of it.
        assert_eq!(shown["in_flight"], 3);

        assert!(gateway.abort("r-1").await);
        let text = stream.rest().await;
        let (_, data) = error_event(&text);
        assert_eq!(data["code"], "aborted");
        assert_eq!(data["error"]["run_id"], "r-1");
        assert!(!gateway.abort("r-1").await, "once");
        assert_eq!(gateway.json("/runs/r-1").await["reason"], "aborted");
        upstream.until_open(0).await;
    });
}

/// It is over, whatever its clients try.
#[test]
fn the_next_request_of_an_aborted_run_is_answered_499_without_an_upstream_call() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let request = || {
            gateway
                .post(CHAT, chat("ok"))
                .header("x-run-id", "r-1")
                .ask()
        };
        assert_eq!(request().await.status, 200);
        assert!(gateway.abort("r-1").await);

        for _ in 0..3 {
            let answer = request().await;
            assert_eq!(answer.status, 499);
            assert_eq!(answer.headers["x-terminal-reason"], "aborted");
            assert_eq!(answer.headers["x-should-retry"], "false");
            assert_eq!(answer.headers["x-run-id"], "r-1");
            let body = answer.json();
            assert_eq!(body["error"]["code"], "aborted");
        }
        assert_eq!(upstream.count(), 1, "the upstream is called once");
    });
}

/// An operator who pastes a session's id learns which route ends its runs; nothing is ended.
#[test]
fn an_abort_by_the_id_of_a_session_names_the_route_that_ends_it() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let call = gateway
            .post(CHAT, chat("silent"))
            .header("x-session-id", "chat-7")
            .ask();
        let call = tokio::spawn(call);
        upstream.until_open(1).await;
        let answer = gateway.post("/runs/chat-7/abort", "").ask().await;
        assert_eq!(answer.status, 404);
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "run_not_found", "{error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("POST /sessions/chat-7/abort"), "{message}");
        assert_eq!(upstream.count(), 1);

        let answer = gateway.post("/sessions/chat-7/abort", "").ask().await;
        assert_eq!(answer.json()["runs"].as_array().unwrap().len(), 1);
        assert_eq!(within(call).await.unwrap().status, 499);
    });
}

/// An abort before the head is an answer, not a broken connection.
#[test]
fn a_call_that_waits_is_answered_499_when_its_run_is_aborted() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let call = gateway
            .post(CHAT, chat("silent"))
            .header("x-run-id", "r-1")
            .ask();
        let call = tokio::spawn(call);
        upstream.until_open(1).await;
        assert!(gateway.abort("r-1").await);
        let answer = within(call).await.unwrap();
        assert_eq!(answer.status, 499);
        upstream.until_open(0).await;
    });
}

/// covers: C4
#[test]
fn an_unknown_run_is_not_found_and_not_aborted() {
    run(async {
        let gateway = Gateway::embedded().await;
        for route in &ROUTES[1..4] {
            let answer = gateway.request(route.0.clone(), route.1).ask().await;
            assert_eq!(answer.status, 404, "{}", route.1);
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "run_not_found", "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("no run r-1"), "{message}");
        }
        let none = json!({"runs": [], "registry_sequence": 0});
        assert_eq!(gateway.json("/runs").await, none);
        // Without live runs a session is as one that never was.
        let session = gateway.post("/sessions/s-1/abort", "").ask().await;
        assert_eq!(
            (session.status.as_u16(), session.json()),
            (200, json!({"runs": []}))
        );
        let bad = (Method::GET, "/runs/a%20b");
        assert_eq!(status(&gateway, &bad, &[]).await, 400);
    });
}

/// The run of one credential is not the run of another, except to the operator.
/// covers: C4
#[test]
fn the_operator_sees_the_runs_of_all_owners() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let request = |key| {
            let request = gateway.post(CHAT, chat("ok")).header("x-run-id", "r-1");
            request.bearer_auth(key).ask()
        };
        assert_eq!(request("one").await.status, 200);
        assert_eq!(request("two").await.status, 200);
        let shown = gateway.json("/runs/r-1").await;
        assert_eq!(shown["runs"].as_array().unwrap().len(), 2, "{shown}");
        assert!(gateway.abort("r-1").await);
        for key in ["one", "two"] {
            assert_eq!(request(key).await.status, 499);
        }
    });
}

/// Each operation that the description calls the operator's is one that the tests below try. A test of the
/// routes holds that to the router.
#[test]
fn every_other_route_is_the_operators() {
    let described: Value =
        serde_json::from_str(include_str!("../../src/routes/openapi.json")).unwrap();
    let mut found = 0;
    for (path, item) in described["paths"].as_object().unwrap() {
        let is_it = |known: &str| {
            let (path, known) = (path.split('/'), known.split('/'));
            path.clone().count() == known.clone().count()
                && path
                    .zip(known)
                    .all(|(part, known)| part == known || part.starts_with('{'))
        };
        let operations = item.as_object().unwrap().iter();
        for (method, _) in operations.filter(|(_, it)| it["tags"][0] == "operator") {
            let mut tried = ROUTES.iter();
            let is_tried = tried
                .any(|(name, known)| name.as_str().eq_ignore_ascii_case(method) && is_it(known));
            assert!(is_tried, "`ROUTES` lacks {method} {path}");
            found += 1;
        }
    }
    assert_eq!(found, ROUTES.len());
}

/// covers: T96
#[test]
fn a_page_of_another_origin_is_refused() {
    run(async {
        let gateway = Gateway::embedded().await;
        for route in &ROUTES {
            for origin in FOREIGN {
                let headers = [("origin", origin)];
                let status = status(&gateway, route, &headers).await;
                assert_eq!(status, 403, "{route:?}, {origin:?}");
            }
        }
        // Another port is another origin, also on this machine.
        for origin in ["http://localhost:3000", "http://[::1]:3000"] {
            let headers = [("origin", origin)];
            for route in &ROUTES {
                let status = status(&gateway, route, &headers).await;
                assert_eq!(status, 403, "{route:?}, {origin}");
            }
        }
        let own = format!("http://{}", gateway.addr);
        let headers = [("origin", own.as_str())];
        assert_eq!(status(&gateway, &ROUTES[0], &headers).await, 200);
    });
}

/// Pictures, scripts and links of a page name no origin.
#[test]
fn what_a_page_fetches_without_an_origin_is_refused() {
    run(async {
        let gateway = Gateway::embedded().await;
        for route in &ROUTES {
            for site in ["cross-site", "same-site", "nonsense"] {
                let headers = [("sec-fetch-site", site)];
                let status = status(&gateway, route, &headers).await;
                assert_eq!(status, 403, "{route:?}, {site}");
            }
        }
        for site in ["same-origin", "none"] {
            let headers = [("sec-fetch-site", site)];
            assert_eq!(status(&gateway, &ROUTES[0], &headers).await, 200, "{site}");
        }
    });
}

/// Nor what a proxy on this machine passes on for somebody else.
/// covers: T99
#[test]
fn what_came_through_a_proxy_is_refused() {
    run(async {
        let gateway = Gateway::embedded().await;
        for name in PROXIES {
            let headers = [(name, "1.1 proxy")];
            assert_eq!(status(&gateway, &ROUTES[0], &headers).await, 403, "{name}");
        }
        // What a program of this machine may call a header of its own.
        for name in [
            "x-cf",
            "xcf-a",
            "x-forward",
            "x-client-ip-of",
            "x-request-id",
        ] {
            let headers = [(name, "1")];
            assert_eq!(status(&gateway, &ROUTES[0], &headers).await, 200, "{name}");
        }
    });
}

/// Whoever knows the token may come through one.
#[test]
fn with_a_token_a_proxy_may_stand_in_front() {
    run(async {
        let (_upstream, gateway) = Config::new("[control]\ntoken_env = \"TEST_TOKEN\"")
            .env("TEST_TOKEN", "t0ken")
            .start_with_model(&["m"])
            .await;
        for name in PROXIES {
            let headers = [(name, "1.1 proxy"), ("authorization", "Bearer t0ken")];
            assert_eq!(status(&gateway, &ROUTES[0], &headers).await, 200, "{name}");
        }
    });
}

/// One server reads the first, another the last, or what stands behind an `@`.
/// covers: T99
#[test]
fn two_hosts_or_a_malformed_one_are_a_bad_request_on_every_route() {
    run(async {
        let gateway = Gateway::embedded().await;
        for path in ["/runs", "/healthz", "/v1/models"] {
            for host in [
                "host: evil.com@localhost",
                "host: localhost\r\nhost: localhost",
                "host: localhost\r\nhost: evil.com",
                "host: localhost, evil.com",
                "host: localhost:port",
            ] {
                let request = format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{host}\r\n\r\n");
                let answer = Raw::request(gateway.addr, &request)
                    .await
                    .read_to_end()
                    .await;
                assert!(answer.starts_with("HTTP/1.1 400"), "{host}: {answer}");
            }
        }
        let target = "GET http://evil.com@localhost/runs HTTP/1.1\r\nconnection: close";
        let answer = Raw::request(
            gateway.addr,
            &format!("{target}\r\nhost: localhost\r\n\r\n"),
        )
        .await
        .read_to_end()
        .await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    });
}

#[test]
fn runs_are_listed_page_by_page_newest_first() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        for number in 0..5 {
            let call = gateway.post(CHAT, chat("ok"));
            let call = call.header("x-run-id", format!("r-{number}"));
            assert_eq!(call.ask().await.status, 200);
        }
        let (mut seen, mut path) = (Vec::new(), "/runs?limit=2".to_owned());
        let lengths = loop {
            let page = gateway.json(&path).await;
            let runs = page["runs"].as_array().unwrap();
            seen.push(
                runs.iter()
                    .map(|run| run["run"].clone())
                    .collect::<Vec<_>>(),
            );
            let Some(next) = page.get("next") else {
                break seen.iter().map(Vec::len).collect::<Vec<_>>();
            };
            path = format!("/runs?limit=2&after={}", next.as_str().unwrap());
        };
        assert_eq!(lengths, [2, 2, 1]);
        assert_eq!(seen.concat(), ["r-4", "r-3", "r-2", "r-1", "r-0"]);
        let all = gateway.json("/runs").await;
        assert_eq!(all["runs"].as_array().unwrap().len(), 5);

        for (query, named) in [
            ("limit=0", "limit: \"0\""),
            ("limit=5s", "limit: \"5s\""),
            ("after=r-1", "after: \"r-1\""),
            ("limt=1", "`limt`"),
        ] {
            let answer = gateway.get(&format!("/runs?{query}")).ask().await;
            assert_eq!(answer.status, 400, "{query}");
            let error = &answer.json()["error"];
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(named), "{message}");
        }
    });
}

/// Who sends such requests for ever fills nothing.
/// covers: T85
#[test]
fn requests_that_are_refused_leave_no_run_open() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        for number in 0..50 {
            let body = ["{\"model\":", "no JSON"][number % 2];
            let call = gateway.post(CHAT, body);
            let call = call.header("x-run-id", format!("r-{number}"));
            assert_eq!(call.ask().await.status, 400);
        }
        eventually(async || {
            let metrics = gateway.get("/metrics").ask().await;
            let metrics = metrics.text();
            metrics.contains("agent_runs_open 0\n").then_some(())
        })
        .await;
        // One that is served is there until it was idle.
        let call = gateway.post(CHAT, chat("ok")).header("x-run-id", "r-0");
        assert_eq!(call.ask().await.status, 200);
        let run = gateway.json("/runs/r-0").await;
        assert_eq!(
            (&run["reason"], &run["generation"]),
            (&Value::Null, &json!(2))
        );
        assert_eq!(upstream.count(), 1);
    });
}

/// A name that a page made resolve to this machine is not this machine's.
/// covers: T96
#[test]
fn a_foreign_host_is_refused() {
    run(async {
        let gateway = Gateway::embedded().await;
        let port = gateway.addr.port();
        for route in &ROUTES {
            for host in [
                "evil.example",
                "127.0.0.1.evil.example",
                "localhost.",
                "192.0.2.1",
            ] {
                for host in [host.to_owned(), format!("{host}:{port}")] {
                    let headers = [("host", host.as_str())];
                    assert_eq!(status(&gateway, route, &headers).await, 403, "{host}");
                }
            }
        }
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            let headers = [("host", host)];
            assert_eq!(status(&gateway, &ROUTES[0], &headers).await, 200, "{host}");
        }
    });
}

#[test]
fn a_request_that_names_no_host_is_refused() {
    run(async {
        let gateway = Gateway::embedded().await;
        let answer = Raw::request(gateway.addr, "GET /runs HTTP/1.0\r\n\r\n")
            .await
            .read_to_end()
            .await;
        assert!(answer.starts_with("HTTP/1.0 403"), "{answer}");
    });
}

/// The target's authority is what counts.
#[test]
fn a_request_with_a_foreign_authority_is_refused() {
    run(async {
        let gateway = Gateway::embedded().await;
        let target = "GET http://evil.example/runs HTTP/1.1\r\nconnection: close";
        let answer = Raw::request(
            gateway.addr,
            &format!("{target}\r\nhost: localhost\r\n\r\n"),
        )
        .await
        .read_to_end()
        .await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    });
}

#[test]
fn with_a_token_only_who_knows_it_is_let_through() {
    run(async {
        let (_upstream, gateway) = Config::new("[control]\ntoken_env = \"TEST_TOKEN\"")
            .env("TEST_TOKEN", "t0ken")
            .start_with_model(&["m"])
            .await;
        for route in &ROUTES {
            for value in [
                "",
                "Bearer ",
                "Bearer t0ke",
                "Bearer t0ken2",
                "t0ken",
                "Basic t0ken",
            ] {
                let headers = [("authorization", value)];
                assert_eq!(status(&gateway, route, &headers).await, 403, "{value:?}");
            }
            assert_eq!(status(&gateway, route, &[]).await, 403);
        }
        let known = ("authorization", "Bearer t0ken");
        assert_eq!(status(&gateway, &ROUTES[0], &[known]).await, 200);
        let elsewhere = ("host", "gateway.example");
        assert_eq!(status(&gateway, &ROUTES[0], &[known, elsewhere]).await, 200);
        // The callers' routes are not the operator's.
        let answer = gateway.post(CHAT, chat("ok")).ask().await;
        assert_eq!(answer.status, 200);
    });
}

/// Not even one that knows the token, or that may call the callers' routes.
/// covers: T96
#[test]
fn a_page_of_another_origin_is_refused_whatever_it_knows() {
    run(async {
        let more = "[control]\ntoken_env = \"TEST_TOKEN\"\n[auth]\nkeys_env = \"TEST_KEYS\"\n\
                    [cors]\norigins = [\"https://app.example\"]";
        let config = Config::new(more)
            .env("TEST_TOKEN", "t0ken")
            .env("TEST_KEYS", "coder:sk-coder");
        let (upstream, gateway) = config.start_with_model(&["m"]).await;
        let stream = gateway.post(CHAT, chat("stall")).header("x-run-id", "r-1");
        let _open = stream.bearer_auth("sk-coder").open().await;
        for origin in FOREIGN.into_iter().chain(["https://app.example"]) {
            for route in &ROUTES {
                let token = ("authorization", "Bearer t0ken");
                let headers = [("origin", origin), token];
                let status = status(&gateway, route, &headers).await;
                assert_eq!(status, 403, "{route:?}, {origin:?}");
                // What a browser asks before it sends the token.
                let asked = gateway
                    .request(Method::OPTIONS, route.1)
                    .header("origin", origin)
                    .header("access-control-request-method", route.0.as_str())
                    .header("access-control-request-headers", "authorization");
                let answer = asked.ask().await;
                assert_eq!(answer.status, 403, "{origin:?}");
                let told = format!("{:?}", answer.headers);
                assert!(!told.contains("access-control"), "{told}");
            }
        }
        assert_eq!(upstream.open(), 1, "the run goes on");
    });
}

/// Where no token is set, a caller's key opens nothing more.
#[test]
fn a_callers_key_is_not_the_operators() {
    run(async {
        let more = "[control]\ntoken_env = \"TEST_TOKEN\"\n[auth]\nkeys_env = \"TEST_KEYS\"";
        let config = Config::new(more)
            .env("TEST_TOKEN", "t0ken")
            .env("TEST_KEYS", "coder:sk-coder");
        let (upstream, gateway) = config.start_with_model(&["m"]).await;
        for route in &ROUTES {
            let key = ("authorization", "Bearer sk-coder");
            assert_eq!(status(&gateway, route, &[key]).await, 403);
        }
        // And the other way round.
        let request = gateway.post(CHAT, chat("ok")).bearer_auth("t0ken");
        assert_eq!(request.ask().await.status, 401);
        assert_eq!(upstream.count(), 0);
    });
}
