//! A proxy between one gateway and the store, which cuts, delays and freezes its connections.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::select;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

/// What becomes of all connections of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// New connections are closed at once. Those that are open stay.
    Refused,
    /// Each piece arrives so much later.
    Delayed(Duration),
    /// Nothing arrives until the fault is over, and then all of it.
    Frozen,
}

pub(super) struct FaultyProxy {
    port: u16,
    fault: watch::Sender<Fault>,
    connections: Arc<Mutex<JoinSet<()>>>,
    open: Arc<AtomicUsize>,
    accepts: AbortHandle,
}

impl FaultyProxy {
    /// Starts one in front of this port of loopback.
    pub(super) async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (fault, faults) = watch::channel(Fault::None);
        let connections = Arc::<Mutex<JoinSet<()>>>::default();
        let open = Arc::<AtomicUsize>::default();
        let (all, count) = (Arc::clone(&connections), Arc::clone(&open));
        let accepts = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                if *faults.borrow() == Fault::Refused {
                    continue;
                }
                let (faults, open) = (faults.clone(), Open::new(&count));
                let mut all = all.lock().unwrap();
                while all.try_join_next().is_some() {}
                all.spawn(async move {
                    let _open = open;
                    if let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await {
                        forward(near, far, faults).await;
                    }
                });
            }
        });
        Self {
            port,
            fault,
            connections,
            open,
            accepts: accepts.abort_handle(),
        }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Closes all connections. What was on its way is lost.
    pub(super) async fn cut(&self) {
        let mut connections = std::mem::take(&mut *self.connections.lock().unwrap());
        connections.shutdown().await;
    }

    pub(super) fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// The number of open connections.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}

/// Counts a connection as open until it is dropped.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Forwards in both directions until either side ends.
async fn forward(near: TcpStream, far: TcpStream, faults: watch::Receiver<Fault>) {
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
    let up = pin!(pass(from_near, to_far, faults.clone()));
    let down = pin!(pass(from_far, to_near, faults));
    select(up, down).await;
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut faults: watch::Receiver<Fault>) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let fault = *faults.borrow_and_update();
        match fault {
            Fault::Delayed(by) => sleep(by).await,
            Fault::Frozen => {
                let is_over = faults.wait_for(|fault| *fault != Fault::Frozen);
                if is_over.await.is_err() {
                    return;
                }
            }
            Fault::None | Fault::Refused => {}
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
