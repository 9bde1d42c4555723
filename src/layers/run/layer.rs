use std::{sync::Arc, time::Duration};

use http::{HeaderName, request::Parts};

use super::source::{KeySource, OwnerSource};
use crate::{
    registry::{Owner, OwnerCaps, RunRegistry},
    run::{CallSummary, OnEnd},
};

/// Finds or opens a request's run: see the [module](super).
#[derive(Clone, Debug)]
pub struct RunLayer {
    pub(super) registry: RunRegistry,
    pub(super) id: KeySource,
    pub(super) session: KeySource,
    pub(super) owner: OwnerSource,
    pub(super) idle: Duration,
    pub(super) on_end: Option<OnEnd>,
    pub(super) owner_caps: Option<OwnerCaps>,
    pub(super) hears_stop: bool,
    pub(super) keep_partial: usize,
}

impl RunLayer {
    /// Keeps runs in `registry`; ids from `x-run-id`, sessions from
    /// `x-session-id`, owners from the caller's credential.
    #[must_use]
    pub fn new(registry: RunRegistry) -> Self {
        Self {
            registry,
            id: KeySource::Header(HeaderName::from_static("x-run-id")),
            session: KeySource::Header(HeaderName::from_static("x-session-id")),
            owner: OwnerSource::Credential,
            idle: RunRegistry::IDLE,
            on_end: None,
            owner_caps: None,
            hears_stop: false,
            keep_partial: 0,
        }
    }

    /// Takes the run's id from this header.
    #[must_use]
    pub fn id_header(mut self, name: HeaderName) -> Self {
        self.id = KeySource::Header(name);
        self
    }

    /// Takes the run's id from `read`; `None` means a run of its own.
    #[must_use]
    pub fn id_by(
        mut self,
        read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.id = KeySource::By(Arc::new(read));
        self
    }

    /// Takes the session from this header.
    #[must_use]
    pub fn session_header(mut self, name: HeaderName) -> Self {
        self.session = KeySource::Header(name);
        self
    }

    /// Takes the session from `read`.
    #[must_use]
    pub fn session_by(
        mut self,
        read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.session = KeySource::By(Arc::new(read));
        self
    }

    /// Takes the owner from `read`, in place of a digest of the key in the first of
    /// `authorization`, `x-api-key`, `api-key` and `x-goog-api-key`; a word before
    /// the key, `Bearer` for one, is not part of it.
    #[must_use]
    pub fn owner_by(mut self, read: impl Fn(&Parts) -> Owner + Send + Sync + 'static) -> Self {
        self.owner = OwnerSource::By(Arc::new(read));
        self
    }

    /// How long a run that was given an id may have nothing in flight before
    /// it counts as completed; 30 minutes by default.
    ///
    /// # Panics
    ///
    /// If `idle` is zero: a run would be over between any two of its calls.
    #[must_use]
    pub const fn idle(mut self, idle: Duration) -> Self {
        assert!(
            !idle.is_zero(),
            "a run must be allowed to be idle for a while"
        );
        self.idle = idle;
        self
    }

    /// Caps what the runs of one owner come to together, so that an agent gains
    /// nothing by a new id, or by none. What is over a cap is answered as
    /// [`TurnCap`](crate::TerminalReason::TurnCap), with a message that says which; a
    /// run that would be new is not remembered, one that is known lives on.
    ///
    /// A turn is what [`TurnCapLayer`](crate::TurnCapLayer) takes for one by its path.
    /// Layers of one registry share what was counted. Calls that the program attached
    /// to a run pass.
    ///
    /// That something was refused is logged as a warning, and a line of the registry's
    /// [`Trajectory`](crate::run::Trajectory): at once, and then once a minute for each
    /// owner and cap as long as it goes on, with how many requests it has been.
    ///
    /// A caller is as many owners as he has keys. Unless somebody in front refuses
    /// those that are none, say whose a request is with [`owner_by`](Self::owner_by).
    #[must_use]
    pub fn owner_caps(mut self, caps: OwnerCaps) -> Self {
        self.registry.count_owners();
        self.owner_caps = Some(caps);
        self
    }

    /// Lets a word to stop through though its owner is at a cap: who has too much running
    /// must be able to end it. It opens nothing, and costs no turn.
    ///
    /// There has to be a [`StopPhraseLayer`](crate::StopPhraseLayer) further in, outside
    /// of all that calls: a request of a session that is over a cap is read there, and
    /// refused there if it is anything else. Without that layer it is refused by a
    /// [`RetryBudgetLayer`](crate::RetryBudgetLayer) or
    /// [`ModelFallbackLayer`](crate::ModelFallbackLayer), and served if there is none. At
    /// most four such requests of an owner are read at a time, more are refused unread.
    #[must_use]
    pub const fn hears_stop(mut self) -> Self {
        self.hears_stop = true;
        self
    }

    /// Keeps up to `max_bytes` of the text of each answer while it streams, for the
    /// case that it is cut: see [`Run::keep_partial`](crate::Run::keep_partial).
    /// Nothing by default.
    #[must_use]
    pub const fn keep_partial(mut self, max_bytes: usize) -> Self {
        self.keep_partial = max_bytes;
        self
    }

    /// Tells `hook` what each call came to: once per call, however it ended,
    /// when all that was done for it has been dropped, so that what its
    /// attempts cost is known. A second one replaces the first.
    ///
    /// A call that was answered at once, because its run is over, is told of
    /// too. A request that is refused for its id is no call.
    ///
    /// It is called where the last of the call is dropped, outside of any lock:
    /// on the server's task, or on that of a [`PumpLayer`](crate::PumpLayer). It
    /// should be quick. If it panics, the call is not disturbed, and
    /// `on_end panicked` is logged.
    ///
    /// ```
    /// use tower_agent::{RunLayer, RunRegistry};
    ///
    /// let layer = RunLayer::new(RunRegistry::new()).on_end(|call| {
    ///     let tokens = call.usage.map_or(0, |usage| usage.output_tokens);
    ///     println!("{}: {} after {tokens} tokens", call.run, call.reason);
    /// });
    /// ```
    #[must_use]
    pub fn on_end(mut self, hook: impl Fn(&CallSummary) + Send + Sync + 'static) -> Self {
        self.on_end = Some(OnEnd::new(hook));
        self
    }
}
