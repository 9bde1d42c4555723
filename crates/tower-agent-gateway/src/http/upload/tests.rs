//! covers: T97

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use futures_util::{StreamExt, stream};
use tokio::time::{Instant, sleep};

use super::*;

const CHUNK: usize = 1024 * 1024;
const SECOND: Duration = Duration::from_secs(1);

/// A body of `chunks` chunks that then stays pending, and the number of chunks that were read. The
/// body holds a clone of that count until it is dropped.
async fn wrapped(chunks: usize, version: Version) -> (Body, Arc<AtomicUsize>) {
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let frames = stream::repeat(Bytes::from(vec![0; CHUNK])).take(chunks);
    let frames = frames.chain(stream::pending()).map(move |chunk| {
        counted.fetch_add(1, SeqCst);
        Ok::<_, Infallible>(chunk)
    });
    let mut request = Request::new(Body::from_stream(frames));
    *request.version_mut() = version;
    (watched(None, request).0.into_body(), read)
}

fn is_held(read: &Arc<AtomicUsize>) -> bool {
    Arc::strong_count(read) > 1
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_until_it_is_dropped() {
    let (mut body, read) = wrapped(5, Version::HTTP_11).await;
    body.frame().await;
    sleep(SECOND).await;
    assert_eq!(read.load(SeqCst), 1);

    drop(body);
    sleep(SECOND).await;
    assert_eq!(read.load(SeqCst), 5);
    assert!(is_held(&read), "its end is awaited");
}

#[tokio::test(start_paused = true)]
async fn an_end_that_does_not_come_is_not_awaited_for_ever() {
    let (body, read) = wrapped(1, Version::HTTP_10).await;
    drop(body);
    let dropped = Instant::now();
    while is_held(&read) {
        sleep(SECOND / 10).await;
    }
    assert_eq!(dropped.elapsed().as_secs(), PATIENCE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn so_much_is_read_and_no_more() {
    let (body, read) = wrapped(1000, Version::HTTP_11).await;
    drop(body);
    sleep(SECOND).await;
    assert!(!is_held(&read));
    assert_eq!(read.load(SeqCst), LIMIT / CHUNK + 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_http_2_is_left_alone() {
    let (body, read) = wrapped(5, Version::HTTP_2).await;
    drop(body);
    sleep(SECOND).await;
    assert!(!is_held(&read));
    assert_eq!(read.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_at_its_end_is_not_read_again() {
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    let frames = stream::poll_fn(move |_| {
        counted.fetch_add(1, SeqCst);
        Poll::Ready(None::<Result<Bytes, Infallible>>)
    });
    let request = Request::new(Body::from_stream(frames));
    let mut body = watched(None, request).0.into_body();
    assert!(body.frame().await.is_none());
    drop(body);
    sleep(SECOND).await;
    assert_eq!(polls.load(SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn it_says_how_long_it_is() {
    let (body, _) = watched(None, Request::new(Body::from("12345")));
    assert_eq!(body.body().size_hint().exact(), Some(5));
    let whole = body.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(whole, "12345");
}

/// A body of one chunk after each of these gaps, in seconds; then it stays pending.
fn after<const N: usize>(gaps: [u32; N]) -> Body {
    let frames = stream::iter(gaps).then(|gap| async move {
        sleep(gap * SECOND).await;
        Ok::<_, Infallible>(Bytes::from_static(b"x"))
    });
    Body::from_stream(frames.chain(stream::pending()))
}

const IDLE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn silence_fails_it_exactly_when_it_has_lasted_so_long_and_moving_is_none() {
    let began = Instant::now();
    let body = after([29, 29, 0, 29]);
    let (request, stalled) = watched(Some(IDLE), Request::new(body));
    let mut body = request.into_body();
    for _ in 0..4 {
        body.frame().await.unwrap().unwrap();
    }
    assert_eq!(began.elapsed(), 87 * SECOND);
    assert!(!stalled.load(Ordering::Acquire));

    let error = body.frame().await.unwrap().unwrap_err().into();

    assert_eq!(began.elapsed(), 117 * SECOND);
    assert!(stalled.load(Ordering::Acquire));
    assert_eq!(stall_status(&error), Some(StatusCode::REQUEST_TIMEOUT));
}

/// An upload that no handler waits for is not silent: its reader may be busy.
#[tokio::test(start_paused = true)]
async fn time_in_which_nobody_reads_does_not_count() {
    let (request, _) = watched(Some(IDLE), Request::new(after([0, 0])));
    let mut body = request.into_body();
    for _ in 0..2 {
        body.frame().await.unwrap().unwrap();
        sleep(10 * IDLE).await;
    }
    let waits = Instant::now();
    assert!(body.frame().await.unwrap().is_err());
    assert_eq!(waits.elapsed(), IDLE);
}
