use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::Instant,
};

use crate::net::within;

/// A client, a relay and an upstream of nothing but sockets: what a disconnect
/// costs on this machine, now, without any of our code.
pub(crate) struct Baseline {
    relay: SocketAddr,
    released: mpsc::UnboundedReceiver<Instant>,
}

impl Baseline {
    pub(crate) async fn start() -> Self {
        let upstream = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream_addr = upstream.local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = listener.local_addr().unwrap();
        let (seen, released) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = upstream.accept().await.unwrap();
                let seen = seen.clone();
                tokio::spawn(async move {
                    stream.write_all(b"r").await.unwrap();
                    read_to_end(&mut stream).await;
                    let _ = seen.send(Instant::now());
                });
            }
        });
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let mut upstream = TcpStream::connect(upstream_addr).await.unwrap();
                    let ready = upstream.read_u8().await.unwrap();
                    client.write_u8(ready).await.unwrap();
                    read_to_end(&mut client).await;
                });
            }
        });
        Self { relay, released }
    }

    /// From a client's drop to the upstream's release, for one after another until
    /// they have taken `time` together; and how much longer it was than that.
    pub(crate) async fn disconnects(&mut self, time: Duration) -> (Vec<Duration>, Duration) {
        let (mut each, mut took) = (Vec::new(), Duration::ZERO);
        while took < time {
            let one = self.disconnect().await;
            each.push(one);
            took += one;
        }
        (each, took - time)
    }

    /// From the client's drop to the upstream's release.
    async fn disconnect(&mut self) -> Duration {
        let mut client = within(TcpStream::connect(self.relay)).await.unwrap();
        within(client.read_u8()).await.unwrap();
        let left = Instant::now();
        drop(client);
        within(self.released.recv()).await.unwrap() - left
    }
}

async fn read_to_end(stream: &mut TcpStream) {
    while stream.read(&mut [0]).await.unwrap_or(0) > 0 {}
}
