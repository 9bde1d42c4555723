//! The threads that serve connections, each with a runtime of its own.
//!
//! A connection stays on its thread, with its requests, their timers and the connections to
//! upstreams. All else is shared: runs, budgets, cooldowns, caps and stacks.
//!
//! A long request is an exception. Its JSON is read and written for up to 100 ms without a pause, and
//! the other connections of the thread would wait for it: so the runtime of the server's caller, which
//! has several threads, handles it until its answer has a head.

use std::{cell::Cell, future::Future, io, panic::resume_unwind, sync::Arc, thread};

use tokio::{
    runtime::{Builder, Handle},
    sync::watch,
    task::JoinSet,
};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the server's thread on which this is called, from 1 on; 0 on any other thread.
pub(crate) fn thread_number() -> usize {
    NUMBER.get()
}

/// The shortest body of a long request, in bytes: shorter ones take less than a millisecond.
const LONG: u64 = 256 * 1024;

/// Threads that run until this is dropped; what they run is then dropped, too.
#[derive(Debug)]
pub(crate) struct ServerThreads {
    threads: Vec<ServerThread>,
    caller: Handle,
    _stop: watch::Sender<()>,
}

#[derive(Debug)]
struct ServerThread {
    runtime: Handle,
    /// As many clones as the thread has connections, and one.
    connections: Arc<()>,
}

/// A place on a thread, held as long as a connection is open.
#[derive(Debug)]
pub(super) struct ServerPlace {
    pub(super) runtime: Handle,
    /// The runtime of the server's caller.
    pub(super) caller: Handle,
    _held: Arc<()>,
}

impl ServerThreads {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// If the system has no thread or no descriptor left.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    pub(crate) fn start(count: u32) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(());
        let start = |number: u32| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let mut stopped = stopped.clone();
            let serve = move || {
                NUMBER.set(number as usize + 1);
                runtime.block_on(async { while stopped.changed().await.is_ok() {} });
            };
            let name = format!("connections-{number}");
            thread::Builder::new().name(name).spawn(serve)?;
            Ok(ServerThread {
                runtime: handle,
                connections: Arc::default(),
            })
        };
        Ok(Self {
            threads: (0..count).map(start).collect::<io::Result<_>>()?,
            caller: Handle::current(),
            _stop: stop,
        })
    }

    /// Takes a place on the thread with the fewest connections.
    pub(super) fn place(&self) -> Option<ServerPlace> {
        let open = |thread: &&ServerThread| Arc::strong_count(&thread.connections);
        let thread = self.threads.iter().min_by_key(open)?;
        Some(ServerPlace {
            runtime: thread.runtime.clone(),
            caller: self.caller.clone(),
            _held: Arc::clone(&thread.connections),
        })
    }
}

/// Whether a request is handled on another thread than that of its connection.
///
/// A body of an unknown length may be long.
pub(super) fn is_long(body: &impl http_body::Body) -> bool {
    body.size_hint().upper().is_none_or(|most| most >= LONG)
}

/// Runs a future on another runtime. Its drop drops the future, there and a little later.
///
/// # Panics
///
/// As the future panics.
pub(super) async fn run_on<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut tasks = JoinSet::new();
    tasks.spawn_on(future, runtime);
    match tasks.join_next().await {
        Some(Ok(output)) => output,
        Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
        // The runtime shuts down, and with it the process or its server.
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use bytes::Bytes;
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    #[tokio::test]
    async fn connections_go_to_the_thread_with_the_fewest() {
        let threads = ServerThreads::start(2).unwrap();
        let number = async |place: &ServerPlace| {
            let task = place.runtime.spawn(async { thread_number() });
            task.await.unwrap()
        };
        let places = [(); 4].map(|()| threads.place().unwrap());
        let mut numbers = vec![];
        for place in &places {
            numbers.push(number(place).await);
        }
        assert_eq!(numbers, [1, 2, 1, 2]);
        assert_eq!(thread_number(), 0);
        let [_one, two, _three, _four] = places;
        drop(two);
        assert_eq!(number(&threads.place().unwrap()).await, 2);
    }

    #[test]
    fn a_body_is_long_from_256_kib_on_or_if_nobody_knows() {
        for (bytes, expected) in [(0, false), (LONG - 1, false), (LONG, true)] {
            let body = Full::new(Bytes::from(vec![0; bytes as usize]));
            assert_eq!(is_long(&body), expected, "{bytes}");
        }
        let unknown = StreamBody::new(stream::empty::<Result<Frame<Bytes>, Infallible>>());
        assert!(is_long(&unknown));
    }

    #[tokio::test]
    async fn what_runs_elsewhere_is_dropped_with_its_caller() {
        let threads = ServerThreads::start(1).unwrap();
        let elsewhere = threads.place().unwrap().runtime;
        assert_eq!(run_on(&elsewhere, async { thread_number() }).await, 1);

        let (alive, mut gone) = watch::channel(());
        let running = run_on(&elsewhere, async move {
            let _alive = alive;
            std::future::pending::<()>().await;
        });
        let started = tokio::time::timeout(Duration::from_millis(1), running);
        assert!(started.await.is_err());
        gone.changed().await.unwrap_err();
    }

    #[tokio::test]
    async fn what_a_thread_runs_is_dropped_with_the_threads() {
        let threads = ServerThreads::start(1).unwrap();
        let place = threads.place().unwrap();
        let task = place.runtime.spawn(std::future::pending::<()>());
        drop(threads);
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
