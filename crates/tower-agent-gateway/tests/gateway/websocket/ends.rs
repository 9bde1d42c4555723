//! How a socket ends, by either side.

use std::time::{Duration, Instant};

use futures_util::SinkExt;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::Message;

use super::client::{Caller, PATH, upstream};
use crate::{
    net::{Raw, eventually, run},
    support::Config,
};

/// A caller may close, hang up, or crash.
#[test]
fn a_caller_that_goes_releases_the_upstream_at_once() {
    run(async {
        for how in ["close", "fin", "reset"] {
            for input in ["stall", "silent"] {
                let mut tries = 0;
                loop {
                    let upstream = upstream().await;
                    let gateway = Config::new("[retry]\nmax_attempts_per_candidate = 3")
                        .candidates(&["m", "n"], upstream.addr)
                        .start()
                        .await;
                    let mut caller = Caller::connect(&gateway).await;
                    caller.create(input).await;
                    upstream.until_open(1).await;
                    if input == "stall" {
                        caller.begun().await;
                    }
                    let went = Instant::now();
                    match how {
                        "close" => caller.socket.close(None).await.unwrap(),
                        "fin" => caller.socket.get_mut().shutdown().await.unwrap(),
                        _ => {
                            let stream = caller.socket.into_inner();
                            stream.set_zero_linger().unwrap();
                        }
                    }
                    upstream.until_open(0).await;
                    let took = went.elapsed();
                    assert_eq!(
                        gateway.only_reason().await,
                        "client_disconnect",
                        "{how} {input}"
                    );
                    assert_eq!(upstream.count(), 1, "nothing is repeated for nobody");
                    tries += 1;
                    if took < Duration::from_millis(100) {
                        break;
                    }
                    // The machine may be busy once, and not each time.
                    assert!(tries < 5, "{how} {input}: {took:?}");
                }
            }
        }
    });
}

#[test]
fn a_drain_closes_a_socket_behind_its_response() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[control]\ndrain = \"20s\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut idle = Caller::connect(&gateway).await;
        let mut busy = Caller::connect(&gateway).await;
        busy.create("held").await;
        busy.begun().await;
        gateway.signal("TERM");
        assert_eq!(u16::from(idle.closed().await.code), 1001);
        upstream.resume();
        busy.completed().await;
        assert_eq!(u16::from(busy.closed().await.code), 1001);
    });
}

#[test]
fn a_shutdown_ends_a_response_with_its_reason() {
    run(async {
        let upstream = upstream().await;
        let mut gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("stall").await;
        caller.begun().await;
        gateway.signal("TERM");
        let error = caller.error().await;
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&503.into(), &"shutdown".into())
        );
        assert_eq!(error["headers"]["x-should-retry"], "true");
        assert_eq!(u16::from(caller.closed().await.code), 1001);
        caller.gone().await;
        assert!(gateway.exit_status().await.success());
    });
}

#[test]
fn a_socket_that_is_old_closes_between_responses() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nwebsocket_age = \"1s\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        // A turn that works is not cut; what comes after it is refused.
        caller.create("held").await;
        caller.begun().await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        caller.create("too late").await;
        let error = caller.error().await;
        let code = "websocket_connection_limit_reached";
        assert_eq!(
            (&error["error"]["code"], &error["status"]),
            (&code.into(), &400.into())
        );
        upstream.resume();
        caller.completed().await;
        assert_eq!(caller.error().await["error"]["code"], code);
        assert_eq!(u16::from(caller.closed().await.code), 1001);
        assert_eq!(upstream.count(), 1);
    });
}

/// What was checked at the upgrade may be another then: keys, origins, known agents.
#[test]
fn a_reload_closes_the_sockets_behind_their_responses() {
    run(async {
        let upstream = upstream().await;
        let config = |keys: &str| {
            let auth = format!("[auth]\nkeys_env = \"{keys}\"");
            let config = Config::new(auth).candidate("m", upstream.addr);
            config.env("ONE", "one:sk-one").env("TWO", "one:sk-two")
        };
        let (gateway, file) = config("ONE").start_with_file().await;
        let [old, new] = ["Bearer sk-one", "Bearer sk-two"].map(|key| [("authorization", key)]);
        let mut idle = Caller::connect_with(&gateway, &old).await;
        let mut busy = Caller::connect_with(&gateway, &old).await;
        busy.create("held").await;
        busy.begun().await;
        // It waits in the lane, and has a key that is good for nothing any more.
        busy.create("later").await;
        file.replace(&config("TWO"));
        gateway.signal("HUP");
        assert_eq!(u16::from(idle.closed().await.code), 1001);
        let refused = busy.error().await;
        let code = "websocket_connection_limit_reached";
        assert_eq!(refused["error"]["code"], code);
        upstream.resume();
        busy.completed().await;
        assert_eq!(u16::from(busy.closed().await.code), 1001);
        assert_eq!(upstream.count(), 1);

        assert_eq!(Caller::refused(&gateway, &old).await.status(), 401);
        let mut caller = Caller::connect_with(&gateway, &new).await;
        for _ in 0..2 {
            caller.create("ok").await;
            caller.completed().await;
        }
    });
}

#[test]
fn a_caller_that_answers_no_ping_is_gone() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nkeep_alive = \"200ms\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        // The library answers pings while it is read.
        let mut polite = Caller::connect(&gateway).await;
        let head = format!(
            "GET {PATH} HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        let mut silent = Raw::request(gateway.addr, &head).await;
        let read = silent.read_to_end();
        let waits = async {
            polite.create("slow").await;
            polite.completed().await;
        };
        let (read, ()) = futures_util::future::join(read, waits).await;
        assert!(read.starts_with("HTTP/1.1 101"), "{read}");
        polite.create("slow").await;
        polite.completed().await;
    });
}

#[test]
fn a_socket_counts_as_a_connection_until_it_is_closed() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nmax_connections = 2");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut one = Caller::connect(&gateway).await;
        let two = Caller::connect(&gateway).await;
        one.create("ok").await;
        one.completed().await;
        let third = gateway.get("/healthz").send();
        let third = tokio::spawn(third);
        eventually(async || gateway.log().contains("connections wait").then_some(())).await;
        assert!(!third.is_finished());
        drop(two);
        assert_eq!(third.await.unwrap().unwrap().status(), 200);
        one.create("ok").await;
        one.completed().await;
    });
}

#[test]
fn the_gauge_counts_open_sockets() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let open = async || gateway.metric("agent_websockets_open").await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("ok").await;
        caller.completed().await;
        assert_eq!(open().await, Some(1.0));
        caller.socket.send(Message::Close(None)).await.unwrap();
        caller.gone().await;
        eventually(async || open().await.filter(|open| *open == 0.0)).await;
    });
}
