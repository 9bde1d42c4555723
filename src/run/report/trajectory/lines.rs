use std::{
    collections::VecDeque,
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

/// A writer that is given whole lines, one after the other.
pub(in crate::run) struct Lines<W: ?Sized> {
    waiting: Mutex<QueuedLines>,
    writer: Mutex<W>,
}

#[derive(Default)]
struct QueuedLines {
    lines: VecDeque<Vec<u8>>,
    /// Who is in the writer now.
    writing: Option<ThreadId>,
}

impl<W> Lines<W> {
    pub(in crate::run) fn new(writer: W) -> Self {
        Self {
            waiting: Mutex::default(),
            writer: Mutex::new(writer),
        }
    }
}

impl<W: Write + ?Sized> Lines<W> {
    /// The line is written when this returns, unless it is the writer itself that
    /// brought it about: then it comes next.
    pub(in crate::run) fn put(&self, line: Vec<u8>) {
        let this = thread::current().id();
        {
            let mut waiting = self.lock();
            waiting.lines.push_back(line);
            if waiting.writing == Some(this) {
                return;
            }
        }
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(line) = self.next(this) {
            write(&mut *writer, &line);
        }
    }

    /// The next line that is to be written by this thread, which has the writer.
    fn next(&self, this: ThreadId) -> Option<Vec<u8>> {
        let mut waiting = self.lock();
        let line = waiting.lines.pop_front();
        waiting.writing = line.as_ref().map(|_| this);
        line
    }

    fn lock(&self) -> MutexGuard<'_, QueuedLines> {
        // Nothing that may panic runs under the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write<W: Write + ?Sized>(writer: &mut W, line: &[u8]) {
    let written = catch_unwind(AssertUnwindSafe(|| -> io::Result<()> {
        writer.write_all(line)?;
        writer.flush()
    }));
    match written {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::error!(target: "tower_agent", %error, "trajectory not written");
        }
        Err(_) => tracing::error!(target: "tower_agent", "trajectory panicked"),
    }
}
