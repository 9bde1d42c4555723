//! The simulated models, and how each answers a request.

use self::FailureMode::{Overloaded, OverloadedStream, RateLimited, Request, Server};

/// All simulated models, as `GET /v1/models` lists them, and how each answers.
pub(crate) const MODELS: [(&str, Behavior); 15] = [
    ("sim-healthy", Behavior::Healthy),
    ("sim-slow", Behavior::Slow),
    ("sim-stall-head", Behavior::StallHead),
    ("sim-stall-stream", Behavior::StallStream),
    ("sim-cut", Behavior::Cut),
    ("sim-ping", Behavior::Ping),
    (
        "sim-rate-limited",
        Behavior::Failing(RateLimited { retry_after: 1 }),
    ),
    (
        "sim-rate-limited-long",
        Behavior::Failing(RateLimited { retry_after: 3600 }),
    ),
    ("sim-overloaded", Behavior::Failing(Overloaded)),
    ("sim-overloaded-stream", Behavior::Failing(OverloadedStream)),
    ("sim-failing", Behavior::Failing(Server)),
    ("sim-refusing", Behavior::Failing(Request)),
    ("sim-large", Behavior::Large),
    ("sim-agent", Behavior::Agent),
    ("sim-polling", Behavior::Polling),
];

/// The names of all models.
pub(crate) const fn names() -> [&'static str; MODELS.len()] {
    let mut names = [""; MODELS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = MODELS[at].0;
        at += 1;
    }
    names
}

/// The way in which a simulated model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// Answers at once, whole and well-formed.
    Healthy,
    /// Sends a delta per second, twenty of them; unary answers come after 3 s.
    Slow,
    /// Accepts the request and never sends a head.
    StallHead,
    /// Sends the first deltas (unary: half of the body), then nothing, and keeps the connection
    /// open.
    StallStream,
    /// Sends the first deltas, then ends cleanly without a terminator (unary: cut mid-body).
    Cut,
    /// Sends the head and the prelude, then only pings (unary: blank lines) for ever.
    Ping,
    /// Answers with the length and the checksum of the request's body.
    Large,
    /// Asks for each tool of the request once, then answers.
    Agent,
    /// Asks for the request's first tool again and again, whatever the results are.
    Polling,
    /// Answers with an error.
    Failing(FailureMode),
}

/// The error with which a simulated model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureMode {
    /// Answers 429, with a `retry-after` of this many seconds.
    RateLimited { retry_after: u32 },
    /// Answers as an overloaded server: 529, and in OpenAI's APIs 503.
    Overloaded,
    /// Answers 200 with a stream that begins with an overload error; a unary answer is 529 in all
    /// dialects.
    OverloadedStream,
    /// Answers 500.
    Server,
    /// Answers 400, as to a malformed request.
    Request,
}

impl Behavior {
    /// The behavior and the listed name of `model`, if it is simulated.
    pub(super) fn of(model: &str) -> Option<(&'static str, Self)> {
        MODELS.into_iter().find(|(name, _)| *name == model)
    }

    /// The answer to the request `body` in full, delta by delta.
    pub(super) fn deltas(self, body: &[u8]) -> Vec<String> {
        match self {
            Self::Slow => (1..=20).map(|count| format!("{count} ")).collect(),
            Self::Large => vec![
                format!("{} bytes,", body.len()),
                format!(" fnv1a {:016x}", fnv1a(body)),
            ],
            _ => ["Hello", " from", " the", " simulated", " upstream", "."]
                .map(String::from)
                .into(),
        }
    }
}

/// FNV-1a of 64 bits: a checksum that a test in any language can repeat in a few lines.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
