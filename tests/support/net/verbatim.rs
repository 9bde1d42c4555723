//! An upstream that answers with bytes, well-formed or not.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Answers each request with the same bytes, on connections that it keeps.
pub(crate) struct Verbatim {
    pub(crate) addr: SocketAddr,
    count: Arc<AtomicUsize>,
}

impl Verbatim {
    pub(crate) async fn start(answer: impl Into<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self {
            addr: listener.local_addr().unwrap(),
            count: Arc::default(),
        };
        let (answer, count) = (answer.into(), Arc::clone(&upstream.count));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, answer.clone(), Arc::clone(&count)));
            }
        });
        upstream
    }

    /// How many requests came.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

async fn serve(mut stream: TcpStream, answer: String, count: Arc<AtomicUsize>) {
    let mut read = Vec::new();
    while stream.read_buf(&mut read).await.unwrap_or(0) > 0 {
        // A request's body is a JSON object, and nothing before its end ends so
        // where the gateway writes.
        if read.ends_with(b"}") {
            read.clear();
            count.fetch_add(1, Ordering::SeqCst);
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}
