use std::time::Duration;

use http::request::Parts;

use crate::run::ProgressNotices;

/// Reports that a slow call is still in progress: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct ProgressLayer {
    pub(super) notices: ProgressNotices,
    pub(super) comments: bool,
    pub(super) keep_alive: Option<Duration>,
    pub(super) early_head: Option<Duration>,
    pub(super) streams: Option<fn(&Parts) -> bool>,
}

impl ProgressLayer {
    /// Makes the default layer: notices, and a keep-alive comment after 15 s without bytes.
    ///
    /// The notices are those of [`ProgressNotices::new`], and go to observers only.
    /// There is no early head.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            notices: ProgressNotices::new(),
            comments: false,
            keep_alive: Some(Duration::from_secs(15)),
            early_head: None,
            streams: None,
        }
    }

    /// The times of the notices, for calls and for tools of their runs.
    #[must_use]
    pub const fn notices(mut self, notices: ProgressNotices) -> Self {
        self.notices = notices;
        self
    }

    /// Whether a notice of a call is also a comment in its response.
    ///
    /// The setting applies to event streams only.
    #[must_use]
    pub const fn comments(mut self, comments: bool) -> Self {
        self.comments = comments;
        self
    }

    /// How long an event stream may be silent before the layer inserts a comment.
    ///
    /// With `None` or zero the layer inserts no such comments.
    #[must_use]
    pub const fn keep_alive(mut self, every: Option<Duration>) -> Self {
        self.keep_alive = match every {
            Some(every) if every.is_zero() => None,
            every => every,
        };
        self
    }

    /// Answers a request for a stream with an early head after `after`.
    ///
    /// The time starts at the first wait; with zero the first wait itself triggers the
    /// head.
    ///
    /// If the request's body is a [`ReplayBody`](crate::ReplayBody) with a JSON object,
    /// its `"stream": true` decides. Other bodies are not read; then a request is for a
    /// stream if it accepts `text/event-stream` and no JSON, because clients that take
    /// either accept both. See [`streams_by`](Self::streams_by).
    #[must_use]
    pub const fn early_head(mut self, after: Duration) -> Self {
        self.early_head = Some(after);
        self
    }

    /// Decides which requests are for a stream, in place of the default rule.
    ///
    /// A caller that expects no stream would not understand an early head.
    #[must_use]
    pub const fn streams_by(mut self, streams: fn(&Parts) -> bool) -> Self {
        self.streams = Some(streams);
        self
    }
}

impl Default for ProgressLayer {
    fn default() -> Self {
        Self::new()
    }
}
