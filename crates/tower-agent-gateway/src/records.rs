//! Writes the lines of a trajectory to an output with a slow reader.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::Duration,
};

#[cfg(test)]
mod tests;

/// A writer that never blocks. Clones write to the same output.
///
/// A thread of its own waits for the reader; lines for which the queue has no room are dropped.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    orders: SyncSender<Order>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Order {
    Line(Box<[u8]>),
    /// A sender that the thread drops, without sending, once all earlier lines are written.
    Tell(Sender<()>),
}

/// The most lines in the queue; a line is a few hundred bytes.
const MOST: usize = 1024;

impl Records {
    /// # Errors
    ///
    /// If the process can start no further thread.
    pub(crate) fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (orders, ordered) = sync_channel(MOST);
        thread::Builder::new()
            .name("records".to_owned())
            .spawn(move || {
                if let Err(error) = write(out, &ordered) {
                    tracing::error!(%error, "records are no longer written");
                }
            })?;
        Ok(Self {
            orders,
            lost: Arc::default(),
        })
    }

    /// Waits until all earlier lines are written, or writing failed, or `limit` has passed.
    ///
    /// Blocks the thread, so it is only for the end of the process.
    pub(crate) fn written(&self, limit: Duration) {
        let (told, done) = channel();
        let orders = self.orders.clone();
        // A thread, because sending blocks while the queue is full.
        thread::spawn(move || orders.send(Order::Tell(told)));
        // The channel carries no value: its closing is the signal.
        let _ = done.recv_timeout(limit);
    }
}

/// Takes each call of `write` as one line, because a trajectory writes whole lines.
impl Write for Records {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.orders.try_send(Order::Line(line.into())).is_err() {
            let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(lost, "a record was dropped: nobody reads standard output");
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write(mut out: impl Write, ordered: &Receiver<Order>) -> io::Result<()> {
    for order in ordered {
        match order {
            Order::Line(line) => {
                out.write_all(&line)?;
                out.flush()?;
            }
            Order::Tell(told) => drop(told),
        }
    }
    Ok(())
}
