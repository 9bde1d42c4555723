use super::RedisServer;
use crate::net::ClosedPort;

/// A master, a replica of it, and a sentinel that watches both.
pub(crate) struct Sentinels {
    pub(crate) master: RedisServer,
    pub(crate) second: RedisServer,
    sentinel: RedisServer,
    /// The address of another sentinel, which does not answer.
    silent: ClosedPort,
}

impl Sentinels {
    /// `None`, and a loud line, if a program is missing here.
    pub(crate) async fn start() -> Option<Self> {
        // By default a master waits 5 s for other replicas before it sends what it has.
        let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await?;
        let port = master.port().to_string();
        let second = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]).await?;
        second
            .until_info("replication", "master_link_status:up")
            .await;
        // A sentinel sends a PING each second: with less it takes a healthy server for one that is down.
        let conf = format!(
            "sentinel monitor main 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds main 2000\n\
             sentinel failover-timeout main 5000\n"
        );
        let sentinel = RedisServer::sentinel(&conf).await?;
        // The sentinel learns of the replica from the master.
        sentinel.until_info("sentinel", "slaves=1").await;
        Some(Self {
            master,
            second,
            sentinel,
            silent: ClosedPort::new(),
        })
    }

    pub(crate) fn url(&self) -> String {
        let (silent, port) = (self.silent.addr, self.sentinel.port());
        format!("redis+sentinel://{silent},127.0.0.1:{port}/main/0")
    }
}
