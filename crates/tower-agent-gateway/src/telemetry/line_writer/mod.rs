//! Writes whole lines to an output with a slow reader, on a separate thread.

use std::{
    io::{self, Write},
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use tokio::time::Instant;

use super::metrics::count_dropped_lines;

#[cfg(test)]
mod tests;

/// A writer of lines that never blocks on its output. Clones write to the same output.
///
/// Each call of `write` takes one or more whole lines, which a thread writes. After a write the
/// thread collects lines for a few milliseconds, and then writes them in one piece: so the task
/// that logs a line wakes the thread only if the thread is idle. If there is no room for the lines
/// of a call, they are dropped, and the call is counted.
#[derive(Clone, Debug)]
pub struct LineWriter(Arc<LineChannel>);

#[derive(Debug)]
struct LineChannel {
    queue: Mutex<Queue>,
    /// Wakes the thread.
    filled: Condvar,
    /// Wakes the callers of `flush_within`, after each write of the thread.
    written: Condvar,
    /// The most calls of `write` with lines that are taken and not yet written.
    max_calls: usize,
    kind: LineKind,
}

/// The kind of the lines, which decides where a loss is reported; `/metrics` counts each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineKind {
    /// The log names the loss at each dropped line.
    Records,
    /// The log itself: the loss stands before the next line that finds room, or at the end.
    Log,
}

impl LineKind {
    /// The value of a metric's label.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Log => "log",
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    text: Vec<u8>,
    /// The number of calls of `write` with lines in `text`, or in the write in progress.
    unwritten: usize,
    /// The number of lines that were lost since the start; in a log, since the last report.
    lost: u64,
    /// Whether the thread has no lines and waits, and must be woken for the next one.
    is_idle: bool,
    /// Whether a caller of `flush_within` waits, so that the thread collects no further lines.
    is_awaited: bool,
    /// Whether an error or a panic of the output has ended the thread.
    is_broken: bool,
}

/// The time for which the thread collects lines after a write.
const COLLECTED: Duration = Duration::from_millis(5);

/// How often at most the log says that records cannot be written.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The most records in the queue; one is a few hundred bytes.
const MOST_RECORDS: usize = 1024;

/// The most lines of the log in the queue; one is about two hundred bytes.
const MOST_LINES: usize = 16 * 1024;

impl LineWriter {
    /// Starts the thread that writes the process's log to `out`.
    ///
    /// A loss is reported as a line of the log itself, once there is room again.
    ///
    /// # Errors
    ///
    /// If the process can start no further thread.
    pub fn log(out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::new(out, LineKind::Log, MOST_LINES)
    }

    /// Starts the thread that writes records to `out`. The log names each loss.
    pub(crate) fn records(out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::new(out, LineKind::Records, MOST_RECORDS)
    }

    fn new(out: impl Write + Send + 'static, kind: LineKind, max_calls: usize) -> io::Result<Self> {
        let writer = Self(Arc::new(LineChannel {
            queue: Mutex::default(),
            filled: Condvar::new(),
            written: Condvar::new(),
            max_calls,
            kind,
        }));
        let channel = Arc::clone(&writer.0);
        thread::Builder::new()
            .name("lines".to_owned())
            .spawn(move || {
                let result = channel.write(out);
                if let (Err(error), LineKind::Records) = (result, kind) {
                    tracing::error!(%error, "records are no longer written: their reader has gone");
                }
            })?;
        Ok(writer)
    }

    /// Waits until no line is left to write, or writing failed for good, or `limit` has passed.
    ///
    /// A log then says how many lines it lost. Blocks the thread, so it is only for the end of the
    /// process.
    pub fn flush_within(&self, limit: Duration) {
        let until = Instant::now() + limit;
        let mut queue = self.0.wait_until_written(self.0.lock(), until);
        let has_room = queue.unwritten == 0 && !queue.is_broken;
        if self.0.kind == LineKind::Log && has_room && queue.report_loss() {
            // The report is a call of its own here.
            queue.unwritten += 1;
            drop(self.0.wait_until_written(queue, until));
        }
    }
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.0.lock();
        if queue.is_broken || queue.unwritten >= self.0.max_calls {
            queue.lost += 1;
            let lost = queue.lost;
            drop(queue);
            count_dropped_lines(self.0.kind.as_str(), 1);
            if self.0.kind == LineKind::Records {
                tracing::warn!(lost, "records were dropped: standard output takes no more");
            }
            return Ok(line.len());
        }
        if self.0.kind == LineKind::Log {
            queue.report_loss();
        }
        queue.text.extend_from_slice(line);
        queue.unwritten += 1;
        if mem::take(&mut queue.is_idle) {
            drop(queue);
            self.0.filled.notify_one();
        }
        Ok(line.len())
    }

    /// Does nothing: see [`flush_within`](Self::flush_within).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Queue {
    /// Adds the line about the lines that a log lost since the last such line, if any were.
    fn report_loss(&mut self) -> bool {
        let lost = mem::take(&mut self.lost);
        if lost > 0 {
            let told = format!("{lost} lines of the log were dropped: they could not be written\n");
            self.text.extend_from_slice(told.as_bytes());
        }
        lost > 0
    }
}

/// Writes as much of `text` as the output takes, and flushes it. Returns how many bytes were written
/// before the first error.
fn write_most(out: &mut impl Write, text: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < text.len() {
        match out.write(&text[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(bytes) => written += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, out.flush())
}

/// A guard of the thread: marks the queue as broken at its end, and wakes the waiting callers.
struct BrokenOnDrop<'a>(&'a LineChannel);

impl Drop for BrokenOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().is_broken = true;
        self.0.written.notify_all();
    }
}

impl LineChannel {
    /// Writes the queued lines until the output panics or, for records, its reader has gone.
    ///
    /// Any other error may pass: a disk was full, or a terminal took no more at once because another
    /// program made it non-blocking. The lines that were not written are lost, and those after them
    /// are written again.
    fn write(&self, mut out: impl Write) -> io::Result<()> {
        let _guard = BrokenOnDrop(self);
        let (mut text, mut torn) = (Vec::new(), false);
        let mut last_warned: Option<Instant> = None;
        loop {
            let taken = self.next(&mut text);
            if torn {
                // The part of a line that was written before an error must not begin this one.
                text.insert(0, b'\n');
            }
            let (written, result) = write_most(&mut out, &text);
            let left = text[written..].iter().filter(|byte| **byte == b'\n');
            let is_untouched = written == 0;
            let lines = left.count() - usize::from(torn && is_untouched);
            if !is_untouched {
                torn = text[written - 1] != b'\n';
            }
            text.clear();
            let mut queue = self.lock();
            queue.unwritten -= taken;
            if let Err(error) = result {
                let is_records = self.kind == LineKind::Records;
                if is_records && error.kind() == io::ErrorKind::BrokenPipe {
                    // The output is dropped here, so that its reader sees the end.
                    return Err(error);
                }
                queue.lost += lines as u64;
                let lost = queue.lost;
                drop(queue);
                count_dropped_lines(self.kind.as_str(), lines as u64);
                let is_due = last_warned.is_none_or(|at| at.elapsed() >= WARN_EVERY);
                if is_records && is_due {
                    last_warned = Some(Instant::now());
                    tracing::error!(%error, lost, "records were dropped: they could not be written");
                }
                queue = self.lock();
            }
            self.written.notify_all();
            let more = |queue: &mut Queue| !queue.is_awaited;
            drop(self.filled.wait_timeout_while(queue, COLLECTED, more));
        }
    }

    /// Waits for lines, and swaps them into the empty `text`; returns the number of their calls.
    fn next(&self, text: &mut Vec<u8>) -> usize {
        let mut queue = self.lock();
        while queue.text.is_empty() {
            queue.is_idle = true;
            let waited = self.filled.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
        mem::swap(&mut queue.text, text);
        queue.is_awaited = false;
        queue.unwritten
    }

    /// Waits until no line is left to write, or writing failed for good, or at most `until`.
    fn wait_until_written<'a>(
        &self,
        mut queue: MutexGuard<'a, Queue>,
        until: Instant,
    ) -> MutexGuard<'a, Queue> {
        queue.is_awaited = true;
        self.filled.notify_one();
        let unwritten = |queue: &mut Queue| queue.unwritten > 0 && !queue.is_broken;
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.written.wait_timeout_while(queue, left, unwritten);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
