//! Configurations that cannot be used: one line that names the place.
//!
//! covers: A5

use crate::{
    net::run,
    support::{Config, Gateway},
};

const CANDIDATE: &str = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:1/v1\"\n";

/// The configuration is refused, on one line with this place and these words.
fn refused(text: &str, place: &str, words: &[&str]) {
    run(async {
        let (path, told) = Config::new(text).refused().await;
        assert_eq!(told.len(), 1, "{told:?}");
        let start = format!("gateway: {path}{place}: ");
        assert!(told[0].starts_with(&start), "{told:?}");
        for word in words {
            assert!(told[0].contains(word), "{word} is missing: {told:?}");
        }
    });
}

#[test]
fn an_unknown_key_is_named() {
    refused(
        &format!("[run]\nmax_turn_tim = \"1s\"\n{CANDIDATE}"),
        ":2:1",
        &["unknown key", "max_turn_tim"],
    );
}

#[test]
fn an_unknown_table_is_named() {
    refused(
        &format!("[runs]\n{CANDIDATE}"),
        ":1:2",
        &["unknown key", "runs"],
    );
}

#[test]
fn a_negative_duration_is_named() {
    refused(
        &format!("[attempt]\nstep_timeout = \"-5s\"\n{CANDIDATE}"),
        ":2:16",
        &["attempt.step_timeout", "negative"],
    );
}

#[test]
fn a_duration_without_a_unit_is_named() {
    refused(
        &format!("[run]\ntimeout = \"5\"\n{CANDIDATE}"),
        ":2:11",
        &["run.timeout", "\"60s\""],
    );
}

#[test]
fn a_file_without_a_candidate_is_refused() {
    refused("[run]\n", "", &["no candidate"]);
}

#[test]
fn a_url_that_is_none_is_named() {
    for (url, why) in [
        ("localhost/v1", "absolute"),
        ("ftp://host/v1", "http or https"),
        ("http://host:99999/v1", "port"),
        ("http://host/v1?key=1", "query"),
    ] {
        let text = format!("[[candidates]]\nmodel = \"m\"\nbase_url = \"{url}\"\n");
        refused(&text, ":3:12", &["candidates[0].base_url", why]);
    }
}

/// It would end in a log.
#[test]
fn a_password_in_a_url_is_refused_and_not_repeated() {
    run(async {
        let text = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://user:s3cr3t@host/v1\"\n";
        let (_, told) = Config::new(text).refused().await;
        assert!(told[0].contains("credentials"), "{told:?}");
        assert!(!told.concat().contains("s3cr3t"), "{told:?}");
    });
}

#[test]
fn a_variable_that_is_not_set_is_named() {
    let text = format!("{CANDIDATE}api_key_env = \"TOWER_AGENT_TEST_UNSET\"\n");
    refused(&text, ":4:15", &["TOWER_AGENT_TEST_UNSET", "is not set"]);
}

#[test]
fn what_is_no_toml_is_refused_on_one_line() {
    refused("[run\n", ":1:5", &[]);
}

#[test]
fn a_file_that_is_missing_is_named_and_why() {
    run(async {
        let told = Gateway::refused(&["--config", "/no/such/file.toml"]).await;
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("gateway: /no/such/file.toml: "),
            "{told:?}"
        );
        assert!(told[0].contains("No such file"), "{told:?}");
    });
}

#[test]
fn only_a_regular_file_of_a_mebibyte_at_most_is_read() {
    run(async {
        let fifo = Config::new("").write();
        fifo.become_fifo();
        let long = Config::new(format_args!("#{}\n{CANDIDATE}", "x".repeat(1 << 20))).write();
        for (path, why) in [
            (fifo.path(), "is a FIFO and no regular file"),
            ("/dev/zero", "is a device and no regular file"),
            ("/", "is a directory and no regular file"),
            (long.path(), "is longer than 1 MiB"),
        ] {
            for flag in ["--config", "--check", "--print-config"] {
                let told = Gateway::refused(&[flag, path]).await;
                assert_eq!(told, [format!("gateway: {path}: {why}")]);
            }
        }
    });
}
