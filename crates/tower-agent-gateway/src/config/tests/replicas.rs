//! covers: H4

use super::{CANDIDATE, Config, ConfigError, message, resolve, with_candidate};

const SECRET: &str = "0f3a61c5e2a84b7d";

/// What comes of the variables, and of these keys beside their names.
fn with(url: &str, secret: &str, keys: &str) -> Result<Config, ConfigError> {
    let names = "[replicas]\nurl_env = \"URL\"\nsecret_env = \"SECRET\"";
    let text = format!("{names}\n{keys}\n{CANDIDATE}");
    let env = |variable: &str| match variable {
        "URL" => Some(url.to_owned()),
        "SECRET" => Some(secret.to_owned()),
        "NAME" => Some("gw_1.a-b".to_owned()),
        "NO_NAME" => Some("gw 1".to_owned()),
        "LONG_NAME" => Some("g".repeat(65)),
        _ => None,
    };
    resolve(&text, env)
}

#[test]
fn every_key_is_read() {
    let all = "name_env = \"NAME\"\nprefix = \"staging\"\non_loss = \"refuse\"\ntimeout = \"2s\"";
    let replicas = with("redis://h", SECRET, all).unwrap().replicas.unwrap();
    let least = with("redis://h", SECRET, "").unwrap().replicas.unwrap();

    let of = |replicas: &super::super::Replicas| format!("{replicas:?}");
    for part in ["gw_1.a-b", "staging", "Refuse", "timeout: 2s"] {
        assert!(of(&replicas).contains(part), "{replicas:?}");
    }
    for part in ["None", "Local", "timeout: 50ms"] {
        assert!(of(&least).contains(part), "{least:?}");
    }
    assert_eq!(with_candidate("").unwrap().replicas, None);
}

#[test]
fn every_mistake_is_named_with_its_key_and_its_variable() {
    let url = "gateway.toml:2:11: replicas.url_env: the environment variable URL";
    let secret = "gateway.toml:3:14: replicas.secret_env: the environment variable SECRET";
    for (at, why, wrong) in [
        (url, "is empty", with("", SECRET, "")),
        (
            url,
            "cannot be used: the URL of the store of runs cannot be used",
            with("http://h", SECRET, ""),
        ),
        (secret, "is empty", with("redis://h", "", "")),
        (
            secret,
            "cannot be used: a secret has at least 16 bytes; this one has 5",
            with("redis://h", "short", ""),
        ),
        (
            "gateway.toml:4:12: replicas.name_env: the environment variable NO_NAME",
            "is not a name of 1 to 64 letters, digits and ._-",
            with("redis://h", SECRET, "name_env = \"NO_NAME\""),
        ),
        (
            "gateway.toml:4:12: replicas.name_env: the environment variable LONG_NAME",
            "is not a name",
            with("redis://h", SECRET, "name_env = \"LONG_NAME\""),
        ),
        (
            "gateway.toml:4:12: replicas.name_env: the environment variable UNSET",
            "is not set",
            with("redis://h", SECRET, "name_env = \"UNSET\""),
        ),
        (
            "gateway.toml:4:10: replicas.prefix: ",
            "an option of the store of runs is not allowed",
            with("redis://h", SECRET, "prefix = \"a b\""),
        ),
        (
            "gateway.toml:4:11: replicas.on_loss: ",
            "expected `local` or `refuse`",
            with("redis://h", SECRET, "on_loss = \"ignore\""),
        ),
        (
            "gateway.toml:4:11: replicas.timeout: ",
            "must be longer than zero",
            with("redis://h", SECRET, "timeout = \"0s\""),
        ),
    ] {
        let message = message(wrong);
        assert!(message.starts_with(at), "{message}");
        assert!(message.contains(why), "{message}");
    }

    let unset = "[replicas]\nurl_env = \"NOT_SET\"\nsecret_env = \"NOR_THIS\"";
    let unset = message(with_candidate(unset));
    for part in [
        "replicas.url_env: the environment variable NOT_SET is not set",
        "replicas.secret_env: the environment variable NOR_THIS is not set",
    ] {
        assert!(unset.contains(part), "{unset}");
    }
    let absent = message(with_candidate("[replicas]\n"));
    assert!(absent.contains("missing key `url_env`"), "{absent}");
}

#[test]
fn the_password_and_the_secret_are_never_printed() {
    let config = with("redis://:pa55word@h", SECRET, "").unwrap();
    let printed = format!("{config:?}");
    assert!(
        !printed.contains("pa55word") && !printed.contains(SECRET),
        "{printed}"
    );

    let wrong = message(with("redis://:pa55word@h:port", SECRET, ""));
    assert!(!wrong.contains("pa55word"), "{wrong}");
}

/// A reload says that the store stays as it was.
#[test]
fn other_settings_are_others() {
    let first = || with("redis://h", SECRET, "").unwrap().replicas;
    assert_eq!(first(), first());
    for other in [
        with("redis://i", SECRET, ""),
        with("redis://h", "another secret, as long", ""),
        with("redis://h", SECRET, "name_env = \"NAME\""),
        with("redis://h", SECRET, "prefix = \"b\""),
        with("redis://h", SECRET, "on_loss = \"refuse\""),
        with("redis://h", SECRET, "timeout = \"51ms\""),
        with_candidate(""),
    ] {
        assert_ne!(other.unwrap().replicas, first());
    }
}
