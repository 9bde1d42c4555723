//! The builder of the run layer, and the sources of ids, sessions and owners in a request.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderName, request::Parts};

use crate::{
    error::{BoxError, InvalidRequest},
    headers::{X_RUN_ID, X_SESSION_ID},
    registry::{Owner, RunRegistry},
    run::{CallSummary, OnEnd, RunId},
};

/// Finds or opens a request's run: see the [module](super).
#[derive(Clone, Debug)]
pub struct RunLayer {
    pub(super) registry: RunRegistry,
    pub(super) id: KeySource,
    pub(super) session: KeySource,
    pub(super) owner: OwnerSource,
    /// The idle limit of the layer's runs; `None` if the program has set none.
    pub(super) idle: Option<Duration>,
    pub(super) on_end: Option<OnEnd>,
    pub(super) keep_partial: usize,
    pub(super) keep_excerpts: usize,
}

impl RunLayer {
    /// Makes a layer that keeps its runs in `registry`.
    ///
    /// Run ids come from `x-run-id`, sessions from `x-session-id`, and owners from the caller's
    /// credential.
    #[must_use]
    pub fn new(registry: RunRegistry) -> Self {
        Self {
            registry,
            id: KeySource::Header(X_RUN_ID),
            session: KeySource::Header(X_SESSION_ID),
            owner: OwnerSource::Credential,
            idle: None,
            on_end: None,
            keep_partial: 0,
            keep_excerpts: 0,
        }
    }

    /// Takes the run's id from the request header `name`.
    ///
    /// A request that has the header several times, with different values, is
    /// [refused](InvalidRequest).
    #[must_use]
    pub fn id_header(mut self, name: HeaderName) -> Self {
        self.id = KeySource::Header(name);
        self
    }

    /// Takes the run's id from the result of `read`, instead of a header.
    ///
    /// If `read` returns `None`, the request has no id, as without the header.
    #[must_use]
    pub fn id_by(
        mut self,
        read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.id = KeySource::By(Arc::new(read));
        self
    }

    /// Takes the run's session from the request header `name`.
    #[must_use]
    pub fn session_header(mut self, name: HeaderName) -> Self {
        self.session = KeySource::Header(name);
        self
    }

    /// Takes the run's session from the result of `read`, instead of a header.
    #[must_use]
    pub fn session_by(
        mut self,
        read: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.session = KeySource::By(Arc::new(read));
        self
    }

    /// Takes the run's owner from the result of `read`, instead of the default.
    ///
    /// By default the owner is that of the request's credential: [`Owner::of_headers`].
    #[must_use]
    pub fn owner_by(mut self, read: impl Fn(&Parts) -> Owner + Send + Sync + 'static) -> Self {
        self.owner = OwnerSource::By(Arc::new(read));
        self
    }

    /// Sets how long a run with a given id may be idle before it ends as completed.
    ///
    /// A run is idle while it has no work in progress, no pause and no sign of life. The default is
    /// 30 minutes. In an [`AgentStack`](crate::AgentStack) with a ceiling it is half of the ceiling,
    /// if that is less.
    ///
    /// A ceiling or timeout of the run that passes while the run is idle ends nothing by itself. If
    /// a request of the run comes within `idle`, that request hears it; if none comes, the run
    /// completes.
    ///
    /// # Panics
    ///
    /// Panics if `idle` is zero: a run would be over between any two of its calls.
    #[must_use]
    pub const fn idle(mut self, idle: Duration) -> Self {
        assert!(
            !idle.is_zero(),
            "a run must be allowed to be idle for a while"
        );
        self.idle = Some(idle);
        self
    }

    /// Sets the idle limit of a stack whose runs end at `ceiling`, unless the program has set one.
    pub(crate) fn idle_below(mut self, ceiling: Option<Duration>) -> Self {
        self.idle = self.idle.or_else(|| ceiling.map(RunRegistry::idle_below));
        self
    }

    /// Keeps up to `max_bytes` of the text of each answer while it streams.
    ///
    /// If the answer is cut, the text is available: see
    /// [`Run::keep_partial`](crate::Run::keep_partial). Nothing is kept by default.
    #[must_use]
    pub const fn keep_partial(mut self, max_bytes: usize) -> Self {
        self.keep_partial = max_bytes;
        self
    }

    /// Lets a [`Watchdog`](crate::Watchdog)'s checker read excerpts of a run's actions and task.
    ///
    /// An excerpt has up to `max_bytes`: see [`Run::keep_excerpts`](crate::Run::keep_excerpts).
    /// Nothing is kept by default.
    #[must_use]
    pub const fn keep_excerpts(mut self, max_bytes: usize) -> Self {
        self.keep_excerpts = max_bytes;
        self
    }

    /// Calls `hook` with a summary of each call, once per call, for every kind of end.
    ///
    /// The hook runs after all parts of the call have been dropped, so the summary includes the
    /// cost of its attempts. A second hook replaces the first.
    ///
    /// The hook also runs for a call that fails at once, because its run has ended. A request
    /// that is refused for its id is not a call.
    ///
    /// The hook runs where the last part of the call is dropped, outside of any lock of the crate:
    /// for example on the server's task, or on a task that a [`PumpLayer`](crate::PumpLayer)
    /// spawned to drop or drain the call. The hook should be quick. A panic of the hook does not
    /// disturb the call, and is logged as `on_end panicked`.
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

type RequestReadFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// The source of a run id or session id.
#[derive(Clone)]
pub(super) enum KeySource {
    Header(HeaderName),
    By(RequestReadFn<Option<String>>),
}

/// The source of a run's owner.
#[derive(Clone)]
pub(super) enum OwnerSource {
    Credential,
    By(RequestReadFn<Owner>),
}

impl KeySource {
    /// Reads the id of a request; `None` if it has none.
    ///
    /// # Errors
    ///
    /// An [`InvalidRunId`](crate::InvalidRunId), or an [`InvalidRequest`] if the header comes
    /// several times with different values.
    pub(super) fn read(&self, parts: &Parts) -> Result<Option<RunId>, BoxError> {
        let id = match self {
            Self::Header(name) => {
                let mut values = parts.headers.get_all(name).iter();
                let Some(value) = values.next() else {
                    return Ok(None);
                };
                if values.any(|other| other != value) {
                    return Err(InvalidRequest::new(format!(
                        "the request has several `{name}` headers that differ: send one"
                    ))
                    .into());
                }
                // A header that is not text cannot be a valid id: a space fails to parse.
                Some(value.to_str().unwrap_or(" ").parse())
            }
            Self::By(read) => read(parts).map(|id| id.parse()),
        };
        Ok(id.transpose()?)
    }
}

impl OwnerSource {
    pub(super) fn read(&self, parts: &Parts) -> Owner {
        match self {
            Self::Credential => Owner::of_headers(&parts.headers),
            Self::By(read) => read(parts),
        }
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "Header({name})"),
            Self::By(_) => f.write_str("By(..)"),
        }
    }
}

impl fmt::Debug for OwnerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Credential => "Credential",
            Self::By(_) => "By(..)",
        })
    }
}
