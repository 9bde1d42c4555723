use std::{fmt, future::Future, future::poll_fn, pin::Pin, sync::Mutex, sync::PoisonError};

use tower_service::Service;

use crate::BoxError;

type Asked<A> = Pin<Box<dyn Future<Output = Result<A, BoxError>> + Send>>;

/// A service that is asked, whatever its type: each question goes to a clone of it.
pub(super) struct Stage<Q, A>(Mutex<Box<dyn FnMut(Q) -> Asked<A> + Send>>);

impl<Q: Send + 'static, A: 'static> Stage<Q, A> {
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

    pub(super) fn ask(&self, question: Q) -> Asked<A> {
        let mut ask = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ask(question)
    }
}

impl<Q, A> fmt::Debug for Stage<Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stage")
    }
}
