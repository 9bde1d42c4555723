//! The server is away, slow, frozen, empty, another one, or full of what no replica wrote.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::{Instant, sleep, timeout},
};
use tower_agent::{
    Owner, TerminalReason,
    registry::store::{
        Heard, Recalled, RunEnd, RunKey, RunNews, RunQuestion, RunStore, StoreLost, TurnsAsked,
    },
};
use tower_agent_redis::{ConnectErrorKind, RedisOptions, RedisRunStore};

use crate::{
    sentinels::{Sentinels, replicates},
    server::{Server, free_port, secret, until},
    support::LogCapture,
};

const DAMAGED: &str = "a key of the store of runs is damaged";

fn run(id: &str) -> RunKey {
    RunKey {
        owner: Owner::anonymous(),
        id: id.parse().unwrap(),
    }
}

fn turns(id: &str, part: u64, want: u32) -> RunQuestion {
    let mut question = RunQuestion::new(run(id), part);
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    question.turns = Some(TurnsAsked {
        number: NUMBER.fetch_add(1, Ordering::Relaxed),
        taken: 0,
        want,
        cap: 30,
        added: 0,
    });
    question
}

async fn ask(store: &Arc<RedisRunStore>, question: RunQuestion) -> Result<Recalled, StoreLost> {
    Arc::clone(store).ask(question).await
}

/// Asks until there is an answer: a loss may not have been seen yet.
async fn answered(store: &Arc<RedisRunStore>, question: RunQuestion) -> Recalled {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Ok(recalled) = ask(store, question.clone()).await {
            return recalled;
        }
        assert!(Instant::now() < deadline, "no answer");
        sleep(Duration::from_millis(10)).await;
    }
}

fn abort(id: &str) -> RunNews {
    RunNews::Ended {
        run: run(id),
        incarnation: None,
        if_known: false,
        end: RunEnd::new(TerminalReason::Aborted),
    }
}

async fn told(store: &RedisRunStore) {
    until("the news are taken", || store.stats().waiting == 0).await;
}

async fn up(store: &RedisRunStore) {
    until("the store is back", || store.stats().up).await;
}

async fn down(store: &RedisRunStore) {
    until("the store is lost", || !store.stats().up).await;
}

/// Waits for a hole.
async fn hole(store: &Arc<RedisRunStore>) {
    let heard = async { while !matches!(Arc::clone(store).next().await, Heard::Hole) {} };
    timeout(Duration::from_secs(10), heard)
        .await
        .expect("a hole");
}

/// Waits for the end of a run. Holes may come before it.
async fn hears_end(store: &Arc<RedisRunStore>, id: &str) {
    let heard = async {
        loop {
            match Arc::clone(store).next().await {
                Heard::Ended { run: ended, .. } if ended == run(id) => return,
                _ => {}
            }
        }
    };
    timeout(Duration::from_secs(10), heard)
        .await
        .expect("an end");
}

/// Waits until the replica hears of the end, or of a hole, at which it asks and then learns of it.
async fn learns_end(store: &Arc<RedisRunStore>, id: &str) {
    let heard = async {
        loop {
            match Arc::clone(store).next().await {
                Heard::Ended { run: ended, .. } if ended == run(id) => return,
                Heard::Hole if end_of(store, id).await.is_some() => return,
                _ => {}
            }
        }
    };
    let heard = timeout(Duration::from_secs(10), heard).await;
    heard.expect("an end, or a hole behind it");
}

/// Whether the server has the end of a run.
async fn is_stored(server: &Server, id: &str) -> bool {
    let mut other = server.connection().await;
    let cmd = redis::cmd("KEYS").arg(format!("ta1:*:run:*:{id}")).take();
    let keys: Vec<String> = cmd.query_async(&mut other).await.unwrap();
    let [key] = &keys[..] else { return false };
    let cmd = redis::cmd("HEXISTS").arg(key).arg("end").take();
    cmd.query_async(&mut other).await.unwrap()
}

async fn end_of(store: &Arc<RedisRunStore>, id: &str) -> Option<TerminalReason> {
    let answer = answered(store, RunQuestion::new(run(id), 99)).await;
    answer.end.map(|end| end.reason)
}

#[tokio::test]
async fn a_frozen_server_costs_three_questions_their_wait_and_no_other() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let log = LogCapture::start();
    let (one, two) = (server.store().await, server.store().await);
    assert!(ask(&one, turns("r", 1, 1)).await.is_ok());

    server.signal("STOP");
    let frozen = Instant::now();
    let limit = Duration::from_millis(50);
    for _ in 0..3 {
        let start = Instant::now();
        let answer = timeout(limit, ask(&one, turns("r", 1, 2))).await;
        assert!(!matches!(answer, Ok(Ok(_))));
        assert!(start.elapsed() < 10 * limit, "{:?}", start.elapsed());
    }
    one.tell(abort("told-meanwhile"));
    let start = Instant::now();
    for _ in 0..100 {
        assert!(ask(&one, turns("r", 1, 2)).await.is_err());
    }
    assert!(
        start.elapsed() < 2 * limit,
        "no wait: {:?}",
        start.elapsed()
    );
    assert!(!one.stats().up && one.stats().lost == 103);
    sleep(Duration::from_secs(3).saturating_sub(frozen.elapsed())).await;
    assert!(ask(&one, turns("r", 1, 2)).await.is_err());
    server.signal("CONT");

    learns_end(&two, "told-meanwhile").await;
    up(&one).await;
    hole(&one).await;
    let aborted = Some(TerminalReason::Aborted);
    assert_eq!(end_of(&one, "told-meanwhile").await, aborted);
    assert_eq!(ask(&one, turns("r", 1, 2)).await.unwrap().granted, 2);
    assert!(!log.events("the store of runs is lost").is_empty());
    let (lost, back) = ("the store of runs is lost", "the store of runs is back");
    until("as many returns as losses", || {
        log.events(lost).len() == log.events(back).len()
    })
    .await;
}

#[tokio::test]
async fn a_server_that_restarts_with_its_file_knows_all_ends() {
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut server) = Server::start(&args) else {
        return;
    };
    let one = server.store().await;
    ask(&one, turns("live", 1, 3)).await.unwrap();
    one.tell(abort("r"));
    told(&one).await;
    drop(one);
    server.restart();
    let two = server.store().await;
    assert_eq!(end_of(&two, "r").await, Some(TerminalReason::Aborted));
    assert_eq!(ask(&two, turns("live", 2, 30)).await.unwrap().granted, 27);
}

#[tokio::test]
async fn a_server_that_comes_back_empty_gets_live_runs_and_the_ends_of_the_last_minute() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (server.store().await, server.store().await);
    let before = ask(&one, turns("live", 1, 3)).await.unwrap();
    assert_eq!(ask(&two, turns("live", 2, 4)).await.unwrap().granted, 4);
    one.tell(abort("before"));
    told(&one).await;

    for empties in ["restart", "flush"] {
        if empties == "restart" {
            server.kill();
            down(&one).await;
            down(&two).await;
            one.tell(abort("meanwhile"));
            server.restart();
        } else {
            let mut other = server.connection().await;
            redis::cmd("FLUSHALL").exec_async(&mut other).await.unwrap();
        }
        hole(&one).await;
        hole(&two).await;
        up(&one).await;
        up(&two).await;
        told(&one).await;
        // As a registry asks about each of its live runs after a hole.
        answered(&one, RunQuestion::new(run("live"), 1)).await;
        answered(&two, RunQuestion::new(run("live"), 2)).await;

        let three = server.store().await;
        let live = ask(&three, turns("live", 3, 30)).await.unwrap();
        assert_eq!(live.incarnation, before.incarnation, "{empties}");
        assert_eq!((live.turns_elsewhere, live.granted), (7, 23), "{empties}");
        assert!(live.age >= before.age);
        // A question about an ended id that comes before the end is told again would open it anew.
        for ended in ["before", "meanwhile"] {
            let deadline = Instant::now() + Duration::from_secs(10);
            while !is_stored(&server, ended).await {
                assert!(Instant::now() < deadline, "{empties} {ended}");
                sleep(Duration::from_millis(10)).await;
            }
            assert!(end_of(&three, ended).await.is_some());
        }
        three.tell(RunNews::Left {
            run: run("live"),
            part: 3,
            turns: 23,
            completed: true,
        });
        told(&three).await;
    }
}

#[tokio::test]
async fn what_no_replica_wrote_fails_one_run_and_nothing_else() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let store = server.store().await;
    let mut other = server.connection().await;
    // The key, as the store names it.
    ask(&store, RunQuestion::new(run("r"), 1)).await.unwrap();
    let cmd = redis::cmd("KEYS").arg("ta1:*:run:*").take();
    let keys: Vec<String> = cmd.query_async(&mut other).await.unwrap();
    let [key] = &keys[..] else { panic!("{keys:?}") };

    let good = "inc 7 opened 1000000";
    let damages = [
        "SET KEY text".to_owned(),
        "RPUSH KEY text".to_owned(),
        "XADD KEY * k v".to_owned(),
        "HSET KEY inc abc opened 1000000".to_owned(),
        "HSET KEY inc 99999999999999999999999 opened 1000000".to_owned(),
        "HSET KEY inc 7".to_owned(),
        "HSET KEY some thing".to_owned(),
        "HSET KEY inc 7 opened then".to_owned(),
        format!("HSET KEY {good} t:x:1 many"),
        format!("HSET KEY {good} t:x:1 -1"),
        format!("HSET KEY {good} t:x:1 1.5"),
        format!("HSET KEY {good} t:x:1 1e300"),
        format!("HSET KEY {good} s:x:1 much"),
        format!("HSET KEY {good} s:x:1 -1"),
        format!("HSET KEY {good} s:x:1 1_2_3_4_5_6_7"),
        format!("HSET KEY {good} ext much"),
        format!("HSET KEY {good} ext -1"),
        format!("HSET KEY {good} ext 1_2_3_4_5"),
        format!("HSET KEY {good} end {{}}"),
        format!("HSET KEY {good} end \u{fffd}"),
        format!("HSET KEY {good} parent a/b"),
    ];
    for damage in damages {
        let log = LogCapture::start();
        let store = server.store().await;
        redis::cmd("DEL")
            .arg(key)
            .exec_async(&mut other)
            .await
            .unwrap();
        let words: Vec<_> = damage.split(' ').collect();
        let mut cmd = redis::cmd(words[0]);
        for word in &words[1..] {
            cmd.arg(if *word == "KEY" { key } else { *word });
        }
        cmd.exec_async(&mut other).await.unwrap();
        for _ in 0..5 {
            assert!(ask(&store, turns("r", 1, 1)).await.is_err(), "{damage}");
        }
        let lines = log.events(DAMAGED);
        assert_eq!(lines.len(), 1, "{damage}: {lines:?}");
        assert!(lines[0]["key"].contains(key.as_str()), "{lines:?}");
        // No other run is touched, and news of this one stop no other news.
        store.tell(RunNews::Left {
            run: run("r"),
            part: 1,
            turns: 0,
            completed: true,
        });
        store.tell(abort("r"));
        store.tell(abort("other"));
        told(&store).await;
        assert!(store.stats().up, "{damage}");
        assert!(end_of(&store, "other").await.is_some(), "{damage}");
    }
}

#[tokio::test]
async fn damaged_logs_and_indices_take_no_end_away() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (server.store().await, server.store().await);
    let mut other = server.connection().await;
    let mut in_session = RunQuestion::new(run("r"), 1);
    in_session.session = Some("s".into());
    ask(&one, in_session.clone()).await.unwrap();
    let cmd = redis::cmd("KEYS").arg("ta1:*:ses:*").take();
    let keys: Vec<String> = cmd.query_async(&mut other).await.unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    redis::cmd("SET")
        .arg(&keys[0])
        .arg("x")
        .exec_async(&mut other)
        .await
        .unwrap();
    for tag in 0..16 {
        let mut cmd = redis::cmd("XADD");
        cmd.arg(format!("ta1:{{{tag:02}}}:log"))
            .arg("*")
            .arg("k")
            .arg("end")
            .arg("r")
            .arg("x");
        cmd.exec_async(&mut other).await.unwrap();
    }
    assert!(ask(&one, in_session.clone()).await.unwrap().end.is_none());
    one.tell(RunNews::SessionEnded {
        owner: Owner::anonymous(),
        session: "s".into(),
        spared: None,
    });
    one.tell(abort("r"));
    told(&one).await;
    // What is whole is heard behind what is not.
    hears_end(&two, "r").await;

    for tag in 0..16 {
        let mut cmd = redis::cmd("SET");
        cmd.arg(format!("ta1:{{{tag:02}}}:log"))
            .arg("no log")
            .exec_async(&mut other)
            .await
            .unwrap();
    }
    one.tell(abort("unheard"));
    told(&one).await;
    assert!(end_of(&two, "unheard").await.is_some());
    for tag in 0..16 {
        let mut cmd = redis::cmd("DEL");
        cmd.arg(format!("ta1:{{{tag:02}}}:log"))
            .exec_async(&mut other)
            .await
            .unwrap();
    }
    up(&two).await;
    one.tell(abort("heard"));
    hears_end(&two, "heard").await;
    assert_eq!(one.stats().dropped + two.stats().dropped, 0);
}

/// What makes a server useless, and what ends that.
async fn useless_until(server: &Server, useless: &[&[&str]], mended: &[&[&str]], password: &str) {
    let store = server.store().await;
    let mut other = server.connection().await;
    for command in useless {
        let done = redis::cmd(command[0])
            .arg(&command[1..])
            .exec_async(&mut other)
            .await;
        done.unwrap();
    }
    let lost = async {
        while store.stats().up {
            assert!(ask(&store, turns("r", 1, 1)).await.is_err() || store.stats().up);
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), lost)
        .await
        .expect("a loss");
    store.tell(abort("told-meanwhile"));
    // It stays so, although the server answers.
    sleep(Duration::from_millis(500)).await;
    assert!(!store.stats().up && store.stats().waiting == 1);
    let connected = RedisRunStore::connect(&server.url(), &secret(), RedisOptions::new()).await;
    if !password.is_empty() {
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), ConnectErrorKind::Refused, "{error}");
        other = {
            let url = format!("redis://:{password}@127.0.0.1:{}", server.port);
            let client = redis::Client::open(url).unwrap();
            client.get_multiplexed_async_connection().await.unwrap()
        };
    }
    for command in mended {
        let done = redis::cmd(command[0])
            .arg(&command[1..])
            .exec_async(&mut other)
            .await;
        done.unwrap();
    }
    up(&store).await;
    told(&store).await;
    assert!(end_of(&store, "told-meanwhile").await.is_some());
    assert!(ask(&store, turns("r", 1, 1)).await.is_ok());
}

#[tokio::test]
async fn a_server_that_takes_no_writes_is_lost_until_it_does() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let port = free_port().to_string();
    let replica: &[&[&str]] = &[&["REPLICAOF", "127.0.0.1", &port]];
    useless_until(&server, replica, &[&["REPLICAOF", "NO", "ONE"]], "").await;
}

#[tokio::test]
async fn a_server_that_is_full_is_lost_until_it_is_not() {
    let Some(server) = Server::start(&["--maxmemory-policy", "noeviction"]) else {
        return;
    };
    let full: &[&[&str]] = &[&["CONFIG", "SET", "maxmemory", "1"]];
    useless_until(&server, full, &[&["CONFIG", "SET", "maxmemory", "0"]], "").await;
}

#[tokio::test]
async fn a_server_that_wants_a_password_is_lost_and_refuses_a_connect() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let closed: &[&[&str]] = &[
        &["CONFIG", "SET", "requirepass", "secret"],
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
    ];
    useless_until(
        &server,
        closed,
        &[&["CONFIG", "SET", "requirepass", ""]],
        "secret",
    )
    .await;
}

/// A server that lost the log writes a new one, which may have news before a replica reads on.
#[tokio::test]
async fn a_log_that_begins_behind_what_was_read_is_read_on() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let (one, two) = (server.store().await, server.store().await);
    one.tell(abort("before"));
    hears_end(&two, "before").await;

    let mut other = server.connection().await;
    let set_password = |password: &'static str| {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("SET").arg("requirepass").arg(password);
        cmd
    };
    set_password("x").exec_async(&mut other).await.unwrap();
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .exec_async(&mut other)
        .await
        .unwrap();
    down(&two).await;
    let logs: Vec<String> = redis::cmd("KEYS")
        .arg("*:log")
        .query_async(&mut other)
        .await
        .unwrap();
    for log in logs {
        let mut anew = redis::pipe();
        anew.del(&log).ignore();
        anew.cmd("XADD").arg(&log).arg("*").arg("field").arg("1");
        anew.exec_async(&mut other).await.unwrap();
    }
    // A reader checks the logs first if it has read nothing for a second.
    sleep(Duration::from_millis(1_100)).await;
    set_password("").exec_async(&mut other).await.unwrap();
    up(&one).await;
    up(&two).await;
    one.tell(abort("after"));
    hears_end(&two, "after").await;
}

#[tokio::test]
async fn a_connect_tells_what_is_wrong() {
    let connect = |url: String| async move {
        let error = RedisRunStore::connect(&url, &secret(), RedisOptions::new())
            .await
            .unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, _) = connect("http://localhost".into()).await;
    assert_eq!(kind, ConnectErrorKind::Url);
    let url = format!("redis://:hunter2@127.0.0.1:{}", free_port());
    let (kind, text) = connect(url.clone()).await;
    assert_eq!(kind, ConnectErrorKind::Unreachable, "{text}");
    assert!(!text.contains("hunter2"));
    let options = RedisOptions::new().prefix("a{b}");
    let error = RedisRunStore::connect(&url, &secret(), options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ConnectErrorKind::Option);

    // A server that is too old.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let old = format!(
        "redis://127.0.0.1:{}",
        listener.local_addr().unwrap().port()
    );
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut read = vec![0; 4096];
        loop {
            let length = socket.read(&mut read).await.unwrap();
            let text = String::from_utf8_lossy(&read[..length]).into_owned();
            if length == 0 {
                return;
            }
            let commands = text.split("\r\n").filter(|line| line.starts_with('*'));
            let info = "redis_version:6.2.14\r\n";
            let answer = match text.contains("\r\nINFO\r\n") {
                true => format!("${}\r\n{info}\r\n", info.len()),
                false => "+OK\r\n".repeat(commands.count()),
            };
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let (kind, text) = connect(old).await;
    assert_eq!(kind, ConnectErrorKind::TooOld, "{text}");
    assert!(text.contains("6.2.14"));
}

#[tokio::test]
async fn a_server_that_evicts_is_a_warning() {
    let args = ["--maxmemory-policy", "allkeys-lru"];
    let Some(server) = Server::start(&args) else {
        return;
    };
    let log = LogCapture::start();
    let _store = server.store().await;
    let text = "the store of runs evicts keys: ends and turns will be forgotten";
    assert_eq!(log.events(text).len(), 1);
}

#[tokio::test]
async fn a_store_may_begin_without_its_server() {
    let Some(mut server) = Server::start(&[]) else {
        return;
    };
    server.kill();
    let options = RedisOptions::new().may_be_lost();
    let store = RedisRunStore::connect(&server.url(), &secret(), options)
        .await
        .unwrap();
    assert!(!store.stats().up && ask(&store, turns("r", 1, 1)).await.is_err());
    store.tell(abort("r"));
    server.restart();
    up(&store).await;
    assert!(end_of(&store, "r").await.is_some());
}

#[tokio::test]
async fn a_live_run_is_kept_while_its_replica_lives() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let options = || RedisOptions::new().ttl(Duration::from_secs(3));
    let (one, two) = (
        server.store_with(options()).await,
        server.store_with(options()).await,
    );
    ask(&one, turns("kept", 1, 3)).await.unwrap();
    ask(&two, turns("dead", 1, 3)).await.unwrap();
    drop(two);
    sleep(Duration::from_millis(4500)).await;
    let three = server.store().await;
    assert_eq!(
        ask(&three, turns("kept", 2, 0))
            .await
            .unwrap()
            .turns_elsewhere,
        3
    );
    assert_eq!(
        ask(&three, turns("dead", 2, 0))
            .await
            .unwrap()
            .turns_elsewhere,
        0
    );
}

#[tokio::test]
async fn a_failover_by_sentinels_keeps_ends_and_turns() {
    let Some(Sentinels {
        mut master,
        second,
        url,
        sentinel,
    }) = Sentinels::start().await
    else {
        return;
    };
    let secret = secret();
    let connect = || RedisRunStore::connect(&url, &secret, RedisOptions::new());
    let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
    ask(&one, turns("live", 1, 3)).await.unwrap();
    one.tell(abort("before"));
    hears_end(&two, "before").await;
    // A replica of Redis gets what its master has a moment later.
    replicates(&second).await;

    master.kill();
    down(&one).await;
    one.tell(abort("meanwhile"));
    let start = Instant::now();
    let back = async {
        while !(one.stats().up && two.stats().up) {
            sleep(Duration::from_millis(10)).await
        }
    };
    if timeout(Duration::from_secs(60), back).await.is_err() {
        let stats = (one.stats(), two.stats());
        panic!("no failover: {stats:?}\n{}", sentinel.log());
    }
    eprintln!("failover: {:?}", start.elapsed());
    learns_end(&two, "meanwhile").await;
    assert!(end_of(&two, "before").await.is_some());
    // The new master may lack the last writes: a registry asks about each of its live runs after a hole.
    answered(&one, RunQuestion::new(run("live"), 1)).await;
    assert_eq!(answered(&two, turns("live", 2, 30)).await.granted, 27);
    let cmd = redis::cmd("INFO").arg("replication").take();
    let state: String = cmd
        .query_async(&mut second.connection().await)
        .await
        .unwrap();
    assert!(state.contains("role:master"));
}

/// The figure of a question: prints it.
#[tokio::test]
async fn a_question_is_one_round_trip() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let began = Instant::now();
    let store = server.store().await;
    let mut other = server.connection().await;
    let mut took = Vec::new();
    let mut trips = Vec::new();
    for number in 0..2000 {
        let start = Instant::now();
        redis::cmd("PING").exec_async(&mut other).await.unwrap();
        trips.push(start.elapsed());
        let start = Instant::now();
        let mut question = turns(&format!("r-{}", number % 100), 1, number);
        question.session = Some("s".into());
        ask(&store, question).await.unwrap();
        took.push(start.elapsed());
    }
    took.sort();
    trips.sort();
    let cmd = redis::cmd("INFO").arg("commandstats").take();
    let stats: String = cmd.query_async(&mut other).await.unwrap();
    let script = stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"));
    eprintln!(
        "question: p50 {:?}, p99 {:?}; ping: p50 {:?}",
        took[1000], took[1980], trips[1000]
    );
    eprintln!("{}", script.unwrap());
    let calls = script.and_then(|line| line.split(['=', ',']).nth(1));
    let calls: u64 = calls.unwrap().parse().unwrap();
    // A replica says at its start that it lives, and each second.
    let alive = 2 + began.elapsed().as_secs();
    assert!(
        (2000..=2000 + alive).contains(&calls),
        "one script each: {calls}"
    );
}
