//! What a case does; all times in ticks of a second.

use proptest::sample::Index;
use tower_agent::{ResetOn, Scope};

use crate::tests::stacks::{
    between::Between,
    outside::{Check, Tool},
    visits::Visits,
};

/// How many ticks, and a quarter, the most patient reader waits for a frame.
pub(crate) const PATIENCE: u64 = 60;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Outermost first; without the terminal response.
    pub(crate) layers: Vec<Kind>,
    pub(crate) terminal: bool,
    /// What the terminal response does for a caller that waits.
    pub(crate) keep_alive: Option<KeepAlive>,
    /// Whether a ceiling directly around a step window is one layer with it.
    pub(crate) fuses: bool,
    /// Layers of a program, each outside of the layer with its number.
    pub(crate) between: Vec<(usize, Between)>,
    /// The request names its run.
    pub(crate) named: bool,
    /// Whether the request asks for a stream; it is given what it asks for.
    pub(crate) sse: bool,
    /// The model that it asks for.
    pub(crate) model: usize,
    pub(crate) budget: Budget,
    /// One for each call that reaches the upstream, the last for all further.
    pub(crate) upstream: Vec<Behaviour>,
    pub(crate) reader: Reader,
    pub(crate) action: Option<(u64, Action)>,
    /// For how many quarter ticks that end is stored, and has not spread.
    pub(crate) gap: u64,
    /// A pause from a half tick on, for some ticks.
    pub(crate) pause: Option<(u64, u64)>,
    pub(crate) tool: Option<Tool>,
    pub(crate) check: Option<Check>,
    /// Several requests of the run at once, in place of one.
    pub(crate) visits: Option<Visits>,
    /// How often the history of the request shows the same action.
    pub(crate) actions: u32,
    /// Until when the upstream refuses connections.
    pub(crate) heals: u64,
    /// What the caller announces.
    pub(crate) announces: Option<Announced>,
    /// How many requests of the same run follow.
    pub(crate) again: usize,
    /// Where what the upstream says comes in two frames.
    pub(crate) cuts: Vec<Cut>,
    /// The pieces that come in one frame with the next.
    pub(crate) joins: Vec<Index>,
    /// Whether the body says at its last frame that it is over.
    pub(crate) knows_its_end: bool,
    /// Whether an answer that is no stream is a document of JSON.
    pub(crate) json: bool,
    /// Where the upstream states the tokens of an answer.
    pub(crate) states: States,
}

/// A cut through one piece of what the upstream says, and the ticks until the rest of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) piece: Index,
    pub(crate) byte: Index,
    pub(crate) wait: u64,
}

/// Where the upstream states the tokens of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum States {
    /// Nowhere.
    Nothing,
    /// In the last piece.
    Total,
    /// In the last piece, and in each token of a stream those until then.
    All,
}

/// A header, and the ticks that it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// The whole of the answer.
    Whole(u64),
    /// The head of a stream.
    Head(u64),
    /// The silence after it.
    Silence(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Step {
        window: u64,
        first: u64,
        resets_on: ResetOn,
        scope: Scope,
        observes: bool,
    },
    /// The local profile, with the interval of its heartbeats.
    Local(u64, Scope),
    Floor(Floor),
    Ceiling {
        limit: Option<u64>,
        timeout: Option<u64>,
        scope: Scope,
        observes: bool,
        /// What the caller announced counts too.
        caller: bool,
    },
    Disconnect(Scope),
    /// How long it reads on alone.
    Pump(Option<u64>),
    TurnCap(u32),
    /// A run waits at its cap in place of its end: each turn for some ticks, the run for more.
    PausingTurnCap {
        turns: u32,
        wait: u64,
        limit: u64,
    },
    /// Output tokens of a run.
    TokenCap(u32),
    OwnerCap {
        runs: Option<u32>,
        turns: Option<u32>,
        /// Output tokens.
        tokens: Option<u32>,
    },
    /// No request of a plan is a stop phrase.
    StopPhrase,
    Loops {
        stop: u32,
        observes: bool,
    },
    KeepAlive(KeepAlive),
    Gate {
        every: u64,
        patience: Option<u64>,
        silence: Option<u64>,
    },
    Run,
    Retry {
        attempts: u32,
        /// Ticks; exactly so many, or a random part of them.
        delay: u64,
        jitter: bool,
        hold: Option<u64>,
        /// The longest `retry-after` that is waited for.
        patience: u64,
    },
    Fallback {
        candidates: usize,
        hold: Option<u64>,
    },
}

/// A floor on the speed of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Floor {
    /// The bytes of text that a stream has to send in a tick. Four are a token.
    pub(crate) bytes: u64,
    /// Eight ticks, or more of these.
    pub(crate) over: u64,
    pub(crate) scope: Scope,
    pub(crate) observes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeepAlive {
    /// From one notice to the next, as a comment.
    pub(crate) notices: Option<u64>,
    pub(crate) every: Option<u64>,
    pub(crate) early: Option<u64>,
}

/// What all retry layers of a plan share, and what the run may fail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// What one first attempt deposits, in thousandths of a repeat.
    pub(crate) deposit: u64,
    /// Repeats per tick.
    pub(crate) floor: u32,
    /// Attempts inside a call count towards what the run may fail.
    pub(crate) every: bool,
    pub(crate) per_error_key: Option<u32>,
    pub(crate) per_run: Option<u32>,
    /// Whether an attempt is worth it however little time is left.
    pub(crate) hasty: bool,
}

/// What the upstream does with one call.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    /// Ticks until it is ready for it, unless it is the first.
    pub(crate) busy: u64,
    /// Ticks until the head.
    pub(crate) head: u64,
    pub(crate) head_is: Head,
    pub(crate) frames: Vec<Piece>,
    /// An error comes before the first token, in the place of it.
    pub(crate) error_first: bool,
    pub(crate) ending: Ending,
    /// Ticks until the ending.
    pub(crate) last: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// The connection breaks before it.
    Broken,
    /// A status, and after how many ticks to come again.
    Status(u16, Option<u64>),
}

impl Head {
    pub(crate) const fn is_ok(self) -> bool {
        matches!(self, Self::Status(200, _))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) after: u64,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Token,
    Ping,
    Prelude,
    /// The beginning of an event that never ends; only as the last.
    Half,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The terminator, then the end.
    Done,
    /// The terminator, then silence.
    DoneAndSilence,
    /// A finish reason, then the end.
    Finish,
    /// The end.
    Cut,
    Fail,
    Never,
}

#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// Ticks of absence before each frame.
    pub(crate) away: Vec<u64>,
    pub(crate) leaves: Option<Leave>,
}

/// When the reader drops what it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leave {
    /// None: while it waits for the head.
    pub(crate) after_frames: Option<usize>,
    /// So many ticks and a quarter into the wait for the next; at once if none.
    pub(crate) patience: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    /// Somebody ends the run.
    Shutdown,
    /// Somebody ends the call.
    Abort,
    /// Somebody ends the attempt that is under way.
    Attempt,
}

impl Plan {
    /// Whether the layer with this number is a ceiling directly around a step window, or a floor.
    pub(crate) fn is_pair(&self, index: usize) -> bool {
        let is_apart = self.between.iter().any(|(at, _)| *at == index + 1);
        let [Some(outer), Some(inner)] = [index, index + 1].map(|index| self.layers.get(index))
        else {
            return false;
        };
        let is_step = matches!(inner, Kind::Step { .. } | Kind::Local(..) | Kind::Floor(_));
        matches!(outer, Kind::Ceiling { .. }) && is_step && !is_apart
    }

    /// Whether a task of its own polls the upstream.
    pub(crate) fn is_pumped(&self) -> bool {
        let pump = |kind: &Kind| matches!(kind, Kind::Pump(..));
        let spawns = |(_, layer): &(usize, Between)| layer.spawns();
        self.layers.iter().any(pump) || self.between.iter().any(spawns)
    }

    /// A pump waits for the node that it found; one outside of the layer that
    /// opens the call does not see what ends the call alone.
    pub(crate) fn pump_sees_the_call(&self) -> bool {
        let pump = |kind: &Kind| matches!(kind, Kind::Pump(..));
        let opener = self.run_layer().unwrap_or(0);
        !self.layers[..opener].iter().any(pump) && self.between.iter().all(|(at, _)| *at > opener)
    }

    /// How many tasks live as long as the stack.
    pub(crate) fn workers(&self) -> usize {
        let buffer = |(_, layer): &&(usize, Between)| *layer == Between::Buffer;
        self.between.iter().filter(buffer).count()
    }

    /// The layer that opens the call. One that finds an attempt opens nothing.
    pub(crate) fn run_layer(&self) -> Option<usize> {
        let outside = &self.layers[..self.first_trying().unwrap_or(self.layers.len())];
        outside.iter().position(|kind| *kind == Kind::Run)
    }

    /// The outermost layer that may try more than once.
    pub(crate) fn first_trying(&self) -> Option<usize> {
        self.layers.iter().position(Kind::tries)
    }

    /// Whether there is one attempt at most, so that what tries is not seen.
    pub(crate) fn tries_once(&self) -> bool {
        self.layers.iter().all(|kind| match kind {
            Kind::Retry { attempts, .. } => *attempts == 1,
            Kind::Fallback { candidates, .. } => *candidates == 1,
            _ => true,
        })
    }

    /// How long the innermost layer that tries holds an answer.
    pub(crate) fn hold(&self) -> Option<u64> {
        let mut layers = self.layers.iter().rev();
        layers.find_map(|kind| match kind {
            Kind::Retry { hold, .. } | Kind::Fallback { hold, .. } => Some(*hold),
            _ => None,
        })?
    }

    /// The least ceiling of the call or its run, in ticks.
    pub(crate) fn call_limit(&self) -> Option<u64> {
        let first = self.first_trying().unwrap_or(self.layers.len());
        let limits = self.layers.iter().enumerate().filter_map(|(index, kind)| {
            let Kind::Ceiling {
                limit,
                timeout,
                scope,
                observes: false,
                ..
            } = kind
            else {
                return None;
            };
            let of_call = index < first || *scope == Scope::Run;
            of_call.then(|| limit.iter().chain(timeout).min().copied())?
        });
        limits.min()
    }

    /// Into how many parts the time of a call may be divided.
    pub(crate) fn shares(&self) -> u64 {
        let candidates = self.layers.iter().map(|kind| match kind {
            Kind::Fallback { candidates, .. } => *candidates as u64,
            _ => 1,
        });
        candidates.product()
    }

    /// Whether a head may come before there is one.
    pub(crate) fn is_early(&self) -> bool {
        let early = self.keep_alive.and_then(|keep_alive| keep_alive.early);
        self.sse && early.is_some()
    }

    /// How long pumps read on after the reader left.
    pub(crate) fn drains(&self) -> u64 {
        let drains = self.layers.iter().map(|kind| match kind {
            Kind::Pump(drain) => drain.unwrap_or(0),
            _ => 0,
        });
        drains.sum()
    }

    /// Whether the history of the request is a loop.
    pub(crate) fn loops(&self) -> bool {
        self.layers.iter().any(|kind| match kind {
            Kind::Loops { stop, observes } => !observes && *stop <= self.actions,
            _ => false,
        })
    }

    /// How many turns a run of many calls may have.
    pub(crate) fn turns(&self) -> Option<u32> {
        let inside = &self.layers[self.run_layer()?..];
        let caps = inside.iter().filter_map(|kind| match kind {
            Kind::TurnCap(turns) => Some(*turns),
            _ => None,
        });
        caps.min()
    }

    /// What happens to the call of that number.
    pub(crate) fn behaviour(&self, call: usize) -> &Behaviour {
        &self.upstream[call.min(self.upstream.len() - 1)]
    }

    /// Whether a layer caps tokens or owners.
    pub(crate) fn has_caps(&self) -> bool {
        let caps = |kind: &Kind| matches!(kind, Kind::TokenCap(_) | Kind::OwnerCap { .. });
        self.layers.iter().any(caps)
    }

    /// Whether one of these layers counts tokens against a cap. Of those that cap owners, the outermost
    /// counts.
    pub(crate) fn counts_tokens(layers: &[Kind]) -> bool {
        let owner = layers.iter().find_map(|kind| match kind {
            Kind::OwnerCap { tokens, .. } => Some(tokens.is_some()),
            _ => None,
        });
        let tokens = |kind: &Kind| matches!(kind, Kind::TokenCap(_));
        owner == Some(true) || layers.iter().any(tokens)
    }

    /// Whether a cap may end an attempt, and leave the call to a clock.
    pub(crate) fn caps_attempts(&self) -> bool {
        let inside = self.first_trying().unwrap_or(self.layers.len());
        let caps = |kind: &Kind| matches!(kind, Kind::OwnerCap { .. });
        self.layers[inside..].iter().any(caps)
    }

    /// The floors that end something, each with its place.
    pub(crate) fn floors(&self) -> impl Iterator<Item = (usize, Floor)> {
        let layers = self.layers.iter().enumerate();
        layers.filter_map(|(index, kind)| match kind {
            Kind::Floor(floor) if !floor.observes => Some((index, *floor)),
            _ => None,
        })
    }

    /// Whether an answer is held until its stream has shown its speed.
    pub(crate) fn holds_content(&self) -> bool {
        let tries = self.layers.iter().rposition(Kind::tries);
        let is_inside = |(index, floor): (usize, Floor)| {
            floor.scope == Scope::Found && tries.is_some_and(|tries| index > tries)
        };
        self.hold().is_some() && self.floors().any(is_inside)
    }

    /// Whether the run outlives its calls: it was opened for an id, or given one.
    pub(crate) fn outlives(&self) -> bool {
        self.named && self.run_layer().is_some()
    }
}

impl Budget {
    /// Whether a run may be ended for what its calls failed.
    pub(crate) const fn limits(&self) -> bool {
        self.per_error_key.is_some() || self.per_run.is_some()
    }
}

impl Behaviour {
    /// Whether it begins as an answer that serves.
    pub(crate) const fn is_serving(&self) -> bool {
        self.head_is.is_ok() && !self.error_first
    }
}

impl Kind {
    /// Whether it opens attempts.
    pub(crate) const fn tries(&self) -> bool {
        matches!(self, Self::Retry { .. } | Self::Fallback { .. })
    }
}
