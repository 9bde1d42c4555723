//! Bytes that upstreams send: streams of chat completions, and their framing.

use bytes::{Bytes, BytesMut};

/// One content delta of a chat stream.
pub(crate) const TOKEN: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"t\"}}]}\n\n";
/// The end of a chat stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// The head of an answer that is a chunked stream of events.
pub(crate) const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// The data as one chunk of a chunked body.
pub(crate) fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

/// The chunked body that the bytes begin with, and its length on the wire.
///
/// `None` if it is not there whole.
pub(crate) fn take_chunks(bytes: &[u8]) -> Option<(Bytes, usize)> {
    let (mut body, mut at) = (BytesMut::new(), 0);
    loop {
        let line = bytes[at..].windows(2).position(|two| two == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[at..at + line]).unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        at += line + 2;
        body.extend_from_slice(bytes.get(at..at + size)?);
        at += size;
        assert_eq!(bytes.get(at..at + 2)?, b"\r\n", "the end of a chunk");
        at += 2;
        if size == 0 {
            return Some((body.freeze(), at));
        }
    }
}
