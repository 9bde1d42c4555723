//! The stop phrase layer, its settings, and its service.

use std::{
    mem,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use http_body::Body;
use http_body_util::{Either, Full};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    phrases::Phrases,
    reader::{StopPhraseReader, may_stop},
};
use crate::{
    attempt::generates,
    body::{MAX_BODY, ReplayBody},
    error::BoxError,
    registry::{AdmittedUnread, AskedOwner, OwnerCaps, RunRegistry, Uncounted},
    run::Run,
    supervise::{BufferedCall, Claim, LayerSettings, SupervisedBody, SupervisedFuture},
};

/// Ends the other live runs of a session when its user sends a stop phrase.
///
/// The run of that request itself is not aborted. If the layer cannot tell in which dialect to
/// answer, no run is ended: see the [module](super).
#[derive(Clone, Debug)]
pub struct StopPhraseLayer {
    registry: RunRegistry,
    phrases: Phrases,
    max_body: usize,
    /// The caps of the layer inside, for which a request that is not a stop phrase need not be
    /// read.
    caps: Option<OwnerCaps>,
    /// Whether outer layers supervise each call that this layer gets.
    is_supervised: bool,
}

impl StopPhraseLayer {
    /// Makes a layer that ends runs of `registry`, the registry of the
    /// [`RunLayer`](crate::RunLayer) further out.
    ///
    /// `"/stop"` is a good phrase. The layer ignores phrases without a letter or a digit; without
    /// any other phrase it only buffers request bodies.
    #[must_use]
    pub fn new(registry: RunRegistry, phrases: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self {
            registry,
            phrases: Phrases::new(phrases),
            max_body: MAX_BODY,
            caps: None,
            is_supervised: false,
        }
    }

    /// The largest request body that the layer buffers, in bytes; 32 MiB by default.
    ///
    /// A larger body is an error, a [`LengthLimitError`](http_body_util::LengthLimitError), unless
    /// the body is a [`ReplayBody`] already.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Tells the layer its place in an [`AgentStack`](crate::AgentStack): outer layers
    /// supervise each call, and an [`OwnerCapLayer`](crate::OwnerCapLayer) further in has `caps`.
    ///
    /// The layer refuses a request over one of the caps before it reads the request, unless the
    /// request may be a stop phrase. Without phrases it only reads the request.
    pub(crate) const fn within_stack(mut self, caps: Option<OwnerCaps>) -> Self {
        self.caps = caps;
        self.is_supervised = true;
        self
    }

    /// Whether a request over a cap, which need not be read, was admitted after all.
    ///
    /// # Errors
    ///
    /// The end of a call that a cap of its owner refuses.
    fn check_caps(
        &self,
        caps: OwnerCaps,
        extensions: &Extensions,
        path: &str,
        is_turn: bool,
    ) -> Result<bool, BoxError> {
        let Some(call) = extensions.get::<Run>() else {
            return Ok(false);
        };
        let is_counted = extensions.get::<Uncounted>().is_none();
        if is_counted || may_stop(&self.phrases, call, path) {
            return Ok(false);
        }
        if !self.registry.is_at_cap(call, caps, is_turn) {
            return Ok(false);
        }
        let asked = AskedOwner::take(extensions);
        self.registry.admit(call, caps, is_turn, asked);
        call.check()?;
        Ok(true)
    }
}

impl<S> Layer<S> for StopPhraseLayer {
    type Service = StopPhrase<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = self.clone();
        StopPhrase { inner, layer }
    }
}

/// The service of a [`StopPhraseLayer`](crate::layers::stop_phrase::StopPhraseLayer).
#[derive(Clone, Debug)]
pub struct StopPhrase<S> {
    inner: S,
    layer: StopPhraseLayer,
}

/// The response future of [`StopPhrase`].
pub type StopPhraseFuture<S, Q> = SupervisedFuture<BufferedCall<S, Q, StopPhraseReader>>;

/// The response body of [`StopPhrase`].
pub type StopPhraseBody<B> = SupervisedBody<Either<B, Full<Bytes>>>;

impl<S, Q, B> Service<Request<Q>> for StopPhrase<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error: Into<BoxError>> + Clone,
    Q: Body<Data = Bytes, Error: Into<BoxError>> + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Response = Response<StopPhraseBody<B>>;
    type Error = BoxError;
    type Future = StopPhraseFuture<S, Q>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        if let Some(caps) = self.layer.caps {
            let is_turn = generates(&request);
            let (extensions, path) = (request.extensions(), request.uri().path());
            match self.layer.check_caps(caps, extensions, path, is_turn) {
                Ok(false) => {}
                Ok(true) => {
                    request.extensions_mut().insert(AdmittedUnread);
                }
                Err(refused) => return SupervisedFuture::refused(refused),
            }
        }
        let found = request.extensions().get::<Run>();
        let is_idle = self.layer.is_supervised && self.layer.phrases.is_empty();
        let supervised = found.filter(|_| is_idle).cloned();
        let (run, entry) = match supervised {
            Some(run) => (run, None),
            None => {
                let entry = Claim::of(&mut request);
                (entry.run.clone(), Some(entry))
            }
        };
        let reader = StopPhraseReader {
            run,
            registry: self.layer.registry.clone(),
            phrases: self.layer.phrases.clone(),
        };
        // The service that was polled ready takes the call; a clone of it stays for later calls.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let max_body = self.layer.max_body;
        let read = |request| BufferedCall::new(service, reader, request, max_body);
        match entry {
            Some(entry) => SupervisedFuture::new(entry, LayerSettings::passive(), request, read),
            None => SupervisedFuture::inert(read(request)),
        }
    }
}
