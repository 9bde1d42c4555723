use http::{HeaderMap, HeaderName, HeaderValue};

use super::error::CallFailed;
use crate::{
    error::BoxError,
    run::{Run, Terminated},
    supervise::Policy,
};

/// Measures nothing; tells the caller which run it was.
#[derive(Debug)]
pub struct RunPolicy;

impl Policy for RunPolicy {
    const READS: bool = true;

    fn head(&mut self, found: &Run, headers: &mut HeaderMap) {
        // An id is made of characters that a header may hold.
        if let Ok(id) = HeaderValue::try_from(found.id().to_string()) {
            headers.insert(HeaderName::from_static("x-run-id"), id);
        }
    }

    fn error(&self, found: &Run, error: BoxError) -> BoxError {
        // An end says itself which run it is of.
        if Terminated::find(&*error).is_some_and(|end| end.is_kin_of(found)) {
            return error;
        }
        CallFailed::new(found.id(), error).into()
    }
}
