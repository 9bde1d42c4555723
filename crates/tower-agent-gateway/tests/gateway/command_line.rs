//! Command lines that cannot work, and what they say.

use std::{
    fs::File,
    net::TcpListener,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
};

use crate::{
    net::run,
    support::{Config, Gateway},
};

#[test]
fn it_says_where_it_listens() {
    run(async {
        let gateway = Gateway::embedded().await;
        assert!(gateway.addr.ip().is_loopback());
        assert_ne!(gateway.addr.port(), 0);
    });
}

/// A wrong flag has a status of its own, and the usage follows.
#[test]
fn a_wrong_flag_is_named() {
    run(async {
        for (args, says) in [
            (["--nope"].as_slice(), "unexpected argument '--nope'"),
            (&["--config"], "a value is required for '--config <FILE>'"),
            (
                &["--listen"],
                "a value is required for '--listen <IP:PORT>'",
            ),
            (
                &["--listen", "localhost"],
                "invalid value 'localhost' for '--listen <IP:PORT>'",
            ),
            (
                &["--demo-load", "--config", "gateway.toml"],
                "the argument '--demo-load' cannot be used with '--config <FILE>'",
            ),
        ] {
            let (status, [said, told]) = Gateway::printed(args, &[]).await;
            assert_eq!((status, &*said), (Some(2), ""), "{told}");
            assert!(told.contains(says), "{told}");
        }
    });
}

#[test]
fn the_help_has_every_flag_and_its_variable() {
    run(async {
        let (status, [said, _]) = Gateway::printed(&["--help"], &[]).await;
        assert_eq!(status, Some(0));
        for word in [
            "--config <FILE>",
            "TOWER_AGENT_CONFIG",
            "--demo-load",
            "--listen <IP:PORT>",
            "TOWER_AGENT_LISTEN",
            "--check <FILE>",
            "--probe",
            "--print-config <FILE>",
            "--schema",
            "Lists runs",
            "Ends a run",
        ] {
            assert!(said.contains(word), "{word}: {said}");
        }
    });
}

/// What is printed is a file that means the same, and that holds no secret.
#[test]
fn the_configuration_is_printed_with_each_value_in_force() {
    run(async {
        let settings = "preset = \"recommended\"\n[agents.defaults]\nmaxTurnTimeSeconds = 90\n\
                        [agents.one]\nmax_turns = 7\nturns_per_month = 8\n[auth]\nkeys_env = \"TEST_KEYS\"";
        let file = Config::new(settings)
            .candidate("m", "127.0.0.1:9".parse().unwrap())
            .write();
        let keys = [("TEST_KEYS".to_owned(), "one:sk-secret".to_owned())];
        let (status, [said, told]) =
            Gateway::printed(&["--print-config", file.path()], &keys).await;
        assert_eq!(status, Some(0), "{told}");
        for line in [
            "max_turn_time = \"1m 30s\"",
            "per_error_key = 3",
            "max_turns = 7",
            "turns_per_month = 8",
            "early_head = \"20s\"",
            "keys_env = \"TEST_KEYS\"",
        ] {
            assert!(said.contains(line), "{line}: {said}");
        }
        assert!(!said.contains("sk-secret"), "{said}");
        let again = Config::new(&said).write();
        let printed = Gateway::printed(&["--print-config", again.path()], &keys).await;
        assert_eq!(printed.1[0], said);

        let wrong = Config::new("[run]\nmax_turns = -1").write();
        let (status, [said, told]) = Gateway::printed(&["--print-config", wrong.path()], &[]).await;
        assert_eq!((status, &*said), (Some(1), ""));
        assert!(told.contains(":2:13: run.max_turns: "), "{told}");
    });
}

/// A table of the gateway's own is printed with the values that hold without it, too.
#[test]
fn the_limits_of_connections_are_printed_and_no_empty_table() {
    run(async {
        let print = async |settings: &str| {
            let config = Config::new(settings).candidate("m", "127.0.0.1:9".parse().unwrap());
            let file = config.write();
            let (status, [said, told]) =
                Gateway::printed(&["--print-config", file.path()], &[]).await;
            assert_eq!(status, Some(0), "{told}");
            said
        };
        let said = print("[control]\n[known_agents]\n").await;
        let printed: toml::Table = said.parse().unwrap();
        let server = printed["server"].as_table().unwrap();
        for (key, value) in [
            ("head_timeout", "30s".into()),
            ("upload_idle", "30s".into()),
            ("max_connections", toml::Value::from(10_000)),
            ("keep_alive", "1m".into()),
            ("websocket", true.into()),
            ("websocket_age", "1h".into()),
            ("proxy", "none".into()),
        ] {
            assert_eq!(server[key], value, "{key}");
        }
        assert!(server["threads"].as_integer().unwrap() > 0, "{said}");
        let buffered = server["max_buffered"].as_str().unwrap();
        assert!(buffered.ends_with('B'), "{buffered}");
        assert_eq!(server.len(), 9, "{said}");
        for (name, table) in &printed {
            let is_empty = match table {
                toml::Value::Table(table) => table.is_empty(),
                toml::Value::Array(list) => list.is_empty(),
                _ => false,
            };
            assert!(!is_empty, "{name}: {said}");
        }
        for name in ["control", "known_agents", "signals", "agents"] {
            assert!(!printed.contains_key(name), "{name}: {said}");
        }

        let off = "[server]\nhead_timeout = 0\nmax_connections = 0\nthreads = 0\n\
                   max_buffered = \"1 GB\"\nwebsocket = false\n";
        let said = print(off).await;
        for line in [
            "head_timeout = \"0s\"",
            "max_connections = 0",
            "threads = 0",
            "max_buffered = \"1000000000 B\"",
            "websocket = false",
        ] {
            assert!(said.contains(line), "{line}: {said}");
        }
        // The candidate stands in it already.
        let again = Config::new(&said).write();
        let printed = Gateway::printed(&["--print-config", again.path()], &[]).await;
        assert_eq!(printed.1[0], said);
    });
}

/// `--schema > docs/gateway.schema.json` writes the copy in the manual anew.
#[test]
fn the_schema_in_the_manual_is_the_one_that_is_printed() {
    run(async {
        let (status, [said, told]) = Gateway::printed(&["--schema"], &[]).await;
        assert_eq!((status, &*told), (Some(0), ""));
        let copy = include_str!("../../../../docs/gateway.schema.json");
        assert!(
            said == copy,
            "docs/gateway.schema.json is not what --schema prints"
        );
    });
}

#[test]
fn a_variable_stands_for_its_flag() {
    run(async {
        let env = ("TOWER_AGENT_CONFIG".to_owned(), "/no/such.toml".to_owned());
        let (status, [_, told]) = Gateway::printed(&[], &[env]).await;
        assert_eq!(status, Some(1));
        assert!(told.starts_with("gateway: /no/such.toml: "), "{told}");

        let env = ("TOWER_AGENT_LISTEN".to_owned(), "0.0.0.0:0".to_owned());
        let (status, [_, told]) = Gateway::printed(&[], &[env]).await;
        assert_eq!(status, Some(1));
        assert!(told.contains("0.0.0.0:0"), "{told}");
    });
}

/// It says whether the file can be used, and serves nothing.
#[test]
fn a_file_is_checked() {
    run(async {
        for (text, status) in [
            (
                "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://h/v1\"",
                0,
            ),
            ("[run]\ntimeout = \"soon\"", 1),
        ] {
            let file = Config::new(text).write();
            let (code, [said, told]) = Gateway::printed(&["--check", file.path()], &[]).await;
            assert_eq!(code, Some(status), "{told}");
            if status == 0 {
                assert_eq!(said, format!("{} can be used\n", file.path()));
            } else {
                let start = format!("gateway: {}:2:11: run.timeout: ", file.path());
                assert!(said.is_empty() && told.starts_with(&start), "{said}{told}");
            }
        }
    });
}

/// Runs the program with such outputs; returns its status and, of a piped standard error, the text.
fn with_outputs(args: &[&str], stdout: Stdio, stderr: Stdio) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tower-agent-gateway"));
    let program = command.args(args).stdout(stdout).stderr(stderr).spawn();
    let output = program.unwrap().wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), told)
}

/// An output whose reader has left.
fn closed() -> Stdio {
    let (gone, output) = UnixStream::pair().unwrap();
    drop(gone);
    OwnedFd::from(output).into()
}

/// As in `--man | head -1`.
#[test]
fn a_reader_that_has_left_has_what_it_wants() {
    let file = Config::new("")
        .candidate("m", "127.0.0.1:9".parse().unwrap())
        .write();
    for args in [
        &["--help"][..],
        &["--version"],
        &["--man"],
        &["--schema"],
        &["--completions", "bash"],
        &["--print-config", file.path()],
        &["--check", file.path()],
        &["abort", "--help"],
    ] {
        let (status, told) = with_outputs(args, closed(), Stdio::piped());
        assert_eq!((status, &*told), (Some(0), ""), "{args:?}");
    }
}

/// As in `--check FILE 2>&1 | head -1`: the status still says what was found.
#[test]
fn a_reader_of_complaints_that_has_left_changes_no_status() {
    let warned = Config::new("[run]\nmax_turn_time = \"1m\"\nidle = \"2m\"")
        .candidate("m", "127.0.0.1:9".parse().unwrap())
        .write();
    let wrong = Config::new("[run]\nmax_turns = -1").write();
    for (args, status) in [
        (&["--check", warned.path()][..], Some(0)),
        (&["--check", wrong.path()], Some(1)),
        (&["--nope"], Some(2)),
    ] {
        let (found, _) = with_outputs(args, closed(), closed());
        assert_eq!(found, status, "{args:?}");
    }
}

/// What is lost there was wanted.
#[test]
fn a_full_disk_is_an_error() {
    for args in [&["--man"][..], &["--schema"], &["--completions", "bash"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (status, told) = with_outputs(args, full.into(), Stdio::piped());
        assert_eq!(status, Some(1), "{args:?}");
        assert!(told.starts_with("gateway: No space left"), "{told}");
    }
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
