//! Configurations that cannot be used: a line for each mistake, with its place.
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

/// The library's own cases, of which the gateway reads those in TOML.
#[test]
fn check_names_the_place_of_each_mistake() {
    const MISTAKES: &str = include_str!("../../../../tests/fixtures/config/mistakes.txt");
    run(async {
        let sections = MISTAKES.split("\n=== ").skip(1);
        let sections = sections.map(|section| section.split_once('\n').unwrap().1);
        let cases: Vec<_> = sections.filter(|text| !text.starts_with('{')).collect();
        assert!(cases.len() > 90, "{}", cases.len());
        for case in cases {
            let (text, says) = case.split_once("=> ").unwrap();
            let file = Config::new(text).write();
            let told = Gateway::refused(&["--check", file.path()]).await;
            for says in says.trim_end().split("\n=> ") {
                let says = format!("gateway: {}:{}", file.path(), says);
                // Of an unknown table the gateway lists its own, too.
                let start = says.strip_suffix("...").unwrap_or(&says);
                let is_there = told.iter().any(|line| line.starts_with(start));
                assert!(is_there, "{text}\n{says}\n{told:#?}");
            }
        }
    });
}

/// Whoever mends a file sees at once what is left to mend.
#[test]
fn all_mistakes_of_a_file_are_told_at_once() {
    run(async {
        let text = "[run]\nstep_timeout = \"60s\"\nmax_turn = 3\n\
                    [attempt]\nstep_timeout = \"2m\"\nmax_time = \"soon\"\n\
                    [server]\nmax_connections = -1\ncolour = 1\n\
                    [watchdog]\nends = 3\n\
                    [cors]\norigins = [\"a.example\", \"*\", \"https://b.example/x\"]\n\
                    [[candidates]]\nmodel = \"m\"\nbase_url = \"http://h/v1\"\n\
                    api_key_env = \"TOWER_AGENT_TEST_UNSET\"\n\
                    [[candidates]]\nmodel = \"n\"\n\
                    [health]\nurl = \"http://other/\"\nevery = 0\ntimeout = 0\n\
                    [[known_agents.headers]]\nsession = \"a b\"\nturn = \"c d\"\n\
                    [[known_agents.headers]]\nsession = \"x\"\nparent = \"y\"\n\
                    [agents.nobody]\nmax_turns = 1\n";
        let (path, told) = Config::new(text).refused().await;
        let places = [
            ":3:1: run.max_turn: unknown key, ",
            ":6:12: attempt.max_time: \"soon\" is not a duration",
            ":8:19: server.max_connections: -1 is not a whole number",
            ":9:1: server.colour: unknown key, ",
            ":11:8: watchdog.ends: invalid type: integer `3`, expected a boolean",
            ":13:25: cors.origins[1]: is \"*\", which needs [auth]",
            ":17:15: candidates[0].api_key_env: the environment variable TOWER_AGENT_TEST_UNSET is not set",
            ":18:1: candidates[1]: missing key `base_url`",
            ":22:9: health.every: must be longer than zero",
            ":23:11: health.timeout: must be longer than zero",
            ":25:11: known_agents.headers[0].session: \"a b\" is not the name of a header",
            ":26:8: known_agents.headers[0].turn: \"c d\" is not the name of a header",
            ":29:10: known_agents.headers[1].parent: has no effect without `agent`",
            ":30:9: agents.nobody: is nobody: without [auth] no caller has a name",
        ];
        assert_eq!(told.len(), places.len(), "{told:#?}");
        for (line, place) in told.iter().zip(places) {
            let start = format!("gateway: {path}{place}");
            assert!(line.starts_with(&start), "{start}\n{told:#?}");
        }
    });
}

#[test]
fn several_keys_of_callers_are_told_without_the_keys() {
    run(async {
        let file = Config::new(format_args!(
            "[auth]\nkeys_env = \"TEST_KEYS\"\n{CANDIDATE}"
        ));
        let file = file.write();
        let keys = "one:sk-one,sk-two,:sk-three,four:sk-four,five:sk-one";
        let env = [("TEST_KEYS".to_owned(), keys.to_owned())];
        let (status, [_, told]) = Gateway::printed(&["--check", file.path()], &env).await;
        assert_eq!(status, Some(1));
        let entries: Vec<_> = told.lines().collect();
        assert_eq!(entries.len(), 3, "{told}");
        for (line, says) in entries.iter().zip([
            "has a bad entry 2: it is not NAME:KEY",
            "has a bad entry 3: its name is empty",
            "has a bad entry 5: its key is that of an earlier one",
        ]) {
            let start = format!("gateway: {}:2:12: auth.keys_env: ", file.path());
            assert!(line.starts_with(&start) && line.ends_with(says), "{told}");
        }
        assert!(!told.contains("sk-"), "{told}");
    });
}
