//! The activity of one connection, and the deadline that follows from it.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use http::Version;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::frame_cursor::FrameCursor;
use crate::config::ServerLimits;

/// The longest time of a graceful close. The time counts from its start, from the last written byte
/// or from the end of the last request, whichever is latest.
const CLOSING: Duration = Duration::from_secs(5);

/// A connection's requests in flight, and the times that set its deadline.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<ConnectionState>,
    /// The connection's task, woken when the last request in flight is done: then its clock
    /// starts.
    task: AtomicWaker,
}

#[derive(Debug)]
struct ConnectionState {
    in_flight: usize,
    /// The version of the last request; `None` before the first.
    version: Option<Version>,
    /// When the last request was done; at first, when the connection was accepted.
    idle: Instant,
    /// When the first byte of the next head arrived, on a kept HTTP/1 connection.
    head: Option<Instant>,
    /// When the socket last took bytes.
    written: Instant,
    /// When the socket last gave bytes, and how many it gave in all.
    read: (Instant, u64),
    /// When the graceful close began.
    closing: Option<Instant>,
    /// Whether the socket was dropped: also behind an upgrade it is open before.
    is_gone: bool,
    /// Where the next frame of a WebSocket begins; `None` before an upgrade to one.
    frames: Option<FrameCursor>,
}

/// The action at a connection's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Close the connection gracefully.
    Close,
    /// Drop the connection, with an unfinished head or unsent bytes.
    Drop,
}

/// A guard for a request in flight; its drop takes the request out of the count.
#[derive(Debug)]
pub(super) struct InFlight(Arc<Activity>);

/// A socket that reports its reads and writes to the connection's [`Activity`].
#[derive(Debug)]
pub(super) struct ObservedIo<T> {
    io: T,
    activity: Arc<Activity>,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        let now = Instant::now();
        let state = ConnectionState {
            in_flight: 0,
            version: None,
            idle: now,
            head: None,
            written: now,
            read: (now, 0),
            closing: None,
            is_gone: false,
            frames: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            task: AtomicWaker::new(),
        })
    }

    pub(super) fn begin(self: &Arc<Self>, version: Version) -> Arc<InFlight> {
        let mut state = self.lock();
        state.in_flight += 1;
        state.version = Some(version);
        state.head = None;
        Arc::new(InFlight(Arc::clone(self)))
    }

    /// Registers the connection's task, to be woken when a deadline may have begun.
    pub(super) fn register(&self, waker: &Waker) {
        self.task.register(waker);
    }

    pub(super) fn close(&self) {
        self.lock().closing.get_or_insert_with(Instant::now);
    }

    /// The next deadline and its action, if nothing happens before. `None` while a request is in
    /// flight, or if the limit that applies is off.
    pub(super) fn deadline(&self, limits: &ServerLimits) -> Option<(Instant, Due)> {
        let state = self.lock();
        if state.in_flight > 0 {
            return None;
        }
        if let Some(since) = state.closing {
            let since = since.max(state.written).max(state.idle);
            return Some((since + CLOSING, Due::Drop));
        }
        // The time for the first head counts from the accept, not from its first byte.
        let head = state.head.or(state.version.is_none().then_some(state.idle));
        if let Some(since) = head {
            let patience = limits.head_timeout.or(limits.keep_alive)?;
            return Some((since + patience, Due::Drop));
        }
        let since = match state.version {
            // Pings are writes too, so writes do not show that a connection is in use.
            Some(Version::HTTP_2) => state.idle,
            // The peer may still be taking the last answer.
            _ => state.idle.max(state.written),
        };
        Some((since + limits.keep_alive?, Due::Close))
    }

    /// Whether the socket is open; after an upgrade another task has it.
    pub(super) fn is_open(&self) -> bool {
        !self.lock().is_gone
    }

    /// The most bytes that the next read may take; `None` without a bound.
    fn most(&self) -> Option<usize> {
        self.lock().frames.as_ref().map(FrameCursor::most)
    }

    fn read(&self, bytes: &[u8]) {
        let mut state = self.lock();
        state.read = (Instant::now(), state.read.1 + bytes.len() as u64);
        if let Some(frames) = &mut state.frames {
            frames.pass(bytes);
        }
        // Heads are timed on HTTP/1 only: on HTTP/2 the bytes may be a ping, and the idle time
        // covers heads.
        let is_head = state
            .version
            .is_some_and(|version| version < Version::HTTP_2);
        if is_head && state.in_flight == 0 {
            state.head.get_or_insert_with(Instant::now);
        }
    }

    fn wrote(&self) {
        self.lock().written = Instant::now();
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let is_idle = {
            let mut state = self.0.lock();
            state.in_flight = state.in_flight.saturating_sub(1);
            state.idle = Instant::now();
            state.in_flight == 0
        };
        if is_idle {
            self.0.task.wake();
        }
    }
}

impl<T> Drop for ObservedIo<T> {
    fn drop(&mut self) {
        self.activity.lock().is_gone = true;
        self.activity.task.wake();
    }
}

/// What came over the socket of a connection that was upgraded.
#[derive(Clone, Debug)]
pub(crate) struct SocketMeter(pub(super) Arc<Activity>);

impl SocketMeter {
    /// Reads the head of each frame by itself from now on.
    ///
    /// The reader of frames makes room for a frame once it has its head. If it had read further by then, it
    /// would keep the memory of a long frame until the rest of that room is used up: the socket of an agent
    /// that has sent 75 KB once would hold them while it is idle.
    pub(crate) fn read_frames(&self) {
        self.0.lock().frames = Some(FrameCursor::default());
    }

    /// When the socket last gave bytes, and how many it gave in all.
    pub(crate) fn read(&self) -> (Instant, u64) {
        self.0.lock().read
    }
}

impl<T> ObservedIo<T> {
    pub(super) const fn new(io: T, activity: Arc<Activity>) -> Self {
        Self { io, activity }
    }

    fn wrote(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(bytes)) if *bytes > 0) {
            self.activity.wrote();
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ObservedIo<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let most = self.activity.most();
        let read = match most.filter(|most| *most < buffer.remaining()) {
            None => Pin::new(&mut self.io).poll_read(cx, buffer),
            Some(most) => {
                let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
                let read = Pin::new(&mut self.io).poll_read(cx, &mut part);
                let bytes = part.filled().len();
                buffer.advance(bytes);
                read
            }
        };
        let bytes = &buffer.filled()[before..];
        if !bytes.is_empty() {
            self.activity.read(bytes);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ObservedIo<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.wrote(&written);
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, buffers);
        self.wrote(&written);
        written
    }
}
