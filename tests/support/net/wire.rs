//! Bytes that upstreams send: streams of chat completions, and their framing.

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
