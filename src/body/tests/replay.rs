use std::{convert::Infallible, mem::size_of};

use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, Full};

use super::super::replay::ReplayBody;
use crate::error::BoxError;

fn spliced() -> ReplayBody {
    ReplayBody::spliced(["ab", "cde", "f"].map(Bytes::from))
}

async fn read(body: ReplayBody) -> Bytes {
    body.collect().await.unwrap().to_bytes()
}

#[tokio::test]
async fn the_segments_are_sent_in_order_and_counted() {
    let mut body = spliced();
    let mut sent = Vec::new();
    let mut left = vec![body.len()];

    while let Some(frame) = body.frame().await {
        sent.push(frame.unwrap().into_data().unwrap());
        assert_eq!(body.size_hint().exact(), Some(body.len() as u64));
        assert_eq!(body.is_end_stream(), body.is_empty());
        left.push(body.len());
    }

    assert_eq!(sent, ["ab", "cde", "f"]);
    assert_eq!(left, [6, 4, 1, 0]);
}

#[tokio::test]
async fn a_clone_stands_where_the_original_stands() {
    let mut body = spliced();
    let whole = body.clone();
    body.frame().await.unwrap().unwrap();
    let rest = body.clone();

    assert_eq!(read(body).await, "cdef");
    assert_eq!(read(rest).await, "cdef");
    assert_eq!(read(whole.clone()).await, "abcdef");
    assert_eq!(whole.gathered(), "abcdef");
}

#[test]
fn nothing_is_over_at_once() {
    for body in [
        ReplayBody::default(),
        ReplayBody::from(""),
        ReplayBody::spliced(Default::default()),
    ] {
        assert!(body.is_empty() && body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(0));
        assert_eq!(body.contiguous(), Some(&Bytes::new()));
    }
}

#[tokio::test]
async fn empty_parts_are_no_frames() {
    for parts in [["", "a", "b"], ["a", "", "b"], ["a", "b", ""]] {
        let mut body = ReplayBody::spliced(parts.map(Bytes::from));
        assert_eq!(
            body.frame().await.unwrap().unwrap().data_ref().unwrap(),
            "a"
        );
        assert_eq!(
            body.frame().await.unwrap().unwrap().data_ref().unwrap(),
            "b"
        );
        assert!(body.frame().await.is_none());
    }
}

#[tokio::test]
async fn splicing_copies_nothing() {
    let whole = Bytes::from(vec![b'x'; 64]);
    let mut body = ReplayBody::spliced([whole.slice(..10), "new".into(), whole.slice(20..)]);
    assert!(body.contiguous().is_none());

    let mut frame = async || body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(frame().await.as_ptr(), whole.as_ptr());
    assert_eq!(frame().await, "new");
    assert_eq!(frame().await.as_ptr(), whole[20..].as_ptr());
}

#[test]
fn only_its_own_type_is_taken() {
    let bytes = Bytes::from(vec![1; 9]);
    let body = ReplayBody::try_from_body(ReplayBody::from(bytes.clone())).unwrap();
    assert_eq!(body.contiguous().unwrap().as_ptr(), bytes.as_ptr());
    assert!(ReplayBody::try_from_body(Full::new(bytes)).is_err());
}

#[test]
fn it_is_small_and_fits_into_clients() {
    fn body<B>(_: &B)
    where
        B: Body<Data = Bytes, Error = Infallible> + Clone + Unpin + Send + Sync + 'static,
        B::Error: Into<BoxError>,
    {
    }
    body(&ReplayBody::from(String::from("a")));
    assert_eq!(size_of::<ReplayBody>(), 5 * size_of::<usize>());
}

#[test]
fn its_bytes_are_not_printed() {
    let body = ReplayBody::from(b"a secret".to_vec());
    assert_eq!(format!("{body:?}"), "ReplayBody { len: 8 }");
}
