//! covers: T53, T84

use std::convert::Infallible;

use axum::body::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, LengthLimitError};
use tower::{BoxError, ServiceExt, service_fn};
use tower_agent::Owner;

use super::*;

const MIB: usize = 1024 * 1024;

const LIMITS: HeldLimits = HeldLimits::new(4 * MAX_BODY);

fn owner(name: &str) -> Owner {
    Owner::of(name.as_bytes())
}

/// A body of unknown length, in chunks.
fn chunked(chunk: Bytes, count: usize) -> Body {
    let chunks = (0..count).map(move |_| Ok::<_, Infallible>(chunk.clone()));
    Body::from_stream(stream::iter(chunks))
}

fn buffered(held: &HeldBytes, body: Body) -> (BufferedBody, Arc<OnceLock<BufferFull>>) {
    let charge = held.open(owner("a"), LIMITS, 0).unwrap();
    let refused = Arc::default();
    (
        BufferedBody::new(body, charge, Arc::clone(&refused)),
        refused,
    )
}

fn is_too_long(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| cause.is::<LengthLimitError>())
}

#[tokio::test]
async fn chunks_come_as_one_frame_that_counts_until_its_last_clone_is_gone() {
    for (size, count) in [(1, 100_000), (7, 1), (16_384, 300), (3 * MIB, 3)] {
        let held = HeldBytes::default();
        let chunk = Bytes::from_iter((0..size).map(|byte| byte as u8));
        let (mut body, _) = buffered(&held, chunked(chunk.clone(), count));

        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(body.frame().await.is_none());
        drop(body);

        assert!(data == chunk.repeat(count), "{count} of {size}");
        assert_eq!(held.total(), size * count);
        let part = data.slice(data.len() - 1..);
        drop(data);
        assert_eq!(held.total(), size * count);
        drop(part);
        assert_eq!(held.total(), 0);
    }
}

#[tokio::test]
async fn it_counts_what_has_come_and_not_what_is_announced() {
    let held = HeldBytes::default();
    let (mut sender, body) = http_body_util::channel::Channel::<Bytes>::new(4);
    let (mut body, _) = buffered(&held, Body::new(body));
    let mut frame = ready_data(&mut body).await;
    assert!(frame.is_none());
    assert_eq!(held.total(), 0);

    for (sent, counted) in [(100, 100), (100, 16 * 1024), (16 * 1024, 32 * 1024)] {
        sender.send_data(Bytes::from(vec![0; sent])).await.unwrap();
        frame = ready_data(&mut body).await;
        assert!(frame.is_none());
        assert_eq!(held.total(), counted, "{sent}");
    }
    drop(body);
    assert_eq!(held.total(), 0);
}

/// What a body has to give at once.
async fn ready_data(body: &mut BufferedBody) -> Option<Bytes> {
    let frame = std::future::poll_fn(|cx| {
        Poll::Ready(match Pin::new(&mut *body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => None,
        })
    });
    frame.await.map(|frame| frame.unwrap().into_data().unwrap())
}

#[tokio::test]
async fn the_longest_body_fits_and_a_longer_one_is_too_long_whatever_is_left() {
    for (count, fits) in [(32, true), (33, false)] {
        let held = HeldBytes::default();
        let least = HeldLimits::new(MAX_BODY);
        let charge = held.open(owner("a"), least, 0).unwrap();
        let chunks = chunked(Bytes::from(vec![0; MIB]), count);
        let mut body = BufferedBody::new(chunks, charge, Arc::default());

        match body.frame().await.unwrap() {
            Ok(frame) => {
                assert!(fits);
                assert_eq!(frame.data_ref().unwrap().len(), MAX_BODY);
            }
            Err(error) => {
                assert!(!fits);
                assert!(is_too_long(&error), "{error}");
            }
        }
        drop(body);
        assert_eq!(held.total(), 0);
    }
}

#[tokio::test]
async fn an_owner_has_its_share_and_all_have_no_more_than_all() {
    let held = HeldBytes::default();
    let mut charges = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let mut charge = held.open(owner(name), LIMITS, MAX_BODY).unwrap();
        charge.grow(MAX_BODY).unwrap();
        let error = charge.grow(1).unwrap_err().to_string();
        assert!(error.contains("its share, 32 MiB, of the 128 MiB that [server] max_buffered"));
        charges.push(charge);
    }
    let error = held.open(owner("e"), LIMITS, 1).unwrap_err().to_string();
    assert!(
        error.contains("all callers fill the 128 MiB that [server] max_buffered"),
        "{error}"
    );
    assert_eq!(held.total(), 4 * MAX_BODY);

    charges.pop();
    held.open(owner("e"), LIMITS, MAX_BODY).unwrap();
    drop(charges);
    assert_eq!(held.total(), 0);
}

/// A service that reads a request, answers with its length, and leaves errors to the answer.
async fn ask(held: &HeldBytes, body: Body) -> (StatusCode, String) {
    let reads = service_fn(|request: Request<Body>| async {
        let read = request.into_body().collect().await;
        let told = match read {
            Ok(body) => Response::new(Body::from(body.to_bytes().len().to_string())),
            Err(error) => {
                let mut answer = Response::new(Body::from(error.to_string()));
                *answer.status_mut() = StatusCode::BAD_REQUEST;
                answer
            }
        };
        Ok::<_, BoxError>(told)
    });
    let service = BufferedUploads::new(held.clone(), LIMITS, reads);
    let request = Request::post("/v1/messages").header("x-api-key", "a");
    let answer = service.oneshot(request.body(body).unwrap()).await.unwrap();
    let status = answer.status();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(answer.headers()["x-should-retry"], "true");
    }
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test]
async fn what_does_not_fit_is_a_503_in_the_callers_dialect_and_leaves_nothing() {
    let held = HeldBytes::default();
    let mut other = held.open(owner("a"), LIMITS, 0).unwrap();
    other.grow(MAX_BODY - MIB).unwrap();
    let before = held.total();
    let announced = Body::from(vec![0; MIB + 1]);
    for (body, way) in [
        (announced, "announced"),
        (chunked(Bytes::from(vec![0; 1000]), 2000), "in chunks"),
    ] {
        let (status, text) = ask(&held, body).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{way}: {text}");
        let error: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(error["type"], "error", "{way}: {text}");
        assert!(text.contains("[server] max_buffered"), "{way}: {text}");
        assert_eq!(held.total(), before);
    }
    let (status, text) = ask(&held, Body::from(vec![0; MIB])).await;
    assert_eq!((status, &*text), (StatusCode::OK, "1048576"));
    drop(other);
    assert_eq!(held.total(), 0);
}
