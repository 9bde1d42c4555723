//! The program's own time limits for one request.

use std::time::Duration;

use http::Extensions;

/// The program's own limits for one request, as a request extension.
///
/// Each limit that is set here replaces the layers' own; zero switches the limit off for this
/// request. A layer without any limit ignores the extension. Values from the wire never become such
/// limits.
///
/// ```
/// use std::time::Duration;
/// use tower_agent::Limits;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Limits {
///     ceiling: Some(Duration::from_secs(3600)),
///     ..Limits::default()
/// });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The window of silence, instead of that of a [`StepTimeoutLayer`](crate::StepTimeoutLayer).
    /// Unless `first` is set too, this window holds before the first content as well.
    pub step: Option<Duration>,
    /// The window of silence until the first content, instead of that of a
    /// [`StepTimeoutLayer`](crate::StepTimeoutLayer). Without `step`, this limit changes nothing in
    /// a layer for [local](crate::StepTimeoutLayer::local) models.
    pub first: Option<Duration>,
    /// The window of a tool at or below the request's node, instead of that of
    /// [`Run::tool_window`](crate::Run::tool_window). A
    /// [`StepTimeoutLayer`](crate::StepTimeoutLayer) applies this limit.
    pub tool: Option<Duration>,
    /// The absolute limit, instead of that of a [`HardCeilingLayer`](crate::HardCeilingLayer).
    pub ceiling: Option<Duration>,
    /// The limit on the total time, instead of that of
    /// [`HardCeilingLayer::timeout`](crate::HardCeilingLayer::timeout).
    pub timeout: Option<Duration>,
}

impl Limits {
    /// The limits in the extensions of a request that carries a run.
    ///
    /// A single extension is that run, so then the map is not searched.
    #[inline]
    pub(crate) fn of(extensions: &Extensions) -> Option<&Self> {
        (extensions.len() > 1).then(|| extensions.get()).flatten()
    }

    /// Takes the limits that are not set here from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            step: self.step.or(other.step),
            // A `step` that is set here holds before the first content too, instead of the `first`
            // of `other`.
            first: self.first.or(self.step).or(other.first),
            tool: self.tool.or(other.tool),
            ceiling: self.ceiling.or(other.ceiling),
            timeout: self.timeout.or(other.timeout),
        }
    }
}
