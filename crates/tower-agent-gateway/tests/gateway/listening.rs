//! Beyond loopback: with keys, and the operator's routes only for the operator.
//!
//! covers: T100

use std::net::{IpAddr, UdpSocket};

use crate::{
    net::{Ask, chat, client, run},
    support::{Config, Gateway},
};

const AUTH: &str = "[auth]\nkeys_env = \"TEST_KEYS\"\n";

const KEYS: (&str, &str) = ("TEST_KEYS", "coder:sk-coder");

/// An address of this machine that is not loopback, if it has one. Nothing is
/// sent for it.
fn outer() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

async fn status(address: IpAddr, gateway: &Gateway, path: &str, key: &str) -> u16 {
    let url = format!("http://{address}:{}{path}", gateway.addr.port());
    // A peer of another machine may claim to be of this one.
    let request = client().get(url).header("host", "localhost");
    let answer = request.bearer_auth(key).ask().await;
    answer.status.as_u16()
}

#[test]
fn with_keys_it_listens_beyond_loopback_and_without_a_token_only_this_machine_operates() {
    run(async {
        let config = Config::new(AUTH).env(KEYS.0, KEYS.1).listen("0.0.0.0:0");
        let (_upstream, gateway) = config.start_with_model(&["m"]).await;
        let call = gateway.post("/v1/chat/completions", chat("ok"));
        let answer = call.bearer_auth("sk-coder").ask().await;
        assert_eq!(answer.status, 200);

        assert_eq!(
            status([127, 0, 0, 1].into(), &gateway, "/runs", "sk-coder").await,
            200
        );
        let Some(outer) = outer() else {
            println!("this machine has loopback only: see the example's own tests");
            return;
        };
        for path in ["/runs", "/runs/r-1", "/events", "/metrics"] {
            assert_eq!(
                status(outer, &gateway, path, "sk-coder").await,
                403,
                "{path}"
            );
        }
        assert_eq!(status(outer, &gateway, "/v1/models", "sk-coder").await, 200);
        assert_eq!(status(outer, &gateway, "/v1/models", "none").await, 401);
    });
}

#[test]
fn with_a_token_the_operator_may_be_anywhere() {
    run(async {
        let config = Config::new(format_args!("{AUTH}[control]\ntoken_env = \"TEST_TOKEN\""))
            .env(KEYS.0, KEYS.1)
            .env("TEST_TOKEN", "t0ken")
            .listen("0.0.0.0:0");
        let (_upstream, gateway) = config.start_with_model(&["m"]).await;
        let addresses = [Some([127, 0, 0, 1].into()), outer()];
        for address in addresses.into_iter().flatten() {
            assert_eq!(status(address, &gateway, "/runs", "t0ken").await, 200);
            assert_eq!(status(address, &gateway, "/runs", "sk-coder").await, 403);
        }
    });
}
