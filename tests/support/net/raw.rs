use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, StatusCode, Version};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{Answer, wire::take_chunks, within};

/// A chat request with a tag, byte for byte.
pub(crate) fn post(tag: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nx-try: {tag}\r\n\
         x-session-id: {tag}\r\ncontent-length: 2\r\n\r\n{{}}"
    )
}

/// A request without a body, with a tag, byte for byte.
pub(crate) fn get(method: &str, tag: &str) -> String {
    format!(
        "{method} /v1/files/1 HTTP/1.1\r\nhost: gateway\r\nx-try: {tag}\r\nx-session-id: {tag}\r\n\r\n"
    )
}

/// An HTTP/1.1 client that sees every byte, and can leave at any.
pub(crate) struct Raw {
    stream: TcpStream,
    read: BytesMut,
}

impl Raw {
    /// Connects, and sends nothing yet.
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        Self::new(within(TcpStream::connect(addr)).await.unwrap())
    }

    /// A client on a connection that the test made.
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            read: BytesMut::new(),
        }
    }

    /// Connects and sends a request, or the beginning of one.
    pub(crate) async fn request(addr: SocketAddr, text: &str) -> Self {
        let mut raw = Self::connect(addr).await;
        raw.send(text).await;
        raw
    }

    /// Sends text as it is, of which the other side must take all.
    pub(crate) async fn send(&mut self, text: &str) {
        self.try_send(text).await.unwrap();
    }

    /// Sends text as it is, or fails where the other side takes no more.
    pub(crate) async fn try_send(&mut self, text: &str) -> std::io::Result<()> {
        within(self.stream.write_all(text.as_bytes())).await
    }

    /// Reads until all that was read is enough: all of it. The next read begins anew.
    pub(crate) async fn until(&mut self, enough: impl Fn(&str) -> bool) -> String {
        within(async {
            loop {
                let text = String::from_utf8_lossy(&self.read);
                if enough(&text) {
                    let text = text.into_owned();
                    self.read.clear();
                    return text;
                }
                self.read_more().await;
            }
        })
        .await
    }

    /// Reads one whole answer, and leaves what follows it for the next read.
    ///
    /// The test fails unless the answer says exactly once where it ends.
    pub(crate) async fn answer(&mut self) -> Answer {
        within(async {
            loop {
                if let Some(answer) = take_answer(&mut self.read) {
                    return answer;
                }
                self.read_more().await;
            }
        })
        .await
    }

    /// Reads to the end of the connection.
    pub(crate) async fn read_to_end(&mut self) -> String {
        within(async {
            // A reset ends it too.
            while self.stream.read_buf(&mut self.read).await.unwrap_or(0) > 0 {}
            String::from_utf8_lossy(&self.read.split()).into_owned()
        })
        .await
    }

    async fn read_more(&mut self) {
        let read = self.stream.read_buf(&mut self.read).await.unwrap();
        assert!(read > 0, "the connection ended after {:?}", self.read);
    }

    /// Sends a FIN, and goes on reading.
    pub(crate) async fn finish_sending(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Leaves with a reset instead of a FIN.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
        drop(self.stream);
    }
}

/// Takes an answer that is there whole.
fn take_answer(buffer: &mut BytesMut) -> Option<Answer> {
    let end = 4 + buffer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let (head, rest) = (std::str::from_utf8(&buffer[..end]).unwrap(), &buffer[end..]);
    let mut lines = head.lines();
    let first = lines.next().unwrap();
    let (version, status) = first.split_once(' ').unwrap();
    let version = match version {
        "HTTP/1.1" => Version::HTTP_11,
        "HTTP/1.0" => Version::HTTP_10,
        _ => panic!("no answer: {head:?}"),
    };
    let status = StatusCode::from_bytes(&status.as_bytes()[..3]).unwrap();
    let mut headers = HeaderMap::new();
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        let name: http::HeaderName = name.parse().unwrap();
        headers.append(name, value.trim().parse().unwrap());
    }
    let values = |name: &str| -> Vec<_> { headers.get_all(name).iter().collect() };
    let (body, taken) = match (
        &values("content-length")[..],
        &values("transfer-encoding")[..],
    ) {
        ([length], []) => {
            let length: usize = length.to_str().unwrap().parse().unwrap();
            (Bytes::copy_from_slice(rest.get(..length)?), length)
        }
        ([], [chunked]) if *chunked == "chunked" => take_chunks(rest)?,
        _ => panic!("it is unclear where the answer ends: {head:?}"),
    };
    drop(buffer.split_to(end + taken));
    Some(Answer {
        status,
        version,
        headers,
        body,
    })
}
