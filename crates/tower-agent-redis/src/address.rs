//! Where the store is, and how it is reached.

use std::{fmt, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult,
    aio::MultiplexedConnection,
    io::tcp::TcpSettings,
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};
use tokio::{sync::Mutex, time::timeout};

use crate::ConnectError;

/// How long a connection may take to be made.
pub(crate) const CONNECT: Duration = Duration::from_secs(1);

const SENTINEL: &str = "redis+sentinel://";

/// Where the store is.
pub(crate) enum Address {
    Server(Client),
    /// Sentinels say which server is the master.
    Sentinels(Mutex<SentinelClient>),
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An address has a password.
        f.write_str(match self {
            Self::Server(_) => "Server(..)",
            Self::Sentinels(_) => "Sentinels(..)",
        })
    }
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        if let Some(rest) = url.strip_prefix(SENTINEL) {
            return Self::sentinels(rest);
        }
        #[cfg(not(feature = "tls"))]
        if url.starts_with("rediss://") {
            return Err(ConnectError::url("`rediss://` needs the feature `tls`"));
        }
        #[cfg(feature = "tls")]
        if url.starts_with("rediss://") && rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may have installed one meanwhile, which is as good.
            let _installed = rustls::crypto::ring::default_provider().install_default();
        }
        let client = Client::open(info(url)?).map_err(|error| refused(&error))?;
        Ok(Self::Server(client))
    }

    /// `[user:password@]host:port,host:port/master/db`
    fn sentinels(rest: &str) -> Result<Self, ConnectError> {
        let (account, rest) = match rest.rsplit_once('@') {
            Some((account, rest)) => (format!("{account}@"), rest),
            None => (String::new(), rest),
        };
        let mut parts = rest.trim_end_matches('/').split('/');
        let hosts = parts.next().unwrap_or_default();
        let master = parts.next().filter(|name| !name.is_empty());
        let master = master.ok_or_else(|| {
            ConnectError::url("a master is missing: redis+sentinel://host:port,host:port/master/db")
        })?;
        let db = parts.next().unwrap_or("0");
        if parts.next().is_some() {
            return Err(ConnectError::url("too many parts behind the master"));
        }
        let sentinels = hosts
            .split(',')
            .map(|host| info(&format!("redis://{host}/")));
        let sentinels = sentinels.collect::<Result<Vec<_>, _>>()?;
        // The account and the database are the master's.
        let server = info(&format!("redis://{account}localhost/{db}"))?;
        let server = SentinelNodeConnectionInfo::default()
            .set_redis_connection_info(server.redis_settings().clone())
            .set_tcp_settings(server.tcp_settings().clone());
        // The client takes a `String` without TLS, and any text with it.
        let master = String::from(master);
        let kind = SentinelServerType::Master;
        let client = SentinelClient::build(sentinels, master, Some(server), kind);
        let client = client.map_err(|error| refused(&error))?;
        Ok(Self::Sentinels(Mutex::new(client)))
    }

    /// Makes a connection whose commands fail after `answer` without an answer.
    pub(crate) async fn open(&self, answer: Duration) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT))
            .set_response_timeout(Some(answer))
            .set_pipeline_buffer_size(1024);
        let opened = async {
            match self {
                Self::Server(client) => {
                    client
                        .get_multiplexed_async_connection_with_config(&config)
                        .await
                }
                Self::Sentinels(client) => {
                    let client = client.lock().await.async_get_client().await?;
                    client
                        .get_multiplexed_async_connection_with_config(&config)
                        .await
                }
            }
        };
        let late = || RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        // Beside the server, one sentinel or two may be silent.
        timeout(3 * CONNECT, opened)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}

fn info(url: &str) -> Result<ConnectionInfo, ConnectError> {
    let info = url
        .into_connection_info()
        .map_err(|error| refused(&error))?;
    Ok(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// The text of the error does not have the URL, and so no password.
fn refused(error: &RedisError) -> ConnectError {
    ConnectError::url(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        for good in [
            "redis://127.0.0.1:6379/3",
            "redis://user:pass@localhost",
            "redis+sentinel://a:1,b:2/main/3",
            "redis+sentinel://:p%40ss@a:1/main",
        ] {
            assert!(Address::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "http://localhost",
            "redis+sentinel://a:1,b:2",
            "redis+sentinel:///main",
            "redis+sentinel://a:1/main/0/more",
            "redis+sentinel://a:1/main/x",
        ] {
            let error = Address::parse(bad).err().map(|error| error.to_string());
            assert!(error.is_some(), "{bad}");
        }
        let error = Address::parse("redis://user:hunter2@:bad:/x")
            .err()
            .unwrap();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}
