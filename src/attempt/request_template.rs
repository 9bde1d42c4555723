//! The template from which policies make the requests of attempts.

use std::mem;

use http::{Extensions, HeaderValue, Request, request::Parts};

use crate::{body::ReplayBody, headers::X_ATTEMPT, run::Run};

/// The head of a request that may be sent more than once.
///
/// The first attempt gets the caller's own extensions, without a clone. Mostly they hold only the
/// run, which the driver replaces in each attempt: a clone of the map would cost more than the rest
/// of the template.
#[derive(Clone, Debug)]
pub(crate) struct RequestTemplate {
    /// The head of each attempt's request, without its extensions.
    head: Parts,
    /// The number of the attempt in `head`.
    number: u32,
    /// The caller's extensions, until the first attempt takes them.
    first: Option<Extensions>,
    /// The extensions of every attempt but the first: a clone of the caller's, or empty if the
    /// caller's hold only the run.
    later: Extensions,
}

impl RequestTemplate {
    pub(crate) fn new(mut head: Parts) -> Self {
        let first = mem::take(&mut head.extensions);
        let run_alone = first.len() == 1 && first.get::<Run>().is_some();
        let later = match run_alone {
            true => Extensions::new(),
            false => first.clone(),
        };
        head.headers.insert(X_ATTEMPT, number_value(1));
        Self {
            head,
            number: 1,
            first: Some(first),
            later,
        }
    }

    pub(crate) const fn head(&self) -> &Parts {
        &self.head
    }

    /// Sets the number of the next attempt.
    ///
    /// The header `x-attempt` is set in the template and not in each request. So the header map
    /// grows once, and not in the clone of each attempt.
    pub(crate) fn set_attempt(&mut self, number: u32) {
        if mem::replace(&mut self.number, number) != number {
            self.head.headers.insert(X_ATTEMPT, number_value(number));
        }
    }

    /// Makes the request of an attempt that others may follow.
    #[inline]
    pub(crate) fn again(&mut self, body: ReplayBody) -> Request<ReplayBody> {
        let mut head = self.head.clone();
        head.extensions = self.extensions();
        Request::from_parts(head, body)
    }

    /// Makes the request of the last attempt; takes the head without a clone.
    pub(crate) fn last(&mut self, body: ReplayBody) -> Request<ReplayBody> {
        let (nothing, ()) = Request::new(()).into_parts();
        let mut head = mem::replace(&mut self.head, nothing);
        head.extensions = self.extensions();
        Request::from_parts(head, body)
    }

    fn extensions(&mut self) -> Extensions {
        let first = self.first.take();
        first.unwrap_or_else(|| self.later.clone())
    }
}

/// A number as a header value; below ten without an allocation.
pub(crate) fn number_value(number: u32) -> HeaderValue {
    const SMALL: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let small = usize::try_from(number).ok().and_then(|at| SMALL.get(at));
    small.map_or_else(|| number.into(), |small| HeaderValue::from_static(small))
}
