//! What is known of each connection: when it was last read, and whether it may be used again.

use std::{
    collections::HashMap,
    fmt, io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{
    Extensions, Uri,
    uri::{Authority, Scheme},
};
use hyper_util::client::legacy::connect::{CaptureConnection, Connected, Connection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// The connections of a service, by the origin of their requests.
#[derive(Debug)]
pub(crate) struct Origins {
    started: Instant,
    peers: Mutex<HashMap<(Scheme, Authority), Arc<Peers>>>,
}

/// The connections to one origin.
#[derive(Debug)]
pub(crate) struct Peers {
    started: Instant,
    records: Mutex<Vec<Weak<ConnectionRecord>>>,
}

/// What the requests of a connection, and the connection itself, tell each other.
pub(crate) struct ConnectionRecord {
    peers: Arc<Peers>,
    /// Whether the head of an answer has come.
    is_proven: AtomicBool,
    bytes_read: AtomicU64,
    /// When bytes were last read, in nanoseconds since `peers.started`.
    last_read: AtomicU64,
    handle: Mutex<PoolHandle>,
}

/// The way to the pool's entry of a connection.
enum PoolHandle {
    /// No answer has come yet.
    Unknown,
    Captured(CaptureConnection),
    /// The connection is gone. The entry refers to the record, so it must not be kept.
    Closed,
}

impl Origins {
    pub(crate) fn new() -> Self {
        Self {
            started: Instant::now(),
            peers: Mutex::default(),
        }
    }

    /// Enters a connection that was made for requests to `uri`.
    pub(crate) fn record(&self, uri: &Uri) -> Arc<ConnectionRecord> {
        let peers = self.peers_of(uri);
        let record = Arc::new(ConnectionRecord {
            last_read: AtomicU64::new(peers.now()),
            is_proven: AtomicBool::new(false),
            bytes_read: AtomicU64::new(0),
            handle: Mutex::new(PoolHandle::Unknown),
            peers: Arc::clone(&peers),
        });
        let mut records = locked(&peers.records);
        records.retain(|record| record.strong_count() > 0);
        records.push(Arc::downgrade(&record));
        drop(records);
        record
    }

    fn peers_of(&self, uri: &Uri) -> Arc<Peers> {
        let new = || {
            Arc::new(Peers {
                started: self.started,
                records: Mutex::default(),
            })
        };
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return new();
        };
        let mut peers = locked(&self.peers);
        let key = (scheme.clone(), authority.clone());
        if let Some(known) = peers.get(&key) {
            return Arc::clone(known);
        }
        // A record holds its peers, so origins without a connection go when another comes.
        peers.retain(|_, peers| Arc::strong_count(peers) > 1);
        let new = new();
        peers.insert(key, Arc::clone(&new));
        new
    }
}

impl Peers {
    fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn at(&self, instant: Instant) -> u64 {
        let nanos = instant.saturating_duration_since(self.started).as_nanos();
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

impl ConnectionRecord {
    /// The record of a connection from its metadata in the pool.
    pub(crate) fn of(connected: &Connected) -> Option<Arc<Self>> {
        let mut extensions = Extensions::new();
        connected.get_extras(&mut extensions);
        extensions.remove()
    }

    /// Notes that the head of an answer came, by which the connection can be found in the pool.
    pub(crate) fn answered(&self, capture: &CaptureConnection) {
        self.is_proven.store(true, Relaxed);
        let mut handle = locked(&self.handle);
        if matches!(*handle, PoolHandle::Unknown) {
            *handle = PoolHandle::Captured(capture.clone());
        }
    }

    /// Whether an answer has come on this connection, to whichever request.
    pub(crate) fn is_proven(&self) -> bool {
        self.is_proven.load(Relaxed)
    }

    /// Whether a byte may have been read since `instant`: a clock that stands still says so.
    pub(crate) fn may_be_read_since(&self, instant: Instant) -> bool {
        self.last_read.load(Relaxed) >= self.peers.at(instant)
    }

    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Relaxed)
    }

    /// Whether nothing was read since `instant`.
    pub(crate) fn is_silent_since(&self, instant: Instant) -> bool {
        self.last_read.load(Relaxed) <= self.peers.at(instant)
    }

    /// When a byte was last read, or the connection was made.
    pub(crate) fn last_read(&self) -> Instant {
        self.peers.started + Duration::from_nanos(self.last_read.load(Relaxed))
    }

    /// Takes the connections to this origin out of the pool on which nothing was read since
    /// `instant`. Their requests go on.
    pub(crate) fn condemn_silent_peers(&self, instant: Instant) {
        let records: Vec<_> = {
            let records = locked(&self.peers.records);
            records.iter().filter_map(Weak::upgrade).collect()
        };
        for record in records {
            if record.is_silent_since(instant) {
                record.condemn();
            }
        }
    }

    /// Takes the connection out of the pool, if an answer has come on it.
    pub(crate) fn condemn(&self) {
        let handle = locked(&self.handle);
        if let PoolHandle::Captured(capture) = &*handle {
            if let Some(connected) = &*capture.connection_metadata() {
                connected.poison();
            }
        }
    }

    fn read(&self, bytes: usize) {
        self.last_read.store(self.peers.now(), Relaxed);
        self.bytes_read.fetch_add(bytes as u64, Relaxed);
    }
}

impl fmt::Debug for ConnectionRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRecord")
            .field("is_proven", &self.is_proven)
            .finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection that keeps its [`ConnectionRecord`].
#[derive(Debug)]
pub(crate) struct RecordedIo<T> {
    inner: T,
    record: Arc<ConnectionRecord>,
}

impl<T> RecordedIo<T> {
    pub(crate) const fn new(inner: T, record: Arc<ConnectionRecord>) -> Self {
        Self { inner, record }
    }
}

impl<T> Drop for RecordedIo<T> {
    fn drop(&mut self) {
        let entry = std::mem::replace(&mut *locked(&self.record.handle), PoolHandle::Closed);
        // The entry may hold the last reference to a record, whose lock must be free.
        drop(entry);
    }
}

impl<T: Connection> Connection for RecordedIo<T> {
    fn connected(&self) -> Connected {
        self.inner.connected().extra(Arc::clone(&self.record))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for RecordedIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let result = ready!(Pin::new(&mut this.inner).poll_read(cx, buffer));
        let came = buffer.filled().len() - before;
        if came > 0 {
            this.record.read(came);
        }
        Poll::Ready(result)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for RecordedIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
