use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::OwnedWriteHalf},
    sync::mpsc,
    time::Instant,
};

use super::{
    super::wire::{SSE_HEAD, TOKEN, chunk, take_chunks},
    Call, Play, Step, Upstream,
};

/// Serves a connection: requests are read while answers are written, so that the end of
/// the connection is seen at once.
pub(super) async fn serve(
    stream: TcpStream,
    connection: usize,
    play: impl Fn(&Call) -> Play,
    upstream: Upstream,
) {
    let (mut reader, writer) = stream.into_split();
    let (requests, queue) = mpsc::unbounded_channel();
    let player = tokio::spawn(play_each(writer, queue, upstream.clone()));
    let mut buffer = BytesMut::new();
    let mut last = None;
    loop {
        while let Some(call) = take_request(&mut buffer, connection) {
            let play = play(&call);
            let index = upstream.accept(call);
            last = Some(index);
            let _ = requests.send((index, play));
        }
        match reader.read_buf(&mut buffer).await {
            Ok(read) if read > 0 => {}
            _ => break,
        }
    }
    if let Some(index) = last {
        upstream.change(index, |call| call.released = Some(Instant::now()));
    }
    player.abort();
}

/// Takes one whole request; `None` if the rest of it is still to come.
fn take_request(buffer: &mut BytesMut, connection: usize) -> Option<Call> {
    let end = 4 + buffer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&buffer[..end]).unwrap();
    let mut lines = head.lines();
    let uri = lines.next()?.split(' ').nth(1)?.parse().unwrap();
    let fields = lines.filter_map(|line| line.split_once(':'));
    let headers: HeaderMap = fields
        .map(|(name, value)| {
            let name: HeaderName = name.parse().unwrap();
            let value: HeaderValue = value.trim().parse().unwrap();
            (name, value)
        })
        .collect();
    let (body, end) = match headers.get("content-length") {
        Some(length) => {
            let length: usize = length.to_str().unwrap().parse().unwrap();
            let body = buffer.get(end..end + length)?;
            (Bytes::copy_from_slice(body), end + length)
        }
        None if headers.contains_key("transfer-encoding") => {
            let (body, taken) = take_chunks(&buffer[end..])?;
            (body, end + taken)
        }
        None => (Bytes::new(), end),
    };
    drop(buffer.split_to(end));
    Some(Call::new(connection, uri, headers, body))
}

async fn play_each(
    mut writer: OwnedWriteHalf,
    mut queue: mpsc::UnboundedReceiver<(usize, Play)>,
    upstream: Upstream,
) {
    while let Some((index, play)) = queue.recv().await {
        match play_one(&mut writer, index, play, &upstream).await {
            Ok(true) => {}
            Ok(false) | Err(_) => return,
        }
    }
}

/// Answers one request: whether the connection serves another.
async fn play_one(
    writer: &mut OwnedWriteHalf,
    index: usize,
    play: Play,
    upstream: &Upstream,
) -> std::io::Result<bool> {
    let sent = |bytes: usize| {
        upstream.change(index, |call| {
            call.head_sent.get_or_insert_with(Instant::now);
            call.bytes += bytes;
        });
    };
    // Large pieces for a flood: an HTTP/2 client hangs up on a flood of small frames.
    let (piece, times, pause) = match play {
        Play::Script(steps) => return play_steps(writer, index, steps, upstream, sent).await,
        Play::Silent => (String::new(), None, Duration::ZERO),
        Play::Tokens(count) => (chunk(TOKEN), Some(count), Duration::ZERO),
        Play::Flow => (chunk(TOKEN), Some(usize::MAX), Duration::from_millis(1)),
        Play::Flood(total) => {
            let piece = chunk(&TOKEN.repeat(1000));
            let times = total.div_ceil(piece.len());
            (piece, Some(times), Duration::ZERO)
        }
    };
    if let Some(times) = times {
        writer.write_all(SSE_HEAD.as_bytes()).await?;
        sent(0);
        for _ in 0..times {
            writer.write_all(piece.as_bytes()).await?;
            sent(piece.len());
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
    }
    // The end of this task would close the connection.
    std::future::pending().await
}

async fn play_steps(
    writer: &mut OwnedWriteHalf,
    index: usize,
    steps: Vec<Step>,
    upstream: &Upstream,
    sent: impl Fn(usize),
) -> std::io::Result<bool> {
    let mut left = steps.len();
    for step in steps {
        left -= 1;
        match step {
            Step::Write(bytes) => {
                if left == 0 {
                    // Before the write: a client that has the last byte may look here.
                    upstream.change(index, |call| call.complete = true);
                }
                writer.write_all(&bytes).await?;
                sent(bytes.len());
                tokio::task::yield_now().await;
            }
            Step::Pause(pause) => tokio::time::sleep(pause).await,
            Step::Hold => upstream.resumed().await,
            Step::Hang => std::future::pending().await,
            Step::Close => return Ok(false),
        }
    }
    Ok(true)
}
