use std::{pin::pin, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::future::{Either, select};
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
    let mut player = tokio::spawn(play_each(writer, queue, upstream.clone()));
    let mut plays = true;
    let mut buffer = BytesMut::new();
    let mut last = None;
    loop {
        while let Some(call) = take_request(&mut buffer, connection) {
            let play = play(&call);
            let index = upstream.accept(call);
            last = Some(index);
            let _ = requests.send((index, play));
        }
        let read = pin!(reader.read_buf(&mut buffer));
        let read = match plays {
            true => match select(read, &mut player).await {
                Either::Left((read, _)) => read,
                // With the other half gone too, this is the reset.
                Either::Right((Ok(Ending::Reset), _)) => break,
                Either::Right((_, read)) => {
                    plays = false;
                    read.await
                }
            },
            false => read.await,
        };
        if !read.is_ok_and(|read| read > 0) {
            break;
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
) -> Ending {
    while let Some((index, play)) = queue.recv().await {
        match play_one(&mut writer, index, play, &upstream).await {
            Ok(Ending::Kept) => {}
            Ok(Ending::Reset) => {
                writer.as_ref().set_zero_linger().unwrap();
                // Its drop would send a FIN.
                writer.forget();
                return Ending::Reset;
            }
            Ok(Ending::Closed) | Err(_) => break,
        }
    }
    Ending::Closed
}

/// What becomes of a connection after an answer.
enum Ending {
    Kept,
    Closed,
    Reset,
}

/// Answers one request.
async fn play_one(
    writer: &mut OwnedWriteHalf,
    index: usize,
    play: Play,
    upstream: &Upstream,
) -> std::io::Result<Ending> {
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
) -> std::io::Result<Ending> {
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
            Step::Close => return Ok(Ending::Closed),
            Step::Reset => return Ok(Ending::Reset),
        }
    }
    Ok(Ending::Kept)
}
