//! The bytes that an open stream holds: T9.
//!
//! `cargo bench --bench memory` opens 10,000 streams through the layers of a gateway; a number as
//! argument sets another count. Each stream is read up to its first content, and then waits. The
//! bench prints the live bytes of a stream above those of the bare service, and the bytes that are
//! left when all streams are dropped. The worse of its two cases goes to `target/cost/memory.json`,
//! from which `benches/cost.py` takes it.

#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

mod support;

use std::{
    convert::Infallible,
    fs,
    path::Path,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use allocation_counter::measure;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::Full;
use serde_json::json;
use tower::Service;

use support::{Answers, EVENT, full_stack, prompt, ready_after, runtime};

/// The frame with which a chat stream begins: it is no content yet.
const ROLE: &[u8] = b"data: {\"id\":\"chatcmpl-9f8a7b6c5d4e3f2a\",\"object\":\"chat.completion.chunk\",\
\"created\":1760000000,\"model\":\"gpt-test\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\
\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n";

/// A body of a few frames, and then silence.
#[derive(Clone, Debug)]
struct SilentBody {
    frames: &'static [&'static [u8]],
}

impl Body for SilentBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some((frame, rest)) = self.frames.split_first() else {
            return Poll::Pending;
        };
        self.frames = rest;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(frame)))))
    }
}

/// Opens a stream, and reads its frames until it waits.
fn open<S, B>(service: &mut S) -> Pin<Box<B>>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: Body,
{
    let mut cx = Context::from_waker(Waker::noop());
    let answer = ready_after(service.call(prompt())).unwrap();
    let mut body = Box::pin(answer.into_body());
    while let Poll::Ready(frame) = body.as_mut().poll_frame(&mut cx) {
        assert!(frame.is_some_and(|frame| frame.is_ok()));
    }
    body
}

/// The live bytes of `count` open streams, and what is left of them after their drop.
fn bytes<S, B>(mut service: S, count: usize) -> [i64; 2]
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: Body,
{
    // Not counted: the first stream makes the tables that all streams share.
    drop(open(&mut service));
    let mut streams = Vec::with_capacity(count);
    let opened = measure(|| streams.extend((0..count).map(|_| open(&mut service))));
    let dropped = measure(|| streams.clear());
    let opened = opened.bytes_current;
    [opened, opened + dropped.bytes_current]
}

fn main() {
    let rt = runtime();
    let _entered = rt.enter();
    let (mut count, mut test) = (10_000, false);
    for argument in std::env::args().skip(1) {
        match &*argument {
            "--test" => (count, test) = (100, true),
            argument => count = argument.parse().unwrap_or(count),
        }
    }
    let cases: [(&str, &'static [&'static [u8]]); 2] =
        [("content", &[EVENT]), ("role_then_content", &[ROLE, EVENT])];
    let mut worst = [0.0_f64; 2];
    for (name, frames) in cases {
        let upstream = Answers {
            body: SilentBody { frames },
            events: true,
        };
        let [bare, _] = bytes(upstream.clone(), count);
        let [open, left] = bytes(full_stack(upstream), count);
        let each = (open - bare) as f64 / count as f64;
        println!("T9/{name}: {each:.1} bytes per stream of {count}, {left} left in all");
        let percent = 100.0 * left as f64 / open as f64;
        worst = [worst[0].max(each), worst[1].max(percent)];
    }
    if test {
        return;
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("cost");
    fs::create_dir_all(&folder).unwrap();
    let [bytes, left] = worst;
    let figures = json!({ "streams": count, "bytes": bytes, "left": left });
    fs::write(folder.join("memory.json"), figures.to_string()).unwrap();
}
