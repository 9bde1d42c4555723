//! covers: T97

use std::time::Duration;

use super::super::{ServerLimits, WebSocketSettings};
use super::{message, with_candidate};

const fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

#[test]
fn connections_are_limited_unless_the_file_says_otherwise() {
    let on = ServerLimits {
        head_timeout: seconds(30),
        upload_idle: seconds(30),
        max_connections: Some(10_000),
        keep_alive: seconds(60),
        max_buffered: None,
        websocket: Some(WebSocketSettings {
            max_age: seconds(3600),
        }),
        threads: std::thread::available_parallelism()
            .ok()
            .and_then(|cores| u32::try_from(cores.get()).ok()),
    };
    for more in ["", "[server]", "preset = \"recommended\""] {
        assert_eq!(with_candidate(more).unwrap().server, on, "{more}");
    }

    let some = "[server]\nhead_timeout = \"5s\"\nmax_connections = 7\nthreads = 3";
    let expected = ServerLimits {
        head_timeout: seconds(5),
        max_connections: Some(7),
        threads: Some(3),
        ..on
    };
    assert_eq!(with_candidate(some).unwrap().server, expected);

    let of_age = |age: &str| {
        let config = with_candidate(&format!("[server]\nwebsocket_age = \"{age}\""));
        config.unwrap().server.websocket.unwrap().max_age
    };
    assert_eq!((of_age("5m"), of_age("0s")), (seconds(300), None));

    let off = "[server]\nhead_timeout = \"0s\"\nupload_idle = \"0s\"\nmax_connections = 0\nkeep_alive = \"0s\"\nwebsocket = false\nthreads = 0";
    let expected = ServerLimits {
        head_timeout: None,
        upload_idle: None,
        max_connections: None,
        keep_alive: None,
        max_buffered: None,
        websocket: None,
        threads: None,
    };
    assert_eq!(with_candidate(off).unwrap().server, expected);
}

#[test]
fn the_buffer_of_uploads_is_a_share_of_the_memory_unless_the_file_says_otherwise() {
    let bytes = |line: &str| {
        let config = with_candidate(&format!("[server]\n{line}"));
        config.unwrap().server.max_buffered()
    };
    assert_eq!(bytes("max_buffered = \"256 MiB\""), 256 << 20);
    assert_eq!(bytes("max_buffered = 33554432"), 32 << 20);
    assert!(bytes("") >= 32 << 20);
}

#[test]
fn wrong_limits_of_connections_are_named() {
    for (line, told) in [
        (
            "head_timeout = true",
            "server.head_timeout: true is not a duration",
        ),
        (
            "upload_idle = \"-1s\"",
            "server.upload_idle: \"-1s\" is negative",
        ),
        (
            "keep_alive = \"soon\"",
            "server.keep_alive: \"soon\" is not a duration",
        ),
        (
            "max_connections = -1",
            "server.max_connections: -1 is not a whole number from 0 to 1000000",
        ),
        (
            "threads = 1025",
            "server.threads: 1025 is not a whole number from 0 to 1024",
        ),
        (
            "max_buffered = \"31 MiB\"",
            "server.max_buffered: \"31 MiB\" is less than 32 MiB, the longest request",
        ),
        (
            "max_buffered = 0",
            "server.max_buffered: 0 is less than 32 MiB, the longest request",
        ),
        (
            "max_buffered = \"plenty\"",
            "server.max_buffered: \"plenty\" is not a size such as \"256 MiB\"",
        ),
        (
            "max_buffered = true",
            "server.max_buffered: invalid type: boolean `true`, expected a size such as \"256 MiB\"",
        ),
        ("max_conections = 1", "server.max_conections: unknown key"),
    ] {
        let message = message(with_candidate(&format!("[server]\n{line}")));
        assert!(message.starts_with("gateway.toml:2:"), "{message}");
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn a_proxy_is_used_where_the_file_says_so() {
    for (line, is_none) in [
        ("", true),
        ("proxy = \"none\"", true),
        ("proxy = \"environment\"", false),
        ("proxy = \"http://proxy.example:3128\"", false),
        ("proxy = \"https://user:p%40ss@proxy.example\"", false),
    ] {
        let config = with_candidate(&format!("[server]\n{line}")).unwrap();
        let shown = format!("{:?}", config.proxy);
        assert_eq!(shown.contains("is_none: true"), is_none, "{line}");
    }
}

#[test]
fn the_credential_of_a_proxy_is_never_printed() {
    let line = "proxy = \"http://user:s3cr3t@proxy.example:3128\"";
    let config = with_candidate(&format!("[server]\n{line}")).unwrap();
    let printed = toml::to_string(&config.own).unwrap();
    assert!(
        printed.contains("http://[hidden]@proxy.example:3128"),
        "{printed}"
    );
    assert!(!format!("{config:?}").contains("s3cr3t"));

    for wrong in [
        "proxy = \"socks5://user:s3cr3t@proxy.example\"",
        "proxy = \"user:s3cr3t@proxy.example\"",
        "proxy = \"http://user:s3cr3t@\"",
        "proxy = [\"http://user:s3cr3t@proxy.example\"]",
        "proxy = { url = \"http://user:s3cr3t@proxy.example\" }",
        "proxy = \"http://user:s3cr3t@proxy.example",
        "proxy = \"http://user:s3cr3t@proxy.example\" more",
    ] {
        let message = message(with_candidate(&format!("[server]\n{wrong}")));
        assert!(message.starts_with("gateway.toml:2:"), "{message}");
        assert!(!message.contains("s3cr3t"), "{message}");
    }
}
