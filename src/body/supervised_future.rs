use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;

use super::{Entry, Facts, Policy, SupervisedBody, Tap, supervision::Supervision};
use crate::{BoxError, run::Turn};

pin_project! {
    /// A response future under supervision.
    #[derive(Debug)]
    pub(crate) struct SupervisedFuture<F, P>
    where
        P: Policy,
    {
        // None once it is over, or if the call was refused.
        #[pin]
        inner: Option<F>,
        watch: Watch<P>,
    }

    impl<F, P> PinnedDrop for SupervisedFuture<F, P>
    where
        P: Policy,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if let Watch::Node(supervision) = this.watch {
                if this.inner.is_some() {
                    // First the reason, so that what is dropped can read it.
                    supervision.policy.dropped(&supervision.found);
                    this.inner.set(None);
                }
                supervision.finish();
            }
        }
    }
}

#[derive(Debug)]
enum Watch<P> {
    Node(Supervision<P>),
    /// An inert layer: the answer passes as it is.
    Nothing,
    /// An error to answer without a call.
    Refused(BoxError),
    /// The future was ready.
    Done,
}

impl<F, P: Policy> SupervisedFuture<F, P> {
    /// Calls the inner service, unless the node is over already.
    pub(crate) fn new<B>(
        entry: Entry,
        policy: P,
        request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> Self {
        let facts = if P::READS || entry.owns {
            Facts::of(&request)
        } else {
            Facts::default()
        };
        let supervision = Supervision::new(entry, facts, policy);
        // Without an inner future the first poll answers why.
        let inner = (!supervision.is_over()).then(|| call(request));
        Self {
            inner,
            watch: Watch::Node(supervision),
        }
    }

    /// Passes everything on unchanged.
    pub(crate) const fn inert(inner: F) -> Self {
        Self {
            inner: Some(inner),
            watch: Watch::Nothing,
        }
    }

    /// Answers an error without a node and without a call.
    pub(crate) const fn refused(error: BoxError) -> Self {
        Self {
            inner: None,
            watch: Watch::Refused(error),
        }
    }
}

impl<F, P, B, E> Future for SupervisedFuture<F, P>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
    P: Policy,
{
    type Output = Result<Response<SupervisedBody<B, P>>, BoxError>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let over = matches!(this.watch, Watch::Node(supervision) if supervision.is_over());
        let polled = match this.inner.as_mut().as_pin_mut() {
            Some(inner) if !over => {
                let turn = Turn::enter(cx.waker());
                match (inner.poll(cx), &mut *this.watch) {
                    (Poll::Ready(result), _) => Some(result),
                    (Poll::Pending, Watch::Node(supervision)) => {
                        ready!(supervision.pending(turn, cx));
                        None
                    }
                    (Poll::Pending, _) => return Poll::Pending,
                }
            }
            _ => None,
        };
        this.inner.set(None);
        Poll::Ready(match (std::mem::replace(this.watch, Watch::Done), polled) {
            (Watch::Node(supervision), Some(Ok(answer))) => Ok(supervise(answer, supervision)),
            (Watch::Node(mut supervision), Some(Err(error))) => {
                Err(supervision.failed(error.into()))
            }
            (Watch::Node(mut supervision), None) => Err(supervision.over()),
            (_, Some(answer)) => answer
                .map(|answer| answer.map(SupervisedBody::inert))
                .map_err(Into::into),
            (Watch::Refused(error), None) => Err(error),
            (_, None) => panic!("a response future was polled after it was ready"),
        })
    }
}

fn supervise<B, P>(
    mut response: Response<B>,
    mut supervision: Supervision<P>,
) -> Response<SupervisedBody<B, P>>
where
    B: Body<Data = Bytes>,
    P: Policy,
{
    if supervision.reads() {
        let (tap, read) = Tap::new(supervision.facts, response);
        supervision.tap = Some(tap);
        response = read;
    }
    if supervision.owns() {
        // For layers further out, which never open a node.
        response.extensions_mut().insert(supervision.found.clone());
    }
    supervision
        .policy
        .head(&supervision.found, response.headers_mut());
    response.map(|body| SupervisedBody::new(body, supervision))
}
