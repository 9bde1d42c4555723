//! The simulated models: what each does with a request.

/// Answers at once, whole and well-formed.
pub(crate) const HEALTHY: &str = "sim-healthy";
/// Slow but alive: a delta per second, twenty of them; unary answers after 3 s.
pub(crate) const SLOW: &str = "sim-slow";
/// Accepts the request and never sends a head.
pub(crate) const STALL_HEAD: &str = "sim-stall-head";
/// Sends the first deltas (unary: half of the body), then nothing, and keeps the connection open.
pub(crate) const STALL_STREAM: &str = "sim-stall-stream";
/// Sends the first deltas, then ends cleanly without a terminator (unary: cut mid-body).
pub(crate) const CUT: &str = "sim-cut";
/// Sends the head and the prelude, then only pings (unary: blank lines) for ever.
pub(crate) const PING: &str = "sim-ping";

/// All simulated models, as `GET /v1/models` lists them.
pub(crate) const MODELS: [&str; 6] = [HEALTHY, SLOW, STALL_HEAD, STALL_STREAM, CUT, PING];

/// What a simulated model does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    Healthy,
    Slow,
    StallHead,
    StallStream,
    Cut,
    Ping,
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
            _ => Self::Healthy,
        };
        Some((name, behaviour))
    }

    /// The answer in full, delta by delta.
    pub(super) fn deltas(self) -> Vec<String> {
        match self {
            Self::Slow => (1..=20).map(|count| format!("{count} ")).collect(),
            _ => ["Hello", " from", " the", " simulated", " upstream", "."]
                .map(String::from)
                .into(),
        }
    }
}
