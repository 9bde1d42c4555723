//! The models: what each sends, and when.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    sync::Arc,
    sync::atomic::{AtomicU32, Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{Request, Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::time::sleep;
use tower::Service;
use tower_agent::ReplayBody;

const TOKEN: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"word \"}}]}\n\n";
const END: &str =
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

/// The answers in their order: the seconds before each token, and whether the stream ends then.
const ANSWERS: [(&[u64], bool); 4] = [
    // Six slow steps, each alive.
    (&[4, 4, 4, 4, 4, 4], true),
    // A head, and then nothing.
    (&[], false),
    // The second model.
    (&[1, 1, 1, 1, 1], true),
    // The user does not wait for the end of this one.
    (&[2, 2, 2, 2, 2, 2, 2, 2, 2], true),
];

type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// The service that sends an attempt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Models {
    asked: Arc<AtomicU32>,
}

impl Service<Request<ReplayBody>> for Models {
    type Response = Response<StreamBody<Frames>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<ReplayBody>) -> Self::Future {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        // One more than the story has would be silent, and drawn.
        let (pauses, ends) = ANSWERS.get(number).copied().unwrap_or((&[], false));
        let tokens = stream::iter(pauses).then(|pause| async {
            sleep(Duration::from_secs(*pause)).await;
            TOKEN
        });
        let frames: Frames = if ends {
            Box::pin(tokens.chain(stream::iter([END])).map(frame))
        } else {
            Box::pin(tokens.chain(stream::pending()).map(frame))
        };
        let mut answer = Response::new(StreamBody::new(frames));
        let kind = http::HeaderValue::from_static("text/event-stream");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        ready(Ok(answer))
    }
}

fn frame(text: &'static str) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}
