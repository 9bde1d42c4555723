//! Public reports about what many, slow or departed callers cost a gateway or a proxy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    net::{
        Ask, CHAT, Client, DONE, Play, Raw, SSE_HEAD, STREAM, Step, TOKEN, Upstream, Version, chat,
        chunk, eventually, run, run_alone, within,
    },
    support::Config,
};

/// A gateway had the soft limit of the service manager that started it. A burst of streams used its
/// descriptors up within minutes, though the hard limit allowed many more.
///
/// <https://github.com/NousResearch/hermes-agent/pull/80748>
///
/// covers: T98
#[cfg(target_os = "linux")]
#[test]
fn a_low_soft_limit_of_open_files_is_raised() {
    run(async {
        let upstream = Upstream::model().await;
        let config = Config::new("").candidate("m", upstream.addr);
        let gateway = config.start_limited("ulimit -S -n 64").await;
        let mut streams = Vec::new();
        for number in 0..100 {
            let run = format!("r-{number}");
            streams.push(gateway.open_stream("o", &run, "s").await);
        }
        assert!(streams.iter().all(|stream| stream.status == 200));
        assert_eq!(upstream.open(), 100);
    });
}

/// The same where nothing can be raised: each caller needs a descriptor and a second one for its
/// upstream, so that too many callers who were let in would fail all calls, as if the upstream did.
///
/// <https://github.com/NousResearch/hermes-agent/pull/80748>
///
/// covers: T98
#[cfg(target_os = "linux")]
#[test]
fn beyond_the_hard_limit_of_open_files_callers_wait_and_no_candidate_rests() {
    run(async {
        let upstream = Upstream::model().await;
        let config = Config::new("[fallback]\ncooldown = true");
        let config = config.candidates(&["m", "n"], upstream.addr);
        let gateway = config.start_limited("ulimit -n 128").await;
        let asked: Vec<_> = (0..150)
            .map(|_| tokio::spawn(gateway.post(CHAT, chat("held")).ask()))
            .collect();
        eventually(async || gateway.log().contains("connections wait").then_some(())).await;

        upstream.resume();

        for answer in asked {
            let answer = within(answer).await.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert!(answer.text().ends_with(DONE), "{}", answer.text());
        }
        assert_eq!(upstream.count(), 150, "no call was made twice");
        let resting = gateway.json("/cooldowns").await;
        assert_eq!(resting["cooldowns"], json!([]));
    });
}

/// A limit that takes a few of the default's connections is no operator's matter; one that takes most is.
///
/// covers: T98
#[cfg(target_os = "linux")]
#[test]
fn only_a_limit_of_open_files_that_takes_most_connections_warns() {
    run(async {
        for (limit, most, warns) in [
            (128, None, true),
            (4096, None, true),
            (4096, Some(2100), false),
            (4096, Some(0), false),
        ] {
            let most = most.map_or(String::new(), |most: u32| {
                format!("[server]\nmax_connections = {most}")
            });
            let config = Config::new(&most).candidate("m", "127.0.0.1:1".parse().unwrap());
            let gateway = config.start_limited(&format!("ulimit -n {limit}")).await;
            assert_eq!(gateway.get("/healthz").ask().await.status, 200);
            let log = gateway.log();
            assert_eq!(log.contains("no room for max_connections"), warns, "{log}");
        }
    });
}

/// Of each stream that its caller cancelled, a gateway kept a reader and what that had buffered. It grew
/// only where callers cancelled.
///
/// <https://github.com/tombii/better-ccflare/issues/382>
///
/// covers: T1
#[cfg(target_os = "linux")]
#[test]
fn streams_that_their_callers_cancel_leave_nothing_behind() {
    run_alone(async {
        let upstream = Upstream::http1_of(|call| {
            let answer = format!("{SSE_HEAD}{}", chunk(&TOKEN.repeat(1000)));
            Play::Script(match call.json()["user"].as_str() {
                Some("whole") => vec![Step::write(format!("{answer}{}0\r\n\r\n", chunk(DONE)))],
                _ => vec![Step::write(answer), Step::Hang],
            })
        })
        .await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let streams = async |user: &str, count: usize| {
            let before = gateway.process.memory("VmRSS");
            for _ in 0..count / 50 {
                let opened = (0..50).map(async |_| {
                    let mut stream = gateway.post(CHAT, chat(user)).open().await;
                    match user {
                        "whole" => drop(stream.rest().await),
                        _ => drop(stream.until("data:").await),
                    }
                });
                join_all(opened).await;
                upstream.until_open(0).await;
            }
            gateway.process.memory("VmRSS").saturating_sub(before)
        };
        streams("whole", 300).await;
        streams("cancelled", 300).await;
        let files = gateway.process.open_files();

        let whole = streams("whole", 1500).await;
        let cancelled = streams("cancelled", 1500).await;

        println!("{whole} MiB of whole streams, {cancelled} MiB of cancelled ones");
        assert!(cancelled <= whole + 6, "{cancelled} MiB, {whole} MiB");
        let held = gateway.process.open_files();
        assert!(held <= files + 10, "{held} files, {files} before");
        assert_eq!(gateway.metric("agent_runs_open").await, Some(0.0));
    });
}

/// A server wrote to callers faster than they read, and kept in memory what they had not taken.
///
/// <https://github.com/Mintplex-Labs/anything-llm/issues/6202>
///
/// covers: T9
#[cfg(target_os = "linux")]
#[test]
fn callers_that_do_not_read_hold_the_upstream_back_and_take_no_memory() {
    const CALLERS: usize = 30;
    run_alone(async {
        let settings = "preset = \"recommended\"\n\
                        [progress]\nkeep_alive = \"100ms\"\ncomments = true\nnotify_after = \"100ms\"";
        for version in Version::BOTH {
            let (upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
            let whole = gateway.post(CHAT, chat("ok")).ask().await;
            assert_eq!(whole.status, 200);
            let before = gateway.process.memory("VmRSS");
            let mut answers = Vec::new();
            for _ in 0..CALLERS {
                let mut client = Client::connect(gateway.addr, version).await;
                let request = Request::post(format!("http://gateway{CHAT}"));
                let body = Full::new(Bytes::from(chat("flood")));
                let answer = client.send(request.body(body).unwrap());
                answers.push((within(answer).await.unwrap(), client));
            }
            let sent = || {
                upstream
                    .calls()
                    .iter()
                    .map(|call| call.bytes)
                    .sum::<usize>()
            };
            let mut last = 0;
            eventually(async || {
                sleep(Duration::from_millis(500)).await;
                let stands = sent() == std::mem::replace(&mut last, sent());
                stands.then_some(())
            })
            .await;

            let grown = gateway.process.memory("VmRSS").saturating_sub(before);
            println!("{version:?}: {grown} MiB of {} MiB sent", last >> 20);
            assert!(grown <= 2 * CALLERS, "{version:?}: {grown} MiB");
            // Nor does it buffer once they have gone.
            drop(answers);
            upstream.until_open(0).await;
            let grown = gateway.process.memory("VmRSS").saturating_sub(before);
            assert!(grown <= 2 * CALLERS, "{version:?}: {grown} MiB");
        }
    });
}

/// A proxy with hyper's limit of HTTP/2 refused heads beyond 16 KiB, which callers with long tokens and
/// tracing headers have, and which its HTTP/1.1 took.
///
/// <https://github.com/linkerd/linkerd2/issues/14046>
///
/// covers: H1
#[test]
fn a_head_of_48_kib_is_read_over_either_version() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        for version in Version::BOTH {
            let mut client = Client::connect(gateway.addr, version).await;
            for kib in [1, 15, 17, 48] {
                let request = Request::post(format!("http://gateway{CHAT}"))
                    .header("baggage", "x".repeat(kib * 1024))
                    .body(Full::new(Bytes::from(chat("ok"))));
                let answer = client.ask(request.unwrap()).await.unwrap();
                assert_eq!(answer.status, 200, "{version:?}: {kib} KiB");
            }
        }
    });
}

/// Each reload of its configuration left the proxies and clients of the one before in memory.
///
/// <https://github.com/caddyserver/caddy/issues/2466>
///
/// covers: H9
#[cfg(target_os = "linux")]
#[test]
fn reloads_beside_an_open_stream_leave_nothing_behind() {
    run_alone(async {
        let upstream = Upstream::model().await;
        let settings = "[loops]\n[watchdog]\nchecker = \"http://127.0.0.1:9/\"\n\
                        [health]\nurl = \"http://127.0.0.1:9/health\"\n\
                        [[webhooks]]\nurl = \"http://127.0.0.1:9/\"\non = [\"stuck\"]\n\
                        secret_env = \"TEST_SECRET\"";
        let settings = settings.replace("127.0.0.1:9/health", &format!("{}/health", upstream.addr));
        let config = Config::new(settings)
            .candidate("m", upstream.addr)
            .env("TEST_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let (gateway, _file) = config.start_with_file().await;
        let mut open = gateway.open_stream("o", "r-open", "s").await;
        open.until("data:").await;
        let mut reloads = 0;
        let mut reload = async |count: usize| {
            for _ in 0..count {
                reloads += 1;
                gateway.signal("HUP");
                let done = || gateway.log().matches("configuration reloaded").count() == reloads;
                eventually(async || done().then_some(())).await;
                // A connection of the new clients', which goes with them.
                let answer = gateway.post(CHAT, chat("ok")).ask().await;
                assert_eq!(answer.status, 200);
            }
            (
                gateway.process.memory("VmRSS"),
                gateway.process.open_files(),
            )
        };
        let (memory, files) = reload(10).await;

        let (memory_after, files_after) = reload(60).await;

        println!("{memory} to {memory_after} MiB, {files} to {files_after} files");
        assert!(memory_after <= memory + 12, "{memory_after} MiB");
        assert!(files_after <= files + 10, "{files_after} files");
        assert_eq!(gateway.reason("r-open").await, Value::Null);
    });
}

/// A session of 1,208 messages and 700 KB held a gateway's only thread for 15 minutes: it answered
/// neither its health check nor SIGTERM. Its client sent the session again, one message longer.
///
/// <https://github.com/Vanszs/VansRouter/issues/132>
///
/// covers: D7
#[test]
fn a_session_of_1200_messages_takes_a_moment_and_holds_nobody_up() {
    run(async {
        let settings = "preset = \"recommended\"\n[server]\nthreads = 1\n\
                        [loops]\nstop = 1000\nany_tool = 1000\nunknown_tool = 1000\n\
                        [stop]\nphrases = [\"/stop\"]";
        let (_upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        let mut messages = vec![json!({"role": "user", "content": "audit all of it"})];
        for call in 0..603 {
            let arguments = json!({"path": format!("src/{call}.rs"), "line": call}).to_string();
            let function = json!({"name": "read", "arguments": arguments});
            let id = format!("call-{call}");
            let made = json!({"id": id, "type": "function", "function": function});
            messages.push(json!({"role": "assistant", "content": null, "tool_calls": [made]}));
            let text = format!(
                "2026-09-20T14:01:{:02}Z {}",
                call % 60,
                "line \\u00fc ".repeat(75)
            );
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": text}));
        }
        let over = Arc::new(AtomicBool::new(false));
        let mut beside = JoinSet::new();
        let (is_over, addr) = (Arc::clone(&over), gateway.addr);
        beside.spawn(async move {
            let mut client = Raw::connect(addr).await;
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::SeqCst) {
                let began = Instant::now();
                client
                    .send("GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n")
                    .await;
                assert_eq!(client.answer().await.status, 200);
                longest = longest.max(began.elapsed());
            }
            longest
        });
        let began = Instant::now();
        for turn in 0..5 {
            messages.push(json!({"role": "user", "content": format!("go on, {turn}")}));
            let body = json!({"model": "m", "stream": true, "messages": messages}).to_string();
            assert!(body.len() > 700_000, "{}", body.len());
            let request = gateway.post(CHAT, body).header("x-run-id", "r-1");
            let answer = request.ask().await;
            assert_eq!((answer.status.as_u16(), answer.text()), (200, STREAM));
        }
        let took = began.elapsed();
        over.store(true, Ordering::SeqCst);
        let longest = beside.join_next().await.unwrap().unwrap();
        println!("5 turns in {took:?}, a health check beside them in at most {longest:?}");
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert!(longest < Duration::from_secs(1), "{longest:?}");
    });
}
