use std::{
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::Poll,
};

use tower_service::Service;

use crate::error::BoxError;

type StageFuture<A> = Pin<Box<dyn Future<Output = Result<A, BoxError>> + Send>>;

/// A service that is asked, whatever its type: each question goes to a clone of it.
pub(super) struct InquiryStage<Q, A>(Mutex<Box<dyn FnMut(Q) -> StageFuture<A> + Send>>);

impl<Q: Send + 'static, A: 'static> InquiryStage<Q, A> {
    pub(super) fn new<S>(service: S) -> Self
    where
        S: Service<Q, Response = A> + Clone + Send + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
    {
        Self(Mutex::new(Box::new(move |question| {
            let mut service = service.clone();
            Box::pin(async move {
                poll_fn(|cx| service.poll_ready(cx))
                    .await
                    .map_err(Into::into)?;
                service.call(question).await.map_err(Into::into)
            })
        })))
    }

    /// A panic of the service is an error: other runs are watched too.
    pub(super) async fn ask(&self, question: Q) -> Result<A, BoxError> {
        let asked = catch_unwind(AssertUnwindSafe(|| {
            let mut ask = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            ask(question)
        }));
        let Ok(mut asked) = asked else {
            return Err(panicked());
        };
        poll_fn(|cx| {
            let polled = catch_unwind(AssertUnwindSafe(|| asked.as_mut().poll(cx)));
            polled.unwrap_or_else(|_| Poll::Ready(Err(panicked())))
        })
        .await
    }
}

fn panicked() -> BoxError {
    tracing::error!(target: "tower_agent", "a service of the watchdog panicked");
    "it panicked".into()
}

impl<Q, A> fmt::Debug for InquiryStage<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stage")
    }
}
