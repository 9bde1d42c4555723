//! Tests of the classification of whole answers, streams and errors, as upstreams send
//! them.

mod answer;
mod class;
mod delay;
mod details;
mod error;
mod good_status;
mod head;
mod names;
mod prose;
mod retry_after;
mod stop_reasons;
mod stream;
mod table;

use std::{cell::Cell, time::SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::{class::FailureClass, classifier::Failure, signals::Row};

thread_local! {
    /// The row of the table that is left out in this thread.
    static LEFT_OUT: Cell<Option<*const Row<'static>>> = const { Cell::new(None) };
}

pub(super) fn is_left_out(row: &Row<'static>) -> bool {
    LEFT_OUT
        .get()
        .is_some_and(|left_out| std::ptr::eq(left_out, row))
}

const NOW: SystemTime = SystemTime::UNIX_EPOCH;

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let pair = |&(name, value)| {
        let name = HeaderName::from_static(name);
        (name, HeaderValue::from_static(value))
    };
    let mut headers = HeaderMap::new();
    headers.extend(pairs.iter().map(pair));
    headers
}

fn judge(status: u16, pairs: &[(&'static str, &'static str)], body: &str) -> Option<Failure> {
    let status = StatusCode::from_u16(status).unwrap();
    Failure::of_answer(status, &headers(pairs), body.as_bytes(), NOW)
}

/// The failure class of an answer with a JSON body; `None` if the answer is healthy.
fn class(status: u16, body: &str) -> Option<FailureClass> {
    let json = [("content-type", "application/json")];
    judge(status, &json, body).map(|failure| failure.class)
}
