use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedWriteHalf},
    sync::{mpsc, watch},
    time::Instant,
};

use super::{SSE_HEAD, TOKEN, chunk, http2_upstream, within};

/// What an upstream does with each request, once it has read it.
#[derive(Clone, Debug)]
pub(crate) enum Play {
    /// Nothing, ever.
    Silent,
    /// The head of a stream, this many tokens, then nothing.
    Tokens(usize),
    /// The head of a stream, then a token every millisecond for ever.
    Flow,
    /// The head of a stream, then bytes as fast as they go, this many.
    Flood(usize),
    /// These bytes, as they are; the connection serves the next request.
    Keep(Bytes),
    /// These bytes, each in a write of its own, then the end of the connection.
    Close(Vec<Bytes>),
    /// These bytes, each after a while, then nothing.
    Paced(Vec<(Duration, Bytes)>),
}

impl Play {
    pub(crate) fn keep(bytes: impl Into<String>) -> Self {
        Self::Keep(Bytes::from(bytes.into()))
    }

    pub(crate) fn close<const N: usize>(pieces: [String; N]) -> Self {
        Self::Close(pieces.into_iter().map(Bytes::from).collect())
    }
}

/// What an upstream saw of one request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The request's `x-try`.
    pub(crate) tag: String,
    /// Which connection it came on.
    pub(crate) connection: usize,
    pub(crate) accepted: Instant,
    pub(crate) head_sent: Option<Instant>,
    /// Of the body, after the head.
    pub(crate) bytes: usize,
    /// The answer was sent whole.
    pub(crate) complete: bool,
    /// The connection or stream was seen to be gone.
    pub(crate) released: Option<Instant>,
}

/// What an upstream saw of all requests.
#[derive(Clone, Debug)]
pub(crate) struct Calls(Arc<watch::Sender<Vec<Call>>>);

impl Calls {
    pub(crate) fn all(&self) -> Vec<Call> {
        self.0.borrow().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// Waits until `look` finds something.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut(&[Call]) -> Option<T>) -> T {
        let mut seen = self.0.subscribe();
        within(async {
            loop {
                let found = look(&seen.borrow_and_update());
                match found {
                    Some(found) => return found,
                    None => seen.changed().await.unwrap(),
                }
            }
        })
        .await
    }

    /// Waits until a request of this tag was read.
    pub(crate) async fn accepted(&self, tag: &str) -> Instant {
        let of = |call: &&Call| call.tag == tag;
        self.until(|calls| calls.iter().rev().find(of).map(|call| call.accepted))
            .await
    }

    /// Waits until the connection or stream of a request of this tag is gone.
    pub(crate) async fn released(&self, tag: &str) -> Instant {
        let of = |call: &&Call| call.tag == tag;
        self.until(|calls| calls.iter().rev().find(of)?.released)
            .await
    }

    pub(crate) fn accept(&self, tag: String, connection: usize) -> usize {
        let call = Call {
            tag,
            connection,
            accepted: Instant::now(),
            head_sent: None,
            bytes: 0,
            complete: false,
            released: None,
        };
        let mut index = 0;
        self.0.send_modify(|calls| {
            index = calls.len();
            calls.push(call);
        });
        index
    }

    pub(super) fn change(&self, index: usize, change: impl FnOnce(&mut Call)) {
        self.0.send_modify(|calls| change(&mut calls[index]));
    }
}

/// An upstream on a loopback port, until the runtime ends.
pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    pub(crate) calls: Calls,
}

impl Upstream {
    /// HTTP/1.1, byte for byte.
    pub(crate) async fn http1(play: Play) -> Self {
        Self::serve(move |stream, connection, calls| {
            let play = play.clone();
            tokio::spawn(serve_http1(stream, connection, play, calls));
        })
        .await
    }

    /// HTTP/2 with prior knowledge.
    pub(crate) async fn http2(play: Play) -> Self {
        Self::serve(move |stream, connection, calls| {
            let play = play.clone();
            tokio::spawn(http2_upstream::serve(stream, connection, play, calls));
        })
        .await
    }

    pub(crate) async fn serve(serve: impl Fn(TcpStream, usize, Calls) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let calls = Calls(Arc::new(watch::Sender::new(Vec::new())));
        let noted = calls.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                serve(stream, connection, noted.clone());
            }
        });
        Self { addr, calls }
    }
}

async fn serve_http1(stream: TcpStream, connection: usize, play: Play, calls: Calls) {
    let (mut reader, writer) = stream.into_split();
    let (requests, queue) = mpsc::unbounded_channel();
    let player = tokio::spawn(play_each(writer, queue, play, calls.clone()));
    let mut buffer = BytesMut::new();
    let mut last = None;
    loop {
        while let Some(tag) = take_request(&mut buffer) {
            let index = calls.accept(tag, connection);
            last = Some(index);
            let _ = requests.send(index);
        }
        match reader.read_buf(&mut buffer).await {
            Ok(read) if read > 0 => {}
            _ => break,
        }
    }
    if let Some(index) = last {
        calls.change(index, |call| call.released = Some(Instant::now()));
    }
    player.abort();
}

/// Takes one whole request: its tag.
fn take_request(buffer: &mut BytesMut) -> Option<String> {
    let end = 4 + buffer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        let mut values = lines.filter(|(key, _)| *key == name);
        values.next().map(|(_, value)| value.trim().to_owned())
    };
    let length = field("content-length").map_or(0, |length| length.parse().unwrap());
    if buffer.len() < end + length {
        return None;
    }
    let tag = field("x-try").unwrap_or_default();
    drop(buffer.split_to(end + length));
    Some(tag)
}

async fn play_each(
    mut writer: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<usize>,
    play: Play,
    calls: Calls,
) {
    while let Some(index) = queue.recv().await {
        match play_one(&mut writer, index, &play, &calls).await {
            Ok(true) => {}
            Ok(false) | Err(_) => return,
        }
    }
}

/// Answers whether the connection serves another request.
async fn play_one(
    writer: &mut OwnedWriteHalf,
    index: usize,
    play: &Play,
    calls: &Calls,
) -> std::io::Result<bool> {
    let sent = |bytes: usize| {
        calls.change(index, |call| {
            call.head_sent.get_or_insert_with(Instant::now);
            call.bytes += bytes;
        });
    };
    let token = chunk(TOKEN);
    match play {
        Play::Silent => {}
        Play::Tokens(count) => {
            writer.write_all(SSE_HEAD.as_bytes()).await?;
            sent(0);
            for _ in 0..*count {
                writer.write_all(token.as_bytes()).await?;
                sent(token.len());
            }
        }
        Play::Flow => {
            writer.write_all(SSE_HEAD.as_bytes()).await?;
            sent(0);
            loop {
                writer.write_all(token.as_bytes()).await?;
                sent(token.len());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        Play::Flood(total) => {
            writer.write_all(SSE_HEAD.as_bytes()).await?;
            sent(0);
            // Large pieces: an HTTP/2 client hangs up on a flood of small frames.
            let many = chunk(&TOKEN.repeat(1000));
            for _ in 0..total.div_ceil(many.len()) {
                writer.write_all(many.as_bytes()).await?;
                sent(many.len());
            }
        }
        Play::Keep(bytes) => {
            // Before the write: whoever reads the last byte may look here.
            calls.change(index, |call| call.complete = true);
            writer.write_all(bytes).await?;
            sent(bytes.len());
            return Ok(true);
        }
        Play::Close(pieces) => {
            for piece in pieces {
                writer.write_all(piece).await?;
                sent(piece.len());
                tokio::task::yield_now().await;
            }
            return Ok(false);
        }
        Play::Paced(pieces) => {
            for (pause, piece) in pieces {
                tokio::time::sleep(*pause).await;
                writer.write_all(piece).await?;
                sent(piece.len());
            }
        }
    }
    // The end of this task would close the connection.
    std::future::pending().await
}
