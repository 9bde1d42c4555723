use std::time::Duration;

use http::request::Parts;

use crate::run::ProgressNotices;

/// Reports that a slow call is still in progress, and sends keep-alives: see the [module](super).
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
    /// The notices have the times of [`ProgressNotices::new`], and only observers get them. There
    /// is no early head.
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

    /// Sets the times of the notices, for the layer's calls and for the tools of their runs.
    #[must_use]
    pub const fn notices(mut self, notices: ProgressNotices) -> Self {
        self.notices = notices;
        self
    }

    /// Sets whether the caller gets the notices of its call too, as comments in the response.
    ///
    /// Only event streams get comments. The default is false.
    #[must_use]
    pub const fn comments(mut self, comments: bool) -> Self {
        self.comments = comments;
        self
    }

    /// Sets how long an event stream may send no bytes before the layer inserts a comment.
    ///
    /// The default is 15 s. With `None` or zero the layer inserts no keep-alive comments.
    #[must_use]
    pub const fn keep_alive(mut self, every: Option<Duration>) -> Self {
        self.keep_alive = match every {
            Some(every) if every.is_zero() => None,
            every => every,
        };
        self
    }

    /// Sends an early head if a request for a stream has no answer after `after`.
    ///
    /// The time starts at the first `Pending`; with zero the layer sends the head at once then.
    ///
    /// If the request's body is a [`ReplayBody`](crate::ReplayBody) with a JSON object, its
    /// `"stream"` flag decides whether the request is for a stream. The layer does not read other
    /// bodies: then a request is for a stream if it accepts `text/event-stream` and no JSON,
    /// because clients that take either accept both. See [`streams_by`](Self::streams_by).
    #[must_use]
    pub const fn early_head(mut self, after: Duration) -> Self {
        self.early_head = Some(after);
        self
    }

    /// Sets the function that decides which requests are for a stream, for an early head.
    ///
    /// It replaces the rule of [`early_head`](Self::early_head). A caller that expects no stream
    /// would not understand an early head.
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
