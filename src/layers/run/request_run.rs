//! The extension by which a layer outside of the run layer names the run of a request.

use crate::{
    registry::{Owner, RunRegistry},
    run::{Run, RunId},
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
    /// The parent is the session's latest run with an id that consists of this text and a turn. The
    /// text ends with a colon; the turn has no colon.
    LatestAfter(String),
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
    /// If the parent is unknown or over, the new run has no parent. A run that lives already, or
    /// ended other than as completed, keeps the parent with which it was opened.
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
    /// Finds the parent's run; `None` if it is unknown or over.
    pub(super) fn find(
        &self,
        registry: &RunRegistry,
        owner: Owner,
        session: Option<&str>,
    ) -> Option<Run> {
        match self {
            Self::Run(id) => {
                let run = registry.get(owner, id);
                run.filter(|run| run.terminal_reason().is_none())
            }
            Self::LatestAfter(prefix) => registry.latest_in(owner, session?, prefix),
        }
    }
}
