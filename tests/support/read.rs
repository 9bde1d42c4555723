//! Bodies, read frame by frame or to their end.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use tower_agent::{BoxError, TerminalReason};

/// A body that was read to its end.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) text: String,
    /// How many data frames there were.
    pub(crate) frames: usize,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) end: Result<(), BoxError>,
}

impl Read {
    /// The terminal reason of its error.
    pub(crate) fn reason(&self) -> Option<TerminalReason> {
        self.end.as_ref().err().and_then(reason_of)
    }

    /// Its text.
    ///
    /// # Panics
    ///
    /// If it ended in an error.
    pub(crate) fn whole(self) -> String {
        self.end.unwrap();
        self.text
    }
}

/// The terminal reason of an error.
pub(crate) fn reason_of(error: &BoxError) -> Option<TerminalReason> {
    TerminalReason::find(&**error).cloned()
}

/// Reads a body.
pub(crate) trait ReadExt: Body<Data = Bytes> + Unpin {
    /// The next frame as text.
    fn next(&mut self) -> impl Future<Output = Option<Result<String, BoxError>>> + Send;

    /// The next frame as text.
    ///
    /// # Panics
    ///
    /// If it is an error or the end.
    fn token(&mut self) -> impl Future<Output = String>;

    /// All frames.
    ///
    /// # Panics
    ///
    /// If a frame follows an error.
    fn read(self) -> impl Future<Output = Read> + Send;
}

impl<B> ReadExt for B
where
    B: Body<Data = Bytes> + Unpin + Send,
    B::Error: Into<BoxError> + Send,
{
    async fn next(&mut self) -> Option<Result<String, BoxError>> {
        let frame = self.frame().await?;
        Some(
            frame
                .map(|frame| String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
                .map_err(Into::into),
        )
    }

    async fn token(&mut self) -> String {
        self.next().await.unwrap().unwrap()
    }

    async fn read(mut self) -> Read {
        let mut data = Vec::new();
        let mut frames = 0;
        let mut trailers = None;
        let end = loop {
            match self.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(chunk) => {
                        frames += 1;
                        data.extend_from_slice(&chunk);
                    }
                    Err(frame) => trailers = frame.into_trailers().ok(),
                },
                Some(Err(error)) => {
                    let after = self.frame().await;
                    assert!(after.is_none(), "a body is fused after an error");
                    break Err(error.into());
                }
                None => break Ok(()),
            }
        };
        Read {
            text: String::from_utf8(data).unwrap(),
            frames,
            trailers,
            end,
        }
    }
}

type Polled<B> = Result<Frame<<B as Body>::Data>, <B as Body>::Error>;

/// One poll of a body, with a waker that does nothing.
pub(crate) fn poll_body<B: Body + Unpin>(body: &mut B) -> Poll<Option<Polled<B>>> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

/// One poll of a future, with a waker that does nothing.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Has a task read the body of an answer ahead of its reader.
#[allow(clippy::disallowed_methods, reason = "a test")]
pub(crate) fn read_ahead<B>(
    answer: Response<B>,
) -> Response<impl Body<Data = Bytes, Error = BoxError>>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    answer.map(|body| {
        let (frames, mut ahead) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut body = pin!(body);
            while let Some(frame) = body.frame().await {
                if frames.send(frame.map_err(Into::into)).is_err() {
                    break;
                }
            }
        });
        StreamBody::new(futures_util::stream::poll_fn(move |cx| ahead.poll_recv(cx)))
    })
}
