use http::{Extensions, HeaderValue, Request, request::Parts};

use crate::{body::ReplayBody, headers::X_ATTEMPT, run::Run};

/// The head of a request that may be sent more than once.
///
/// The first attempt gets the caller's extensions themselves. Mostly they hold the run
/// alone, which each attempt replaces, and a clone of the map would cost more than the
/// rest of the template.
#[derive(Clone, Debug)]
pub(crate) struct RequestTemplate {
    /// The head of each attempt, with the extensions of later attempts. The extensions are a
    /// clone of the caller's, or empty if the caller's hold only the run.
    head: Parts,
    /// The caller's extensions, until the first attempt takes them.
    first: Option<Extensions>,
}

impl RequestTemplate {
    pub(crate) fn new(mut head: Parts) -> Self {
        let extensions = std::mem::take(&mut head.extensions);
        let run_alone = extensions.len() == 1 && extensions.get::<Run>().is_some();
        if !run_alone {
            head.extensions = extensions.clone();
        }
        // Each attempt sets its number: an entry here makes the map grow once, and not in
        // the clone of each attempt.
        head.headers.insert(X_ATTEMPT, number(1));
        Self {
            head,
            first: Some(extensions),
        }
    }

    pub(crate) const fn head(&self) -> &Parts {
        &self.head
    }

    /// Makes the request of an attempt that others may follow.
    pub(crate) fn again(&mut self, body: ReplayBody) -> Request<ReplayBody> {
        let mut request = Request::new(body);
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = self.head.uri.clone();
        *request.version_mut() = self.head.version;
        *request.headers_mut() = self.head.headers.clone();
        *request.extensions_mut() = self.extensions();
        request
    }

    /// Makes the request of the last attempt; takes the head without a clone.
    pub(crate) fn last(mut self, body: ReplayBody) -> Request<ReplayBody> {
        self.head.extensions = self.extensions();
        Request::from_parts(self.head, body)
    }

    fn extensions(&mut self) -> Extensions {
        let first = self.first.take();
        first.unwrap_or_else(|| self.head.extensions.clone())
    }
}

/// A number as a header value; below ten without an allocation.
pub(super) fn number(number: u32) -> HeaderValue {
    const SMALL: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let small = usize::try_from(number).ok().and_then(|at| SMALL.get(at));
    small.map_or_else(|| number.into(), |small| HeaderValue::from_static(small))
}
