//! The error type of the layers, and the errors that several layers share.

mod invalid_request;
mod request_cut;

pub use self::{invalid_request::InvalidRequest, request_cut::RequestCut};

use std::error::Error;

/// The error of layers, which hand on what comes from inside them.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// `error` and its sources, outermost first.
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // An I/O error answers the source of what it wraps, and so hides it.
        match error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
        {
            Some(wrapped) => Some(wrapped as _),
            None => error.source(),
        }
    })
}
