use std::time::Duration;

use http::request::Parts;

use crate::run::ProgressNotices;

/// Says that a call which takes long is still under way: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct ProgressLayer {
    pub(super) notices: ProgressNotices,
    pub(super) comments: bool,
    pub(super) keep_alive: Option<Duration>,
    pub(super) early_head: Option<Duration>,
    pub(super) streams: Option<fn(&Parts) -> bool>,
}

impl ProgressLayer {
    /// Notices as [`ProgressNotices::new`] says, as events alone; a keep-alive
    /// comment after 15 s without bytes; no early head.
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

    /// When there are notices, of calls that pass this layer and of tools of
    /// their runs.
    #[must_use]
    pub const fn notices(mut self, notices: ProgressNotices) -> Self {
        self.notices = notices;
        self
    }

    /// Whether a notice of a call is also a comment in its answer, if that is a
    /// stream of events.
    #[must_use]
    pub const fn comments(mut self, comments: bool) -> Self {
        self.comments = comments;
        self
    }

    /// How long a stream of events may say nothing before it is sent a comment;
    /// `None` or zero for no such comments.
    #[must_use]
    pub const fn keep_alive(mut self, every: Option<Duration>) -> Self {
        self.keep_alive = match every {
            Some(every) if every.is_zero() => None,
            every => every,
        };
        self
    }

    /// Answers a request for a stream with a head of this layer's own, unless
    /// one came within `after` of the first wait; zero is the first wait itself.
    ///
    /// If the request's body is a [`ReplayBody`](crate::ReplayBody) with a JSON
    /// object, that decides: it is one for a stream if it says `"stream": true`.
    /// Other bodies are not read; then it is one if it accepts
    /// `text/event-stream` and no JSON, for clients that take either accept both.
    /// See [`streams_by`](Self::streams_by).
    #[must_use]
    pub const fn early_head(mut self, after: Duration) -> Self {
        self.early_head = Some(after);
        self
    }

    /// Which requests are for a stream, where the program knows better. A caller
    /// who does not expect one would not understand an early head.
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
