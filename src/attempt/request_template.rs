use http::{Extensions, HeaderValue, Request, request::Parts};

use crate::{body::ReplayBody, run::Run};

/// The head of a request that may be sent more than once.
///
/// The first try gets the caller's own extensions: mostly they hold the run
/// alone, which each try replaces, and to clone them would cost more than all
/// else that is kept.
#[derive(Clone, Debug)]
pub(crate) struct RequestTemplate {
    /// Without the caller's extensions, but for what later tries need of them.
    head: Parts,
    first: Option<Extensions>,
}

impl RequestTemplate {
    pub(crate) fn new(mut head: Parts) -> Self {
        let extensions = std::mem::take(&mut head.extensions);
        let run_alone = extensions.len() == 1 && extensions.get::<Run>().is_some();
        if !run_alone {
            head.extensions = extensions.clone();
        }
        // Each try has its number there: a place for it now costs one growth of
        // the map instead of one a try.
        head.headers.insert(super::X_ATTEMPT, number(1));
        Self {
            head,
            first: Some(extensions),
        }
    }

    pub(crate) const fn head(&self) -> &Parts {
        &self.head
    }

    /// The request of another try.
    pub(crate) fn again(&mut self, body: ReplayBody) -> Request<ReplayBody> {
        let mut request = Request::new(body);
        *request.method_mut() = self.head.method.clone();
        *request.uri_mut() = self.head.uri.clone();
        *request.version_mut() = self.head.version;
        *request.headers_mut() = self.head.headers.clone();
        *request.extensions_mut() = self.extensions();
        request
    }

    /// The request of the last try.
    pub(crate) fn last(mut self, body: ReplayBody) -> Request<ReplayBody> {
        self.head.extensions = self.extensions();
        Request::from_parts(self.head, body)
    }

    fn extensions(&mut self) -> Extensions {
        let first = self.first.take();
        first.unwrap_or_else(|| self.head.extensions.clone())
    }
}

/// A small number, without an allocation.
pub(super) fn number(number: u32) -> HeaderValue {
    const SMALL: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let small = usize::try_from(number).ok().and_then(|at| SMALL.get(at));
    small.map_or_else(|| number.into(), |small| HeaderValue::from_static(small))
}
