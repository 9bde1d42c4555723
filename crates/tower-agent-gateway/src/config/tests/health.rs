//! covers: E4

use std::time::Duration;

use super::{message, with_candidate};

#[test]
fn an_absent_time_has_the_librarys_default() {
    let health = with_candidate("[health]\nurl = \"http://127.0.0.1:9/health\"").unwrap();
    let health = health.health.unwrap();
    assert_eq!(health.url, "http://127.0.0.1:9/health");
    let times = [
        health.every,
        health.timeout,
        health.patience,
        health.watch_silence,
    ];
    assert_eq!(times, [None; 4]);

    let text = "[health]\nurl = \"http://127.0.0.1:9/health\"\nevery = \"1s\"\ntimeout = \"2s\"\n\
                patience = \"3s\"\nwatch_silence = \"4s\"";
    let health = with_candidate(text).unwrap().health.unwrap();
    let times = [
        health.every,
        health.timeout,
        health.patience,
        health.watch_silence,
    ];
    assert_eq!(
        times,
        [1, 2, 3, 4].map(|secs| Some(Duration::from_secs(secs)))
    );
    assert!(with_candidate("").unwrap().health.is_none());
}

#[test]
fn a_mistake_is_named_with_its_place() {
    let url = "url = \"http://127.0.0.1:9/health\"\n";
    for (text, place, says) in [
        (String::new(), "1:2", "health: missing key `url`"),
        (
            "url = \"/health\"".to_owned(),
            "2:7",
            "health.url: \"/health\"",
        ),
        (
            "url = \"http://127.0.0.1:8/health\"".to_owned(),
            "2:7",
            "health.url: is at no candidate's host and port",
        ),
        (
            "url = \"https://127.0.0.1/health\"".to_owned(),
            "2:7",
            "health.url: is at no candidate's host and port",
        ),
        (
            format!("{url}every = \"0s\""),
            "3:9",
            "health.every: must be longer than zero",
        ),
        (
            format!("{url}timeout = true"),
            "3:11",
            "health.timeout: true is not a duration",
        ),
        (
            format!("{url}paths = 5"),
            "3:1",
            "health.paths: unknown key",
        ),
    ] {
        let message = message(with_candidate(&format!("[health]\n{text}")));
        let start = format!("gateway.toml:{place}: {says}");
        assert!(message.starts_with(&start), "{message}");
    }
}
