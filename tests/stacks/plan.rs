//! What a case does; all times in ticks of a second.

use proptest::prelude::*;
use tower_agent::{ResetOn, Scope};

/// How many ticks, and a quarter, the most patient reader waits for a frame.
pub(crate) const PATIENCE: u64 = 60;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Outermost first; without the terminal response.
    pub(crate) layers: Vec<Kind>,
    pub(crate) terminal: bool,
    /// The request names its run.
    pub(crate) named: bool,
    pub(crate) sse: bool,
    /// Ticks until the head.
    pub(crate) head: u64,
    pub(crate) frames: Vec<Piece>,
    pub(crate) ending: Ending,
    /// Ticks until the ending.
    pub(crate) last: u64,
    pub(crate) reader: Reader,
    pub(crate) action: Option<(u64, Action)>,
    /// A pause from a half tick on, for some ticks.
    pub(crate) pause: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Step {
        window: u64,
        first: u64,
        resets_on: ResetOn,
        scope: Scope,
    },
    Ceiling {
        limit: Option<u64>,
        timeout: Option<u64>,
        scope: Scope,
    },
    Disconnect(Scope),
    Pump(usize),
    Run,
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
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Found), Just(Scope::Run)]
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let resets = prop_oneof![
        4 => Just(ResetOn::Content),
        1 => Just(ResetOn::AnyByte),
        1 => Just(ResetOn::Step)
    ];
    let step = (2..7u64, 2..9u64, any::<bool>(), resets, scope()).prop_map(
        |(window, first, same, resets_on, scope)| Kind::Step {
            window,
            first: if same { window } else { first },
            resets_on,
            scope,
        },
    );
    let totals = prop_oneof![
        (3..14u64).prop_map(|limit| (Some(limit), None)),
        (3..14u64).prop_map(|timeout| (None, Some(timeout))),
        (3..14u64, 3..14u64).prop_map(|(limit, timeout)| (Some(limit), Some(timeout))),
    ];
    let ceiling = (totals, scope()).prop_map(|((limit, timeout), scope)| Kind::Ceiling {
        limit,
        timeout,
        scope,
    });
    let several = (
        prop::collection::vec(step, 0..3),
        prop::collection::vec(ceiling, 0..3),
        prop::collection::vec(scope().prop_map(Kind::Disconnect), 0..3),
        prop_oneof![
            3 => Just(vec![]),
            1 => prop::collection::vec((1..6usize).prop_map(Kind::Pump), 1..3)
        ],
        prop::collection::vec(Just(Kind::Run), 0..3),
    );
    several
        .prop_map(|(a, b, c, d, e)| [a, b, c, d, e].concat())
        .prop_filter("a layer that has a node", |kinds| !kinds.is_empty())
        .prop_shuffle()
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let what = prop_oneof![
        4 => Just(What::Token),
        2 => Just(What::Ping),
        1 => Just(What::Prelude)
    ];
    let piece =
        (prop_oneof![Just(0), 0..7u64], what).prop_map(|(after, what)| Piece { after, what });
    (prop::collection::vec(piece, 0..7), any::<bool>()).prop_map(|(mut pieces, half)| {
        if half {
            pieces.push(Piece {
                after: 1,
                what: What::Half,
            });
        }
        pieces
    })
}

pub(crate) fn plans() -> impl Strategy<Value = Plan> {
    let ending = prop_oneof![
        4 => Just(Ending::Done),
        1 => Just(Ending::DoneAndSilence),
        1 => Just(Ending::Finish),
        1 => Just(Ending::Cut),
        1 => Just(Ending::Fail),
        2 => Just(Ending::Never)
    ];
    let leave = (prop::option::of(0..6usize), prop::option::of(0..6u64)).prop_map(
        |(after_frames, patience)| Leave {
            after_frames,
            patience,
        },
    );
    let reader = (
        prop::collection::vec(prop_oneof![3 => Just(0), 1 => 0..9u64], 12),
        prop::option::weighted(0.3, leave),
    )
        .prop_map(|(away, leaves)| Reader { away, leaves });
    let action = (
        0..12u64,
        prop_oneof![Just(Action::Shutdown), Just(Action::Abort)],
    );
    (
        kinds(),
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.75),
        (0..6u64, pieces(), ending, 0..6u64),
        reader,
        prop::option::weighted(0.15, action),
        prop::option::weighted(0.15, (0..8u64, 1..9u64)),
    )
        .prop_map(
            |(
                layers,
                terminal,
                named,
                sse,
                (head, mut frames, ending, last),
                reader,
                action,
                pause,
            )| {
                let open = matches!(ending, Ending::Fail | Ending::Never | Ending::Cut);
                frames.retain(|piece| piece.what != What::Half || (open && sse));
                Plan {
                    layers,
                    terminal,
                    named,
                    sse,
                    head,
                    frames,
                    ending,
                    last,
                    reader,
                    action,
                    pause,
                }
            },
        )
}

impl Plan {
    pub(crate) fn is_pumped(&self) -> bool {
        self.layers.iter().any(|kind| matches!(kind, Kind::Pump(_)))
    }

    /// A pump waits for the node that it found; one outside of the layer that
    /// opens the call does not see what ends the call alone.
    pub(crate) fn pump_sees_the_call(&self) -> bool {
        let pump = |kind: &Kind| matches!(kind, Kind::Pump(_));
        let opener = self.run_layer().unwrap_or(0);
        !self.layers[..opener].iter().any(pump)
    }

    pub(crate) fn run_layer(&self) -> Option<usize> {
        self.layers.iter().position(|kind| *kind == Kind::Run)
    }

    /// Whether the run outlives its calls: it was opened for an id, or given one.
    pub(crate) fn outlives(&self) -> bool {
        self.named && self.run_layer().is_some()
    }
}
