use std::time::Duration;

use bytes::Bytes;

/// How an upstream answers a request, once it has read it.
#[derive(Clone, Debug)]
pub(crate) enum Play {
    /// Nothing, ever.
    Silent,
    /// The head of a stream, this many tokens, then nothing.
    Tokens(usize),
    /// The head of a stream, then a token every millisecond for ever.
    Flow,
    /// The head of a stream, then this many bytes as fast as they go, then nothing.
    Flood(usize),
    /// These steps, byte for byte; then the connection serves the next request.
    Script(Vec<Step>),
}

/// One step of an answer that is written byte for byte.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Bytes, in a write of their own.
    Write(Bytes),
    /// A pause of this length.
    Pause(Duration),
    /// A pause until the test resumes the upstream.
    Hold,
    /// Nothing more, on a connection that stays open.
    Hang,
    /// The end of the connection.
    Close,
    /// The end of the connection, with a reset.
    Reset,
}

impl Step {
    /// A write of this text.
    pub(crate) fn write(text: impl Into<String>) -> Self {
        Self::Write(Bytes::from(text.into()))
    }
}

impl Play {
    /// These bytes; the connection serves the next request.
    pub(crate) fn keep(bytes: impl Into<String>) -> Self {
        Self::Script(vec![Step::write(bytes)])
    }

    /// These bytes, each in a write of its own, then the end of the connection.
    pub(crate) fn close<const N: usize>(pieces: [String; N]) -> Self {
        Self::close_after(pieces.into_iter().map(Bytes::from))
    }

    /// The same of any number of pieces.
    pub(crate) fn close_after(pieces: impl IntoIterator<Item = Bytes>) -> Self {
        let writes = pieces.into_iter().map(Step::Write);
        Self::Script(writes.chain([Step::Close]).collect())
    }

    /// These bytes, each after a pause.
    pub(crate) fn paced(pieces: impl IntoIterator<Item = (Duration, String)>) -> Self {
        let steps = |(pause, text)| [Step::Pause(pause), Step::write(text)];
        Self::Script(pieces.into_iter().flat_map(steps).collect())
    }
}
