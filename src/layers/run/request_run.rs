//! The extension by which a layer outside of the run layer names the run of a request.

use crate::{
    registry::{Owner, RunRegistry},
    run::{Run, RunId, TerminalReason},
};

/// An extension that names the run of a request without a run id.
///
/// A [`RunLayer`](crate::RunLayer) reads the extension if its source of ids, such as `x-run-id`,
/// has none for the request.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
/// use tower_agent::{Owner, RunLayer, RunRegistry, layers::run::RequestRun};
///
/// let registry = RunRegistry::new();
/// let service = ServiceBuilder::new()
///     // The program's own rule: all requests of a user in one minute are one run.
///     .map_request(|mut request: Request<()>| {
///         let run = RequestRun::new("user-7:12h05".parse().unwrap()).session("user-7".parse().unwrap());
///         request.extensions_mut().insert(run);
///         request
///     })
///     .layer(RunLayer::new(registry.clone()).owner_by(|_| Owner::default()))
///     .service(service_fn(|_: Request<()>| async {
///         Ok::<_, std::io::Error>(Response::new(Full::new(Bytes::from("hi"))))
///     }));
///
/// let answer = service.oneshot(Request::new(())).await?;
/// assert_eq!(answer.headers()["x-run-id"], "user-7:12h05");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRun {
    pub(super) id: RunId,
    pub(super) session: Option<RunId>,
    pub(super) parent: Option<ParentRun>,
}

/// The parent of a run: by its id, or by the beginning of its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParentRun {
    /// The parent is the run of this id.
    Run(RunId),
    /// The parent is a session's latest run of the sub-agent `of`, or else of the main agent.
    ///
    /// Each of the two is the beginning of an id that a turn completes. It ends with a colon; the
    /// turn has no colon.
    Latest {
        /// The session of the parent; `None` if it is that of the run itself.
        session: Option<RunId>,
        of: Option<String>,
        main: String,
    },
}

impl RequestRun {
    /// Names the run `id`, without a session and without a parent.
    #[must_use]
    pub const fn new(id: RunId) -> Self {
        Self {
            id,
            session: None,
            parent: None,
        }
    }

    /// Sets the session of a new run, unless the request names one, for example by `x-session-id`.
    #[must_use]
    pub fn session(mut self, session: RunId) -> Self {
        self.session = Some(session);
        self
    }

    /// Makes a new run the [child](Run::child) of the owner's run of this id.
    ///
    /// If the parent is unknown or completed, the new run has no parent. If the parent ended
    /// otherwise, the new run is over from its birth, with the parent's reason. A run that lives
    /// already, or ended other than as completed, keeps the parent with which it was opened.
    ///
    /// Requests build at most 16 levels of runs. A run with a parent further down is a child of the
    /// parent's ancestor on level 16.
    #[must_use]
    pub fn child_of(mut self, parent: RunId) -> Self {
        self.parent = Some(ParentRun::Run(parent));
        self
    }

    /// The id of the run.
    #[must_use]
    pub const fn id(&self) -> &RunId {
        &self.id
    }
}

impl ParentRun {
    /// The id of the parent, if the request names it whole.
    pub(super) const fn id(&self) -> Option<&RunId> {
        match self {
            Self::Run(id) => Some(id),
            Self::Latest { .. } => None,
        }
    }

    /// Finds the parent's run, which may have ended; `None` if it is unknown or completed.
    pub(super) fn find(
        &self,
        registry: &RunRegistry,
        owner: Owner,
        session: Option<&str>,
    ) -> Option<Run> {
        let is_no_success = |run: &Run| run.terminal_reason() != Some(TerminalReason::Completed);
        match self {
            Self::Run(id) => registry.get(owner, id),
            Self::Latest {
                session: other,
                of,
                main,
            } => {
                let other = other.as_ref().map(RunId::to_string);
                let session = other.as_deref().or(session)?;
                let latest = |prefix: &String| registry.latest_in(owner, session, prefix);
                let named = of.as_ref().and_then(latest).filter(is_no_success);
                named.or_else(|| latest(main))
            }
        }
        .filter(is_no_success)
    }
}
