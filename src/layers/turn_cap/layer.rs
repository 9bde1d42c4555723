use std::{fmt, sync::Arc, time::Duration};

use http::request::Parts;
use tower_layer::Layer;

use super::service::TurnCap;

type TurnsSource<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Ends a run that has used up its turns: see the [module](super).
#[derive(Clone)]
pub struct TurnCapLayer {
    pub(super) turns: Option<u32>,
    pub(super) finaliser: Option<Duration>,
    pub(super) counts: Option<TurnsSource<bool>>,
    pub(super) per_agent: Option<TurnsSource<Option<u32>>>,
}

impl TurnCapLayer {
    /// At most `turns` per run.
    ///
    /// # Panics
    ///
    /// If `turns` is zero; use [`optional`](Self::optional) to leave it out.
    #[must_use]
    pub const fn new(turns: u32) -> Self {
        Self::optional(Some(turns))
    }

    /// The same; for `None` a layer that does nothing, or caps only the runs that
    /// [`per_agent`](Self::per_agent) has a number for.
    ///
    /// # Panics
    ///
    /// If `turns` is zero.
    #[must_use]
    pub const fn optional(turns: Option<u32>) -> Self {
        if let Some(turns) = turns {
            assert!(turns > 0, "a run must have at least one turn");
        }
        Self {
            turns,
            finaliser: None,
            counts: None,
            per_agent: None,
        }
    }

    /// What is a turn, in place of what the path says.
    #[must_use]
    pub fn counts(mut self, counts: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.counts = Some(Arc::new(counts));
        self
    }

    /// Another cap for some: 50 for one agent, 5 for another, told apart by the
    /// caller's key or by whatever the program knows of a request. `None`, and
    /// zero, mean the layer's own.
    ///
    /// A header that a caller may choose freely is no good sign: with it an agent
    /// would raise its own cap.
    #[must_use]
    pub fn per_agent(
        mut self,
        turns: impl Fn(&Parts) -> Option<u32> + Send + Sync + 'static,
    ) -> Self {
        self.per_agent = Some(Arc::new(turns));
        self
    }

    /// Lets a run that has used up its turns make one more call, within `limit`:
    /// see [`Run::finaliser`](crate::Run::finaliser). Until then it is closing:
    /// nothing else starts, and what is under way goes on.
    ///
    /// # Panics
    ///
    /// If `limit` is zero.
    #[must_use]
    pub const fn finaliser(mut self, limit: Duration) -> Self {
        assert!(!limit.is_zero(), "a last call must be given some time");
        self.finaliser = Some(limit);
        self
    }
}

impl<S> Layer<S> for TurnCapLayer {
    type Service = TurnCap<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TurnCap::new(inner, self.clone())
    }
}

impl fmt::Debug for TurnCapLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnCapLayer")
            .field("turns", &self.turns)
            .field("finaliser", &self.finaliser)
            .field("counts", &self.counts.is_some())
            .field("per_agent", &self.per_agent.is_some())
            .finish()
    }
}
