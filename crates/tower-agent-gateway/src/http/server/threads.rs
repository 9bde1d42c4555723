//! The threads that serve connections, each with a runtime of its own.
//!
//! A connection stays on its thread, with its requests, their timers and the connections to
//! upstreams. All else is shared: runs, budgets, cooldowns, caps and stacks.

use std::{cell::Cell, io, sync::Arc, thread};

use tokio::{
    runtime::{Builder, Handle},
    sync::watch,
};

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the server's thread on which this is called, from 0 on.
///
/// Any other thread has the number 0, too.
pub(crate) fn thread_number() -> usize {
    NUMBER.get()
}

/// Threads that run until this is dropped; what they run is then dropped, too.
#[derive(Debug)]
pub(crate) struct ServerThreads {
    threads: Vec<ServerThread>,
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
    _held: Arc<()>,
}

impl ServerThreads {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// If the system has no thread or no descriptor left.
    pub(crate) fn start(count: u32) -> io::Result<Self> {
        let (stop, stopped) = watch::channel(());
        let start = |number: u32| {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            let handle = runtime.handle().clone();
            let mut stopped = stopped.clone();
            let serve = move || {
                NUMBER.set(number as usize);
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
            _stop: stop,
        })
    }

    /// Takes a place on the thread with the fewest connections.
    pub(super) fn place(&self) -> Option<ServerPlace> {
        let open = |thread: &&ServerThread| Arc::strong_count(&thread.connections);
        let thread = self.threads.iter().min_by_key(open)?;
        Some(ServerPlace {
            runtime: thread.runtime.clone(),
            _held: Arc::clone(&thread.connections),
        })
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(numbers, [0, 1, 0, 1]);
        let [_zero, one, _two, _three] = places;
        drop(one);
        assert_eq!(number(&threads.place().unwrap()).await, 1);
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
