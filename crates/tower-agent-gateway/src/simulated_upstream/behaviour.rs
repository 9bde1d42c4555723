//! The simulated models, and how each answers a request.

/// Answers at once, whole and well-formed.
pub(crate) const HEALTHY: &str = "sim-healthy";
/// Sends a delta per second, twenty of them; unary answers come after 3 s.
pub(crate) const SLOW: &str = "sim-slow";
/// Accepts the request and never sends a head.
pub(crate) const STALL_HEAD: &str = "sim-stall-head";
/// Sends the first deltas (unary: half of the body), then nothing, and keeps the connection open.
pub(crate) const STALL_STREAM: &str = "sim-stall-stream";
/// Sends the first deltas, then ends cleanly without a terminator (unary: cut mid-body).
pub(crate) const CUT: &str = "sim-cut";
/// Sends the head and the prelude, then only pings (unary: blank lines) for ever.
pub(crate) const PING: &str = "sim-ping";
/// Answers 429, with a `retry-after` of one second.
pub(crate) const RATE_LIMITED: &str = "sim-rate-limited";
/// Answers 429, with a `retry-after` of one hour.
pub(crate) const RATE_LIMITED_LONG: &str = "sim-rate-limited-long";
/// Answers as an overloaded server: 529, and in OpenAI's APIs 503.
pub(crate) const OVERLOADED: &str = "sim-overloaded";
/// Answers 200 with a stream that begins with an overload error (unary: 529).
pub(crate) const OVERLOADED_STREAM: &str = "sim-overloaded-stream";
/// Answers 500.
pub(crate) const FAILING: &str = "sim-failing";
/// Answers 400, as to a malformed request.
pub(crate) const REFUSING: &str = "sim-refusing";
/// Answers with the length and the checksum of the request's body.
pub(crate) const LARGE: &str = "sim-large";

/// Asks for each tool of the request once, then answers.
pub(crate) const AGENT: &str = "sim-agent";
/// Asks for the request's first tool again and again, whatever the results are.
pub(crate) const POLLING: &str = "sim-polling";

/// All simulated models, as `GET /v1/models` lists them.
pub(crate) const MODELS: [&str; 15] = [
    HEALTHY,
    SLOW,
    STALL_HEAD,
    STALL_STREAM,
    CUT,
    PING,
    RATE_LIMITED,
    RATE_LIMITED_LONG,
    OVERLOADED,
    OVERLOADED_STREAM,
    FAILING,
    REFUSING,
    LARGE,
    AGENT,
    POLLING,
];

/// The way in which a simulated model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    Healthy,
    Slow,
    StallHead,
    StallStream,
    Cut,
    Ping,
    Large,
    Agent,
    Polling,
    Failing(FailureMode),
}

/// The error with which a simulated model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FailureMode {
    /// Sends a `retry-after` of this many seconds.
    RateLimited {
        retry_after: u32,
    },
    Overloaded,
    /// As `Overloaded` inside a stream; a unary answer is 529 in all dialects.
    OverloadedStream,
    Server,
    Request,
}

impl Behaviour {
    /// The behaviour and the listed name of `model`, if it is simulated.
    pub(super) fn of(model: &str) -> Option<(&'static str, Self)> {
        let name = MODELS.into_iter().find(|name| *name == model)?;
        let behaviour = match name {
            SLOW => Self::Slow,
            STALL_HEAD => Self::StallHead,
            STALL_STREAM => Self::StallStream,
            CUT => Self::Cut,
            PING => Self::Ping,
            LARGE => Self::Large,
            AGENT => Self::Agent,
            POLLING => Self::Polling,
            RATE_LIMITED => Self::Failing(FailureMode::RateLimited { retry_after: 1 }),
            RATE_LIMITED_LONG => Self::Failing(FailureMode::RateLimited { retry_after: 3600 }),
            OVERLOADED => Self::Failing(FailureMode::Overloaded),
            OVERLOADED_STREAM => Self::Failing(FailureMode::OverloadedStream),
            FAILING => Self::Failing(FailureMode::Server),
            REFUSING => Self::Failing(FailureMode::Request),
            _ => Self::Healthy,
        };
        Some((name, behaviour))
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
