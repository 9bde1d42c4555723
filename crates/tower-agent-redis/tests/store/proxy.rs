//! A proxy before a server, which can be cut.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

/// Forwards connections to a port, until it is cut, and again once it is mended.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    is_cut: Arc<AtomicBool>,
    connections: Arc<Mutex<JoinSet<()>>>,
    accepts: AbortHandle,
}

impl Proxy {
    pub(crate) async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_cut = Arc::<AtomicBool>::default();
        let connections = Arc::<Mutex<JoinSet<()>>>::default();
        let (cut, all) = (Arc::clone(&is_cut), Arc::clone(&connections));
        let accepts = tokio::spawn(async move {
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                if cut.load(Ordering::Acquire) {
                    continue;
                }
                all.lock().unwrap().spawn(async move {
                    near.set_nodelay(true).unwrap();
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", to)).await {
                        far.set_nodelay(true).unwrap();
                        let _closed = copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Self {
            port,
            is_cut,
            connections,
            accepts: accepts.abort_handle(),
        }
    }

    /// Closes all connections, and each new one at once.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Release);
        self.connections.lock().unwrap().abort_all();
    }

    pub(crate) fn mend(&self) {
        self.is_cut.store(false, Ordering::Release);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepts.abort();
    }
}
