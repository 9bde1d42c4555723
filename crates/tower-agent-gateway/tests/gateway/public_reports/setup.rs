//! Public reports about installing and configuring a gateway or a proxy, and about the first call.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            fs::symlink,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

use crate::{
    net::{Ask, CHAT, Raw, Upstream, assert_no_secrets, chat, eventually, run, within},
    support::{Config, Gateway},
};

const CANDIDATE: &str = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"\n";

/// What providers' keys look like: none is the name of a variable.
const PASTED: [&str; 6] = [
    "nvapi-Q7cX0r3kYv2nS9aLw5tJmUeZdHfBgPi1",
    "pplx-4f0a9c1be72d58364f0a9c1be72d5836",
    "9f86d081884c7d659a2feaa0c55ad015",
    "tGzv3JOkF0XG5Qx2TlKWIA7mB9cDqRyE",
    "github_pat_11ABCDEFG0x7Yz3kQwErTy",
    "coder:sk-9a8b7c6d5e4f3a2b1c0d9e8f",
];

/// A key was pasted where the name of its variable belongs. The error repeated the key, and so did the
/// log and the report that it was quoted in.
///
/// <https://github.com/NikolayS/rpg/pull/168>
///
/// covers: T101
#[test]
fn a_key_in_the_place_of_a_variables_name_is_refused_and_not_shown() {
    run(async {
        let replicas = "[replicas]\nurl_env = \"PATH\"\nsecret_env = \"KEY\"\n";
        for (settings, place) in [
            (
                format!("{CANDIDATE}api_key_env = \"KEY\""),
                "4:15: candidates[0].api_key_env",
            ),
            (
                format!("[auth]\nkeys_env = \"KEY\"\n{CANDIDATE}"),
                "2:12: auth.keys_env",
            ),
            (
                format!("[control]\ntoken_env = \"KEY\"\n{CANDIDATE}"),
                "2:13: control.token_env",
            ),
            (
                format!(
                    "[[webhooks]]\nurl = \"http://h/\"\non = [\"ended\"]\nsecret_env = \"KEY\"\n{CANDIDATE}"
                ),
                "4:14: webhooks[0].secret_env",
            ),
            (
                format!("{replicas}{CANDIDATE}"),
                "3:14: replicas.secret_env",
            ),
            (
                format!(
                    "{}{CANDIDATE}",
                    replicas
                        .replace("PATH", "KEY")
                        .replace("secret_env = \"KEY\"", "secret_env = \"PATH\"")
                ),
                "2:11: replicas.url_env",
            ),
        ] {
            for key in PASTED {
                let (path, lines) = Config::new(settings.replace("KEY", key)).refused().await;
                let told = lines.join("\n");
                assert!(told.contains(&format!("{path}:{place}: ")), "{told}");
                assert!(told.contains("environment variable"), "{told}");
                assert_no_secrets(&told, &[key]);
            }
        }
        // The key that most other programs have.
        let settings = format!("{CANDIDATE}api_key = \"{}\"", PASTED[0]);
        let (_, lines) = Config::new(settings).refused().await;
        let told = lines.join("\n");
        assert!(told.contains("`api_key_env`"), "{told}");
        assert_no_secrets(&told, &[PASTED[0]]);
        // The name of a variable is shown, as it says what to set.
        for name in ["TOWER_AGENT_TEST_UNSET_2", "my_key"] {
            let settings = format!("{CANDIDATE}api_key_env = \"{name}\"");
            let (_, lines) = Config::new(settings).refused().await;
            assert!(lines.join("\n").contains(name), "{lines:?}");
        }
    });
}

/// Editors and shells of Windows begin a file with a byte order mark. A configuration was refused for
/// its first column, with no word of the mark.
///
/// <https://github.com/Nayjest/lm-proxy/issues/79>
///
/// covers: A5
#[test]
fn files_that_begin_with_a_byte_order_mark_are_read() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let written = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, format!("\u{feff}{text}")).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let keys = written("keys", "coder:sk-coder\r\nreader:sk-reader\r\n");
        let token = written("token", "t0ken\r\n");
        let settings = format!(
            "\u{feff}[auth]\r\nkeys_file = \"{keys}\"\r\n[control]\r\ntoken_file = \"{token}\"\r\n"
        );
        let (_upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        for key in ["sk-coder", "sk-reader"] {
            let answer = gateway.post(CHAT, chat("ok")).bearer_auth(key).ask().await;
            assert_eq!(answer.status, 200, "{key}");
        }
        let answer = gateway.get("/runs").bearer_auth("t0ken").ask().await;
        assert_eq!(answer.status, 200);

        // An editor shows no column for the mark.
        let (path, lines) = Config::new(format!("\u{feff}max_turns = 3\n{CANDIDATE}"))
            .refused()
            .await;
        let told = lines.join("\n");
        assert!(told.contains(&format!("{path}:1:1: max_turns")), "{told}");
    });
}

/// The same shells write UTF-16 where their output is redirected into a file.
///
/// <https://github.com/Nayjest/lm-proxy/issues/79>
///
/// covers: A5
#[test]
fn a_file_in_utf_16_is_refused_by_that_name() {
    run(async {
        let bytes = |units: &mut dyn Iterator<Item = u16>, little: bool| -> Vec<u8> {
            let bytes = |unit: u16| {
                if little {
                    unit.to_le_bytes()
                } else {
                    unit.to_be_bytes()
                }
            };
            [0xfeff].into_iter().chain(units).flat_map(bytes).collect()
        };
        for little in [true, false] {
            let file = Config::new("").write();
            fs::write(file.path(), bytes(&mut CANDIDATE.encode_utf16(), little)).unwrap();
            let lines = Gateway::refused(&["--config", file.path()]).await;
            assert_eq!(lines.len(), 1, "{lines:?}");
            assert!(
                lines[0].starts_with(&format!("gateway: {}: ", file.path())),
                "{lines:?}"
            );
            assert!(lines[0].contains("UTF-16"), "{lines:?}");
            assert!(lines[0].contains("UTF-8"), "{lines:?}");
        }
    });
}

/// `docker --env-file` keeps the quotes around a value, and a secret that was made of a line keeps its
/// break. The provider answered each call with 401, and the key looked right wherever it was shown.
///
/// <https://github.com/letta-ai/letta/issues/3069>, <https://github.com/fluxcd/flagger/issues/568>
///
/// covers: A5
#[test]
fn a_key_with_quotes_spaces_or_a_line_break_around_it_is_refused_at_the_start() {
    run(async {
        let file = Config::new(format!("{CANDIDATE}api_key_env = \"TEST_KEY\"")).write();
        for (value, why) in [
            ("\"sk-secret\"", "quotes"),
            ("'sk-secret'", "quotes"),
            (" sk-secret", "space"),
            ("sk-secret\t", "space"),
            ("sk-secret\n", "line break"),
            ("sk-secret\r\n", "line break"),
        ] {
            let env = [("TEST_KEY".to_owned(), value.to_owned())];
            let (status, [_, told]) = Gateway::printed(&["--check", file.path()], &env).await;
            assert_eq!(status, Some(1), "{value:?}: {told}");
            let place = format!("{}:4:15: candidates[0].api_key_env: ", file.path());
            assert!(told.contains(&place), "{value:?}: {told}");
            assert!(
                told.contains("TEST_KEY") && told.contains(why),
                "{value:?}: {told}"
            );
            assert_no_secrets(&told, &["sk-secret"]);
        }
        // A quote within a key, or at one end, is the key's own.
        for value in ["sk-\"secret", "\"sk-secret", "sk-secret'"] {
            let env = [("TEST_KEY".to_owned(), value.to_owned())];
            let (status, [_, told]) = Gateway::printed(&["--check", file.path()], &env).await;
            assert_eq!(status, Some(0), "{value:?}: {told}");
        }
    });
}

/// A service manager's socket may have a name without a file, which `@` begins. A server that took it
/// for a path was never ready, and was stopped when its time to start was over.
///
/// <https://github.com/redpanda-data/redpanda/pull/463>
///
/// covers: H9
#[cfg(target_os = "linux")]
#[test]
fn a_service_manager_with_an_abstract_socket_hears_that_the_gateway_is_ready() {
    run(async {
        let name = format!("tower-agent-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_nonblocking(true).unwrap();
        let socket = tokio::net::UnixDatagram::from_std(socket).unwrap();
        let heard = async || {
            let mut buffer = [0; 256];
            let length = within(socket.recv(&mut buffer)).await.unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        let config = Config::new(CANDIDATE).env("NOTIFY_SOCKET", &format!("@{name}"));

        let mut gateway = config.start().await;
        assert!(!gateway.log().contains("not notified"), "{}", gateway.log());
        assert_eq!(heard().await, "READY=1\n");
        gateway.signal("TERM");
        assert_eq!(heard().await, "STOPPING=1\n");
        assert!(gateway.exit_status().await.success());
    });
}

/// In an image without root certificates a server ended at its start, in making a client for `https`
/// that nothing in its configuration asked for.
///
/// <https://github.com/rustfs/rustfs/issues/6734>
///
/// covers: A5
#[test]
fn without_root_certificates_upstreams_without_tls_are_served() {
    run(async {
        let upstream = Upstream::model().await;
        let without = |config: Config| {
            let config = config.env("SSL_CERT_FILE", "/nowhere/ca-certificates.crt");
            config.env("SSL_CERT_DIR", "/nowhere")
        };
        let settings = "[health]\nurl = \"UPSTREAM/health\"\n[loops]\n\
                        [watchdog]\nchecker = \"http://127.0.0.1:9/\"";
        let settings = settings.replace("UPSTREAM", &format!("http://{}", upstream.addr));
        let config = Config::new(settings).candidate("m", upstream.addr);
        let gateway = without(config).start().await;
        assert_eq!(gateway.post(CHAT, chat("ok")).ask().await.status, 200);

        let settings = "[[candidates]]\nmodel = \"n\"\nbase_url = \"https://api.openai.com/v1\"";
        let file = Config::new(settings).write();
        let args = ["--config", file.path(), "--listen", "127.0.0.1:0"];
        let env = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
        let env = env.map(|name| (name.to_owned(), "/nowhere".to_owned()));
        let (status, [said, told]) = Gateway::printed(&args, &env).await;
        assert_eq!((status, &*said), (Some(1), ""), "{told}");
        for word in ["https", "ca-certificates", "SSL_CERT_FILE"] {
            assert!(told.contains(word), "{word}: {told}");
        }
    });
}

/// Kubernetes replaces the files of a secret by exchanging a link above them. What watched the file, or
/// kept it open, served with the old key until a restart.
///
/// <https://github.com/pgEdge/pgedge-postgres-mcp/pull/192>
///
/// covers: H9
#[test]
fn a_key_of_a_mounted_secret_is_exchanged_by_a_reload() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mount = |version: &str, keys: &str| {
            fs::create_dir(at(version)).unwrap();
            fs::write(at(version).join("keys"), keys).unwrap();
            symlink(version, at("..data_tmp")).unwrap();
            fs::rename(at("..data_tmp"), at("..data")).unwrap();
        };
        mount("..2026_01", "coder:sk-one\n");
        symlink("..data/keys", at("keys")).unwrap();
        let keys = at("keys");
        let settings = format!("[auth]\nkeys_file = \"{}\"", keys.to_str().unwrap());
        let upstream = Upstream::model().await;
        let config = Config::new(&settings).candidate("m", upstream.addr);
        let (gateway, file) = config.start_with_file().await;
        let status = async |key: &str| {
            let request = gateway.post(CHAT, chat("ok")).bearer_auth(key);
            request.ask().await.status.as_u16()
        };
        assert_eq!([status("sk-one").await, status("sk-two").await], [200, 401]);

        mount("..2026_02", "coder:sk-two\n");
        fs::remove_dir_all(at("..2026_01")).unwrap();
        // A mistake elsewhere keeps the old keys, too: never half of a configuration.
        file.replace(&Config::new(format!("{settings}\nidle = 3")).candidate("m", upstream.addr));
        gateway.signal("HUP");
        let logged = async |words: &str| {
            eventually(async || gateway.log().contains(words).then_some(())).await;
        };
        logged("configuration not reloaded").await;
        assert_eq!([status("sk-one").await, status("sk-two").await], [200, 401]);

        file.replace(&Config::new(&settings).candidate("m", upstream.addr));
        gateway.signal("HUP");
        logged("configuration reloaded").await;
        assert_eq!([status("sk-one").await, status("sk-two").await], [401, 200]);
    });
}

/// Once the last key was gone each request was a 401 until a restart, and nothing said why. Another gateway
/// keeps what it had if the list is empty.
///
/// <https://github.com/hrygo/hotplex/issues/560>,
/// <https://github.com/milvus-io/talon/pull/529>
///
/// covers: T101
#[test]
fn a_key_file_that_lost_its_last_key_locks_nobody_out() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        fs::write(&keys, "coder:sk-one\n").unwrap();
        let settings = format!("[auth]\nkeys_file = \"{}\"", keys.display());
        let upstream = Upstream::model().await;
        let config = Config::new(&settings).candidate("m", upstream.addr);
        let (gateway, _file) = config.start_with_file().await;
        let emptied = ["", "\n", "# coder:sk-one\n", " # a, b\n\n#\n", ",\n , \n"];
        for (count, text) in (1..).zip(emptied) {
            fs::write(&keys, text).unwrap();
            gateway.signal("HUP");
            let said = format!("auth.keys_file: the file {}", keys.display());
            let refused = async || (gateway.log().matches(&said).count() == count).then_some(());
            eventually(refused).await;
            assert!(!gateway.log().contains("configuration reloaded"));
            let request = gateway.post(CHAT, chat("ok")).bearer_auth("sk-one");
            assert_eq!(request.ask().await.status, 200, "{text:?}");
        }
    });
}

/// A client could not connect to a proxy, whose log had only that a request was invalid. One cause of
/// such bytes is a base URL with `https` in front of a port without TLS.
///
/// <https://github.com/BerriAI/litellm/issues/5836>
///
/// covers: B1
#[test]
fn callers_that_speak_tls_to_a_port_without_it_are_named_in_the_log_once() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        // The record of a handshake, and the beginning of a ClientHello.
        let hello = "\u{16}\u{3}\u{1}\u{1}\0\u{1}\0\0\u{7c}\u{3}\u{3}";
        for first in [1, 3, hello.len(), hello.len(), hello.len()] {
            let mut caller = Raw::request(gateway.addr, &hello[..first]).await;
            let _ = caller.try_send(&hello[first..]).await;
            caller.finish_sending().await;
            let came = caller.read_to_end().await;
            assert!(!came.contains(" 200 "), "{came}");
        }
        eventually(async || gateway.log().contains("TLS").then_some(())).await;
        let log = gateway.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains("TLS")).collect();
        assert_eq!(lines.len(), 1, "{log}");
        for word in ["WARN", "https", "127.0.0.1", "http://"] {
            assert!(lines[0].contains(word), "{word}: {}", lines[0]);
        }
    });
}
