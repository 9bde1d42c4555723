//! A master, a replica of it, and a sentinel that watches both.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::server::{Server, free_port, has};

pub(crate) struct Sentinels {
    pub(crate) master: Server,
    pub(crate) second: Server,
    pub(crate) sentinel: Server,
    /// The sentinel's address, behind that of one that does not answer.
    pub(crate) url: String,
}

impl Sentinels {
    /// `None` if a program is missing here.
    pub(crate) async fn start() -> Option<Self> {
        if !has("redis-sentinel") {
            return None;
        }
        // By default a master waits 5 s for other replicas before it sends what it has.
        let master = Server::start(&["--repl-diskless-sync-delay", "0"])?;
        let port = master.port.to_string();
        let second = Server::start(&["--replicaof", "127.0.0.1", &port])?;
        replicates(&second).await;
        // A sentinel sends a PING each second: with less it takes a healthy server for one that is down.
        let conf = format!(
            "sentinel monitor main 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds main 2000\n\
             sentinel failover-timeout main 5000\n"
        );
        let sentinel = Server::sentinel(&conf);
        // The sentinel learns of the replica from the master.
        let mut info = sentinel.connection().await;
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let cmd = redis::cmd("SENTINEL").arg("REPLICAS").arg("main").take();
            let known: Vec<redis::Value> = cmd.query_async(&mut info).await.unwrap();
            if known.len() == 1 {
                break;
            }
            assert!(Instant::now() < deadline);
            sleep(Duration::from_millis(50)).await;
        }
        let url = format!(
            "redis+sentinel://127.0.0.1:{},127.0.0.1:{}/main/0",
            free_port(),
            sentinel.port
        );
        Some(Self {
            master,
            second,
            sentinel,
            url,
        })
    }
}

/// Waits until the server has all that its master has.
pub(crate) async fn replicates(server: &Server) {
    let mut info = server.connection().await;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let cmd = redis::cmd("INFO").arg("replication").take();
        let state: String = cmd.query_async(&mut info).await.unwrap();
        if state.contains("master_link_status:up") {
            return;
        }
        assert!(Instant::now() < deadline, "{state}");
        sleep(Duration::from_millis(50)).await;
    }
}
