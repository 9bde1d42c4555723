//! Command lines that cannot work, and what they say.

use std::net::TcpListener;

use crate::{net::run, support::Gateway};

#[test]
fn it_says_where_it_listens() {
    run(async {
        let gateway = Gateway::embedded().await;
        assert!(gateway.addr.ip().is_loopback());
        assert_ne!(gateway.addr.port(), 0);
    });
}

/// The usage follows.
#[test]
fn an_unknown_flag_is_named() {
    run(async {
        let told = Gateway::refused(&["--nope"]).await;
        assert_eq!(told[0], "gateway: unknown argument --nope");
        assert!(told[1].starts_with("usage: gateway"), "{told:?}");
    });
}

#[test]
fn a_flag_without_its_value_is_named() {
    run(async {
        for flag in ["--config", "--listen"] {
            let told = Gateway::refused(&[flag]).await;
            assert_eq!(told[0], format!("gateway: {flag} needs a value"));
        }
    });
}

#[test]
fn an_address_that_is_none_is_named() {
    run(async {
        let told = Gateway::refused(&["--listen", "localhost"]).await;
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("gateway: --listen localhost: "),
            "{told:?}"
        );
    });
}

#[test]
fn it_refuses_to_listen_off_loopback() {
    run(async {
        for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let told = Gateway::refused(&["--listen", listen]).await;
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(
                told[0].contains(listen) && told[0].contains("loopback"),
                "{told:?}"
            );
        }
    });
}

#[test]
fn a_port_that_is_taken_is_named() {
    run(async {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = taken.local_addr().unwrap().to_string();
        let told = Gateway::refused(&["--listen", &addr]).await;
        assert_eq!(told.len(), 1, "{told:?}");
        let start = format!("gateway: cannot listen on {addr}: ");
        assert!(told[0].starts_with(&start), "{told:?}");
        assert!(told[0].contains("in use"), "{told:?}");
    });
}
