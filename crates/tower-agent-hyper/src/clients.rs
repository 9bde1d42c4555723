//! The clients behind a service, each with a pool of its own.
//!
//! hyper-util's pool keeps one HTTP/2 connection to an origin, and a request beyond the peer's
//! limit of streams waits unsent, for the end of another and without a sign. A second pool makes a
//! second connection.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use hyper_util::client::legacy::{Builder, Client};

use crate::{connector::Connector, proxy::UpstreamProxy, request_body::OutgoingBody};

/// The most pools, and so the most HTTP/2 connections that take new requests to an origin.
pub(crate) const MAX_POOLS: usize = 16;

pub(crate) type HttpClient = Client<Connector, OutgoingBody>;

/// The clients of a service, which share a connector.
pub(crate) struct Clients {
    pools: [ClientPool; MAX_POOLS],
    /// How many requests a pool has under way before the next pool is used.
    streams: usize,
    /// A client that makes a connection for each request.
    unpooled: HttpClient,
    builder: Builder,
    connector: Connector,
    pub(crate) proxy: UpstreamProxy,
    pub(crate) resends: bool,
}

/// A client that is made for its first request.
#[derive(Default)]
struct ClientPool {
    client: OnceLock<HttpClient>,
    under_way: AtomicUsize,
}

/// A request's place among those that its pool has under way, until its release or drop.
pub(crate) struct PoolLease {
    clients: Arc<Clients>,
    /// The index of the pool.
    pool: usize,
    is_held: bool,
}

impl Clients {
    pub(crate) fn new(
        builder: Builder,
        connector: Connector,
        streams: usize,
        proxy: UpstreamProxy,
        resends: bool,
    ) -> Self {
        let mut unpooled = builder.clone();
        Self {
            pools: Default::default(),
            streams,
            unpooled: unpooled.pool_max_idle_per_host(0).build(connector.clone()),
            builder,
            connector,
            proxy,
            resends,
        }
    }

    /// The same settings and connector, with pools that are empty.
    pub(crate) fn separate(&self) -> Self {
        let (builder, connector) = (self.builder.clone(), self.connector.clone());
        let proxy = self.proxy.clone();
        Self::new(builder, connector, self.streams, proxy, self.resends)
    }

    /// Takes a place in the first pool that has one, or in the pool with the fewest requests.
    pub(crate) fn lease(self: &Arc<Self>) -> PoolLease {
        let free = self.pools.iter().position(|pool| pool.enter(self.streams));
        let pool = free.unwrap_or_else(|| {
            let loads = self.pools.iter().map(|pool| pool.under_way.load(Relaxed));
            let least = loads.enumerate().min_by_key(|(_, load)| *load);
            let least = least.map_or(0, |(at, _)| at);
            self.pools[least].under_way.fetch_add(1, Relaxed);
            least
        });
        PoolLease {
            clients: Arc::clone(self),
            pool,
            is_held: true,
        }
    }
}

impl ClientPool {
    /// Counts a request, unless there are `most` already.
    fn enter(&self, most: usize) -> bool {
        let is_free = self.under_way.fetch_add(1, Relaxed) < most;
        if !is_free {
            self.under_way.fetch_sub(1, Relaxed);
        }
        is_free
    }
}

impl PoolLease {
    /// The client of the lease's pool.
    pub(crate) fn pooled(&self) -> &HttpClient {
        let Clients {
            builder, connector, ..
        } = &*self.clients;
        let client = &self.clients.pools[self.pool].client;
        client.get_or_init(|| builder.build(connector.clone()))
    }

    /// The client that makes a connection for each request.
    pub(crate) fn unpooled(&self) -> &HttpClient {
        &self.clients.unpooled
    }

    /// Gives the place back.
    pub(crate) fn release(&mut self) {
        if std::mem::take(&mut self.is_held) {
            let pool = &self.clients.pools[self.pool];
            pool.under_way.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for PoolLease {
    fn drop(&mut self) {
        self.release();
    }
}

impl fmt::Debug for PoolLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolLease")
            .field("pool", &self.pool)
            .field("is_held", &self.is_held)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HyperService;

    #[test]
    fn requests_take_the_first_pool_with_a_place_and_else_the_least_loaded() {
        let service = HyperService::builder().max_streams_per_connection(2);
        let service = service.build().unwrap();
        let lease = || service.clients().lease();
        let mut leases: Vec<_> = (0..2 * MAX_POOLS).map(|_| lease()).collect();
        let taken: Vec<_> = leases.iter().map(|lease| lease.pool).collect();
        let wanted: Vec<_> = (0..2 * MAX_POOLS).map(|at| at / 2).collect();
        assert_eq!(taken, wanted);

        drop(leases.remove(11));
        assert_eq!(lease().pool, 5);
        // A release counts once.
        leases[0].release();
        leases[0].release();
        let (again, beyond) = (lease(), lease());
        assert_eq!((again.pool, beyond.pool), (0, 5));
    }
}
