//! Whose credential goes where, and where none is ever written.
//!
//! covers: T60

use std::fmt::Write as _;

use crate::{
    net::{Ask, ClosedPort, Upstream, asks, assert_no_secrets, run},
    support::Config,
};

const CALLERS: &str = "sk-of-the-caller";
const FIRST: &str = "sk-of-the-first";
const SECOND: &str = "sk-of-the-second";

#[test]
fn each_upstream_sees_its_own_key_and_nobody_reads_one() {
    run(async {
        let (first, second) = (Upstream::model().await, Upstream::model().await);
        let closed = ClosedPort::new();
        let gateway = Config::default()
            .candidate("500", first.addr)
            .set("api_key_env = \"FIRST_KEY\"")
            .candidate("ok", second.addr)
            .set("api_key_env = \"SECOND_KEY\"")
            .candidate("gone", closed.addr)
            .set("api_key_env = \"SECOND_KEY\"")
            .env("FIRST_KEY", FIRST)
            .env("SECOND_KEY", SECOND)
            // It offers no such thing; should it, it must not tell either.
            .env("RUST_LOG", "trace")
            .start()
            .await;

        let mut told = String::new();
        let asked = [
            ("/v1/chat/completions", "500"),
            ("/v1/messages", "500"),
            ("/v1/chat/completions", "gone"),
            ("/v1/embeddings", "no such model"),
        ];
        for (path, model) in asked {
            let request = gateway
                .post(path, asks(model, false))
                .bearer_auth(CALLERS)
                .header("x-api-key", CALLERS)
                .header("api-key", CALLERS)
                .header("cookie", CALLERS);
            let answer = request.ask().await;
            let _ = write!(told, "{} {:?}", answer.status, answer.headers);
            told += answer.text();
        }
        for path in ["/v1/models", "/runs"] {
            told += &gateway.json(path).await.to_string();
        }

        let keys = |upstream: &Upstream, name: &str| -> Vec<String> {
            let seen = upstream.calls();
            let values = seen.iter().filter_map(|seen| seen.headers.get(name));
            values.map(|it| it.to_str().unwrap().to_owned()).collect()
        };
        let bearer = |key: &str| format!("Bearer {key}");
        // "gone" is followed by the list as it stands.
        assert_eq!(first.count(), 4);
        assert_eq!(keys(&first, "authorization"), vec![bearer(FIRST); 3]);
        assert_eq!(keys(&first, "x-api-key"), [FIRST]);
        assert_eq!(second.count(), 4);
        assert_eq!(keys(&second, "authorization"), vec![bearer(SECOND); 3]);
        assert_eq!(keys(&second, "x-api-key"), [SECOND]);
        for seen in first.calls().iter().chain(&second.calls()) {
            assert!(!format!("{seen:?}").contains(CALLERS), "{seen:?}");
        }
        assert_no_secrets(&told, &[CALLERS, FIRST, SECOND]);
        assert_no_secrets(&gateway.log(), &[CALLERS, FIRST, SECOND]);
    });
}

/// What failed is logged, without what must not be.
#[test]
fn a_failed_chain_is_logged_without_keys() {
    run(async {
        let (upstream, closed) = (Upstream::model().await, ClosedPort::new());
        let gateway = Config::default()
            .candidate("500", upstream.addr)
            .set("api_key_env = \"FIRST_KEY\"")
            .candidate("gone", closed.addr)
            .set("api_key_env = \"SECOND_KEY\"")
            .env("FIRST_KEY", FIRST)
            .env("SECOND_KEY", SECOND)
            .start()
            .await;
        let request = gateway.post("/v1/chat/completions", asks("500", false));
        let answer = request.bearer_auth(CALLERS).ask().await;
        assert_eq!(answer.status, 502);
        let log = crate::net::eventually(async || {
            let log = gateway.log();
            (log.contains("no further attempt") && log.contains("call failed")).then_some(log)
        });
        assert_no_secrets(&log.await, &[CALLERS, FIRST, SECOND]);
        assert_eq!(upstream.count(), 1);
    });
}
