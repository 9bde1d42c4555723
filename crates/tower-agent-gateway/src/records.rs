//! Which runs the harness ended, for whoever reads standard output: one line of JSON each.

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

/// What can be written to without ever waiting for a reader: a thread of its own does
/// that, and what it cannot keep up with is dropped. Clones write to the same.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    orders: SyncSender<Order>,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Order {
    Line(Box<[u8]>),
    /// Drop this when all before it is written.
    Tell(Sender<()>),
}

/// Lines of a few hundred bytes.
const MOST: usize = 1024;

impl Records {
    /// # Errors
    ///
    /// If there can be no further thread.
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

    /// Waits until all that came before is written, or cannot be, or `limit` has
    /// passed. Blocks: it is for the end of the process.
    pub(crate) fn written(&self, limit: Duration) {
        let (told, done) = channel();
        let orders = self.orders.clone();
        // There may be no room for the order either.
        thread::spawn(move || orders.send(Order::Tell(told)));
        // Nothing is ever sent: it ends with the sender.
        let _ = done.recv_timeout(limit);
    }
}

/// One call is one line: that is how a trajectory writes.
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
