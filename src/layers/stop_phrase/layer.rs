use tower_layer::Layer;

use super::{phrases::Phrases, service::StopPhrase};
use crate::{body::MAX_BODY, registry::RunRegistry};

/// Ends the runs of a session when its user says so: see the [module](super).
#[derive(Clone, Debug)]
pub struct StopPhraseLayer {
    registry: RunRegistry,
    phrases: Phrases,
    max_body: usize,
}

impl StopPhraseLayer {
    /// Ends runs of `registry`, which is that of the [`RunLayer`](crate::RunLayer)
    /// further out. `"/stop"` is a good phrase; one without a letter or a digit is
    /// none, and without any phrase requests pass as they are.
    #[must_use]
    pub fn new(registry: RunRegistry, phrases: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self {
            registry,
            phrases: Phrases::new(phrases),
            max_body: MAX_BODY,
        }
    }

    /// The largest request body that is kept, in bytes; a larger one is an error,
    /// a [`LengthLimitError`](http_body_util::LengthLimitError). 32 MiB by default.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for StopPhraseLayer {
    type Service = StopPhrase<S>;

    fn layer(&self, inner: S) -> Self::Service {
        StopPhrase::new(
            inner,
            self.registry.clone(),
            self.phrases.clone(),
            self.max_body,
        )
    }
}
