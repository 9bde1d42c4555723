//! `[server] proxy`: through which proxy the gateway asks its upstreams.

use crate::{
    net::{Ask, CHAT, Call, Play, Upstream, asks, run},
    support::{Config, Gateway},
};

/// What a proxy answers by itself, in the place of any upstream.
const BY_PROXY: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 18\r\n\r\n\
                        {\"from\":\"a proxy\"} ";

/// `Basic` of `user:s3cr3t`.
const CREDENTIAL: &str = "Basic dXNlcjpzM2NyM3Q=";

async fn proxy() -> Upstream {
    Upstream::http1(Play::keep(BY_PROXY)).await
}

/// The variables that name a proxy, in both cases, but for those of `NO_PROXY`.
fn environment(mut config: Config, proxy: &Upstream) -> Config {
    let url = format!("http://user:s3cr3t@{}", proxy.addr);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"] {
        config = config.env(name, &url).env(&name.to_lowercase(), &url);
    }
    config.env("NO_PROXY", "").env("no_proxy", "")
}

async fn ask(gateway: &Gateway) -> crate::net::Answer {
    gateway.post(CHAT, asks("m", false)).ask().await
}

fn heads(calls: &[Call]) -> Vec<(String, Option<&str>)> {
    let credential = |call: &Call| call.headers.get("proxy-authorization").cloned();
    let shown = |call: &Call| (call.uri.to_string(), credential(call).is_some());
    let all = calls.iter().map(shown);
    all.map(|(uri, has)| (uri, has.then_some("credential")))
        .collect()
}

#[test]
fn without_the_key_no_proxy_of_the_environment_is_used() {
    run(async {
        for settings in ["", "[server]\nproxy = \"none\""] {
            let (proxy, upstream) = (proxy().await, Upstream::model().await);
            let config = Config::new(settings).candidates(&["m"], upstream.addr);
            let gateway = environment(config, &proxy).start().await;

            let answer = ask(&gateway).await;

            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!((proxy.count(), upstream.count()), (0, 1));
        }
    });
}

#[test]
fn the_proxy_of_the_environment_or_of_a_url_gets_each_request() {
    run(async {
        for is_url in [false, true] {
            let proxy = proxy().await;
            let key = match is_url {
                true => format!("http://user:s3cr3t@{}", proxy.addr),
                false => "environment".to_owned(),
            };
            let config = Config::new(format_args!("[server]\nproxy = \"{key}\""))
                .set("[[candidates]]\nmodel = \"m\"\nbase_url = \"http://upstream.invalid/v1\"");
            let config = match is_url {
                true => config,
                false => environment(config, &proxy),
            };
            let gateway = config.start().await;

            let answer = ask(&gateway).await;

            assert_eq!(answer.json()["from"], "a proxy", "{answer:?}");
            let calls = proxy.calls();
            let uri = "http://upstream.invalid/v1/chat/completions".to_owned();
            assert_eq!(heads(&calls), [(uri, Some("credential"))]);
            assert_eq!(calls[0].headers["proxy-authorization"], CREDENTIAL);
            assert!(!gateway.log().contains("s3cr3t"), "{}", gateway.log());
        }
    });
}

#[test]
fn an_upstream_of_no_proxy_is_asked_itself() {
    run(async {
        let (proxy, upstream) = (proxy().await, Upstream::model().await);
        let config = Config::new("[server]\nproxy = \"environment\"");
        let config = environment(config.candidates(&["m"], upstream.addr), &proxy);
        let gateway = config.env("NO_PROXY", "localhost,127.0.0.0/8").start();
        let gateway = gateway.await;

        let answer = ask(&gateway).await;

        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!((proxy.count(), upstream.count()), (0, 1));
    });
}

/// A proxy that makes no tunnel: what it says to the gateway is all that there is.
#[test]
fn an_upstream_with_tls_is_reached_by_a_tunnel() {
    run(async {
        for is_url in [false, true] {
            let refuses = "HTTP/1.1 407 Who?\r\ncontent-length: 0\r\n\r\n";
            let proxy = Upstream::http1(Play::keep(refuses)).await;
            let key = match is_url {
                true => format!("http://user:s3cr3t@{}", proxy.addr),
                false => "environment".to_owned(),
            };
            let config = Config::new(format_args!("[server]\nproxy = \"{key}\""))
                .set("[[candidates]]\nmodel = \"m\"\nbase_url = \"https://upstream.invalid/v1\"");
            let config = match is_url {
                true => config,
                false => environment(config, &proxy),
            };
            let gateway = config.start().await;

            let answer = ask(&gateway).await;

            assert_eq!(answer.status, 502, "{answer:?}");
            let calls = proxy.calls();
            let target = "upstream.invalid:443".to_owned();
            assert_eq!(heads(&calls), [(target, Some("credential"))]);
            for shown in [answer.text(), &gateway.log()] {
                assert!(
                    !shown.contains("s3cr3t") && !shown.contains(CREDENTIAL),
                    "{shown}"
                );
            }
        }
    });
}

#[test]
fn the_printed_configuration_hides_the_credential() {
    run(async {
        let file = Config::new("[server]\nproxy = \"http://user:s3cr3t@proxy.example:3128\"")
            .candidate("m", "127.0.0.1:9".parse().unwrap())
            .write();
        let (status, [said, told]) = Gateway::printed(&["--print-config", file.path()], &[]).await;
        assert_eq!(status, Some(0), "{told}");
        assert!(
            said.contains("http://[hidden]@proxy.example:3128"),
            "{said}"
        );
        assert!(!said.contains("s3cr3t"), "{said}");
    });
}

#[test]
fn a_probe_goes_through_the_proxy_too() {
    run(async {
        let proxy = proxy().await;
        let key = format!("[server]\nproxy = \"http://{}\"", proxy.addr);
        let file = Config::new(key)
            .set("[[candidates]]\nmodel = \"m\"\nbase_url = \"http://upstream.invalid/v1\"")
            .write();
        let args = ["--check", file.path(), "--probe"];
        let (_, [said, told]) = Gateway::printed(&args, &[]).await;
        assert_eq!(proxy.count(), 1, "{said}{told}");
        let calls = proxy.calls();
        assert_eq!(
            calls[0].uri.to_string(),
            "http://upstream.invalid/v1/models"
        );
    });
}
