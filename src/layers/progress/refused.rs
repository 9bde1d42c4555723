use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body::Body;

use crate::{
    error::BoxError,
    llm::failure::{Failure, FailureClass, NotAStream},
    run::Terminated,
};

/// The longest body that is read as an error, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// An answer behind an early head that is no event stream.
///
/// The layer reads the answer's body for the error message.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    headers: HeaderMap,
    read: Vec<u8>,
}

impl Refused {
    pub(super) const fn new(status: StatusCode, headers: HeaderMap) -> Self {
        Self {
            status,
            headers,
            read: Vec::new(),
        }
    }

    /// Reads the body, and returns the error for the caller.
    pub(super) fn poll<B>(&mut self, mut body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<BoxError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        // The body of a successful answer contains no error to report.
        while !self.status.is_success() {
            match ready!(body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.read.extend_from_slice(&data);
                    if self.read.len() > MAX_BODY {
                        break;
                    }
                }
                Some(Err(error)) => {
                    let error = error.into();
                    if Terminated::find(&*error).is_some() {
                        return Poll::Ready(error);
                    }
                    break;
                }
                None => break,
            }
        }
        Poll::Ready(self.error().into())
    }

    fn error(&self) -> NotAStream {
        // Only a date in `retry-after` needs the time, and no retry can follow here.
        let now = SystemTime::UNIX_EPOCH;
        let failure = Failure::of_answer(self.status, &self.headers, &self.read, now);
        let failure = failure.unwrap_or(Failure::new(FailureClass::Server));
        NotAStream::new(self.status, failure.class, failure.message)
    }
}
