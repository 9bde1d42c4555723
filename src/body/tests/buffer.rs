use std::{
    cell::Cell,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited, StreamBody};
use tokio::task::yield_now;

use super::super::{buffer::Buffering, replay::ReplayBody};
use crate::error::{BoxError, RequestCut, chain};

const LIMIT: usize = 8;

pin_project_lite::pin_project! {
    /// A test body that announces its length, and counts the frames that were polled.
    struct AnnouncedLength<B> {
        #[pin]
        body: B,
        length: u64,
        polled: Rc<Cell<usize>>,
    }
}

impl<B: Body> Body for AnnouncedLength<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let polled = this.body.poll_frame(cx);
        if let Poll::Ready(Some(_)) = polled {
            this.polled.set(this.polled.get() + 1);
        }
        polled
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length)
    }
}

/// Frames, each after one `Pending`; the body is not `Unpin`.
fn frames<const N: usize>(
    frames: [Result<Frame<Bytes>, BoxError>; N],
) -> impl Body<Data = Bytes, Error = BoxError> + 'static {
    StreamBody::new(stream::iter(frames).then(|frame| async move {
        yield_now().await;
        frame
    }))
}

fn data(text: &'static str) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(text.into()))
}

async fn buffered<B>(body: B) -> Result<ReplayBody, BoxError>
where
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<BoxError>,
{
    let mut buffering = pin!(Buffering::new(body, LIMIT));
    poll_fn(|cx| buffering.as_mut().poll(cx)).await
}

fn too_long(error: &BoxError) -> bool {
    chain(&**error).any(|cause| cause.is::<LengthLimitError>())
        && !chain(&**error).any(|cause| cause.is::<RequestCut>())
}

#[tokio::test]
async fn frames_become_one_piece() {
    let trailers = Ok(Frame::trailers(HeaderMap::new()));
    let body = frames([data("ab"), data(""), data("cd"), data("efgh"), trailers]);
    assert_eq!(
        buffered(body).await.unwrap().contiguous().unwrap(),
        "abcdefgh"
    );
}

#[tokio::test]
async fn one_frame_is_not_copied() {
    let bytes = Bytes::from(vec![b'x'; LIMIT]);
    let held = bytes.as_ptr();
    let empty = Ok(Frame::data(Bytes::new()));
    let body = buffered(frames([Ok(Frame::data(bytes)), empty]))
        .await
        .unwrap();
    assert_eq!(body.contiguous().unwrap().as_ptr(), held);
}

#[tokio::test]
async fn a_body_that_can_be_replayed_is_taken_as_it_is() {
    // A `ReplayBody` may be longer than the limit: the body is in memory already.
    let spliced = ReplayBody::spliced(["abcdef", "ghi", "j"].map(Bytes::from));
    let body = buffered(spliced).await.unwrap();
    assert!(body.contiguous().is_none());
    assert_eq!(body.len(), 10);
}

#[tokio::test]
async fn an_empty_body_is_empty() {
    assert!(buffered(Full::default()).await.unwrap().is_empty());
    assert!(buffered(frames([])).await.unwrap().is_empty());
}

#[tokio::test]
async fn the_limit_is_the_callers_fault() {
    let fits = buffered(frames([data("abcd"), data("efgh")])).await;
    assert_eq!(fits.unwrap().len(), LIMIT);

    let error = buffered(frames([data("abcd"), data("efgh"), data("i")])).await;
    assert!(too_long(&error.unwrap_err()));
}

#[tokio::test]
async fn a_limit_further_out_is_found_below_what_wraps_it() {
    let limited = Limited::new(frames([data("abcd")]), 3);
    let error = buffered(limited.map_err(io::Error::other)).await;
    assert!(too_long(&error.unwrap_err()));
}

#[tokio::test]
async fn what_is_announced_as_too_long_is_not_read() {
    let polled = Rc::new(Cell::new(0));
    let body = AnnouncedLength {
        body: frames([data("a"), data("b"), data("c")]),
        length: LIMIT as u64 + 1,
        polled: Rc::clone(&polled),
    };
    assert!(too_long(&buffered(body).await.unwrap_err()));
    assert_eq!(polled.get(), 1);
}

#[tokio::test]
async fn a_length_that_is_not_kept_costs_little() {
    let body = AnnouncedLength {
        body: frames([data("a"), data("b")]),
        length: u64::from(u32::MAX),
        polled: Rc::default(),
    };
    let mut buffering = pin!(Buffering::new(body, usize::MAX));
    let body = poll_fn(|cx| buffering.as_mut().poll(cx)).await.unwrap();
    assert_eq!(body.contiguous().unwrap(), "ab");
}

#[tokio::test]
async fn what_breaks_off_is_cut() {
    let broken = Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    let error = buffered(frames([data("ab"), broken])).await.unwrap_err();
    assert!(error.is::<RequestCut>());
}

#[tokio::test]
async fn many_small_frames_fit_their_buffer() {
    let count = 100_000;
    let frames = stream::iter((0..count).map(|_| data("x")));
    let mut buffering = pin!(Buffering::new(StreamBody::new(frames), count));
    let body = poll_fn(|cx| buffering.as_mut().poll(cx)).await.unwrap();
    assert_eq!(body.len(), count);
}
