//! An open WebSocket to an upstream.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::{Sink, Stream};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message, Utf8Bytes,
        protocol::{
            Role, WebSocketConfig,
            frame::{
                FrameHeader,
                coding::{Data, OpCode},
            },
        },
    },
};

use super::error::SocketError;

/// The most bytes of a message that is received, and of a frame of it.
pub(super) const MOST_RECEIVED: usize = 32 * 1024 * 1024;

/// What is read at a time. A socket holds so much while it is idle.
const READ_BUFFER: usize = 8 * 1024;

/// What is masked and written at a time; a multiple of the mask's four bytes.
const WRITTEN: usize = 16 * 1024;

/// The most bytes of a frame's header.
const HEADER: usize = 14;

/// The client's end of a WebSocket.
pub(super) struct UpstreamSocket {
    stream: WebSocketStream<TokioIo<Upgraded>>,
}

impl UpstreamSocket {
    /// Takes over a connection that was upgraded.
    pub(super) async fn new(upgraded: Upgraded) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER)
            .max_message_size(Some(MOST_RECEIVED))
            .max_frame_size(Some(MOST_RECEIVED));
        let io = TokioIo::new(upgraded);
        let stream = WebSocketStream::from_raw_socket(io, Role::Client, Some(config));
        Self {
            stream: stream.await,
        }
    }

    /// Sends a text message in one frame.
    ///
    /// The frame is written here and not by tungstenite, which would keep a buffer of the message's
    /// size for as long as the socket is open.
    ///
    /// # Cancel safety
    ///
    /// The socket is unusable after a drop of the future.
    pub(super) async fn send(&mut self, text: &[u8]) -> Result<(), SocketError> {
        // What tungstenite has begun to write, such as a pong, comes first.
        poll_fn(|cx| Pin::new(&mut self.stream).poll_flush(cx)).await?;
        let mut mask = [0; 4];
        let random = SystemRandom::new().fill(&mut mask);
        random.map_err(|_| std::io::Error::other("the system has no random numbers"))?;
        let header = FrameHeader {
            opcode: OpCode::Data(Data::Text),
            mask: Some(mask),
            ..FrameHeader::default()
        };
        let mut buffer = Vec::with_capacity(WRITTEN.min(text.len()) + HEADER);
        header.format(text.len() as u64, &mut buffer)?;
        let io = self.stream.get_mut();
        for part in text.chunks(WRITTEN) {
            let masked = part.iter().zip(mask.iter().cycle());
            buffer.extend(masked.map(|(byte, mask)| byte ^ mask));
            io.write_all(&buffer).await?;
            buffer.clear();
        }
        io.flush().await?;
        Ok(())
    }

    /// Reads the next text message. Pings are answered, and no message.
    pub(super) fn poll_text(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Utf8Bytes, SocketError>> {
        loop {
            let message = ready!(Pin::new(&mut self.stream).poll_next(cx));
            return Poll::Ready(match message {
                Some(Ok(Message::Text(text))) => Ok(text),
                Some(Ok(Message::Binary(_))) => Err(SocketError::Binary),
                Some(Ok(Message::Close(close))) => {
                    Err(SocketError::Closed(close.map(|close| close.code.into())))
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => Err(error.into()),
                None => Err(SocketError::Closed(None)),
            });
        }
    }

    /// Reads the next text message.
    ///
    /// # Cancel safety
    ///
    /// No message is lost by a drop of the future.
    pub(super) async fn text(&mut self) -> Result<Utf8Bytes, SocketError> {
        poll_fn(|cx| self.poll_text(cx)).await
    }
}
