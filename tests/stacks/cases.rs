//! Which plans there are.

use std::ops::Range;

use proptest::{prelude::*, sample::Index};
use tower_agent::{ResetOn, Scope};

use crate::tests::stacks::{
    between::between,
    plan::{
        Action, Announced, Behaviour, Budget, Cut, Ending, Floor, Head, KeepAlive, Kind, Leave,
        Piece, Plan, Reader, States, What,
    },
};

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Found), Just(Scope::Run)]
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let resets = prop_oneof![
        4 => Just(ResetOn::Content),
        1 => Just(ResetOn::AnyByte),
        1 => Just(ResetOn::Step)
    ];
    let observes = || prop::bool::weighted(0.15);
    let step = (2..7u64, 2..9u64, any::<bool>(), resets, scope(), observes()).prop_map(
        |(window, first, same, resets_on, scope, observes)| Kind::Step {
            window,
            first: if same { window } else { first },
            resets_on,
            scope,
            observes,
        },
    );
    let local = (1..4u64, scope()).prop_map(|(every, scope)| Kind::Local(every, scope));
    let step = prop_oneof![5 => step, 1 => local];
    let totals = prop_oneof![
        (3..14u64).prop_map(|limit| (Some(limit), None)),
        (3..14u64).prop_map(|timeout| (None, Some(timeout))),
        (3..14u64, 3..14u64).prop_map(|(limit, timeout)| (Some(limit), Some(timeout))),
    ];
    let ceiling = (totals, scope(), observes(), prop::bool::weighted(0.3)).prop_map(
        |((limit, timeout), scope, observes, caller)| Kind::Ceiling {
            limit,
            timeout,
            scope,
            observes,
            caller,
        },
    );
    let hold = || prop::option::weighted(0.3, 1..6u64);
    let delay = prop_oneof![1 => Just(0), 3 => 1..7u64];
    let attempts = prop_oneof![1 => Just(1), 4 => 2..5u32];
    let retry = (attempts, delay, prop::bool::weighted(0.2), hold(), 0..4u64).prop_map(
        |(attempts, delay, jitter, hold, patience)| Kind::Retry {
            attempts,
            delay,
            jitter,
            hold,
            patience,
        },
    );
    let fallback =
        (2..4usize, hold()).prop_map(|(candidates, hold)| Kind::Fallback { candidates, hold });
    let trying = prop_oneof![
        1 => Just(vec![]),
        2 => (
            prop::collection::vec(retry, 0..3),
            prop::collection::vec(fallback, 0..3)
        )
            .prop_map(|(a, b)| [a, b].concat())
    ];
    let drain = prop::option::weighted(0.3, 1..9u64);
    let pump = (1..6usize, drain).prop_map(|(_, drain)| Kind::Pump(drain));
    let several = (
        trying,
        prop::collection::vec(step, 0..3),
        prop::collection::vec(ceiling, 0..3),
        prop::collection::vec(scope().prop_map(Kind::Disconnect), 0..3),
        prop_oneof![
            3 => Just(vec![]),
            1 => prop::collection::vec(pump, 1..3)
        ],
        prop::collection::vec(Just(Kind::Run), 0..3),
        guards(),
    );
    (several, 1..4u64)
        .prop_map(|((trying, steps, ceilings, c, d, e, guards), times)| {
            // Whoever tries more than once has more time.
            let times = if trying.is_empty() { 1 } else { times };
            let timed = [steps, ceilings].concat().into_iter();
            let timed = timed.map(|kind| kind.longer(times)).collect();
            [trying, timed, c, d, e, guards].concat()
        })
        .prop_filter("a layer that has a node", |kinds| {
            let opens = |kind: &Kind| !matches!(kind, Kind::KeepAlive(_));
            kinds.iter().any(opens)
        })
        .prop_shuffle()
}

/// The layers that look at what an agent does and at what it is told.
fn guards() -> impl Strategy<Value = Vec<Kind>> {
    let loops = (1..4u32, prop::bool::weighted(0.2))
        .prop_map(|(stop, observes)| Kind::Loops { stop, observes });
    let early = prop::option::weighted(0.3, 0..6u64);
    let times = || prop::option::weighted(0.6, 1..5u64);
    let keep_alive = (times(), times(), early).prop_map(|(notices, every, early)| {
        Kind::KeepAlive(KeepAlive {
            notices,
            every,
            early,
        })
    });
    let gate = (
        1..4u64,
        prop::option::weighted(0.3, 0..9u64),
        prop::option::weighted(0.3, 1..5u64),
    );
    let gate = gate.prop_map(|(every, patience, silence)| Kind::Gate {
        every,
        patience,
        silence,
    });
    let guard = prop_oneof![
        2 => (1..4u32).prop_map(Kind::TurnCap),
        1 => loops,
        3 => keep_alive,
        2 => gate,
    ];
    prop_oneof![2 => Just(vec![]), 3 => prop::collection::vec(guard, 1..4)]
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

/// One that serves, as far as the ending does.
fn serving() -> impl Strategy<Value = Behaviour> {
    let ending = prop_oneof![
        4 => Just(Ending::Done),
        1 => Just(Ending::DoneAndSilence),
        1 => Just(Ending::Finish),
        1 => Just(Ending::Cut),
        1 => Just(Ending::Fail),
        2 => Just(Ending::Never)
    ];
    let busy = prop_oneof![3 => Just(0), 1 => 1..5u64];
    (busy, 0..6u64, pieces(), ending, 0..6u64).prop_map(|(busy, head, frames, ending, last)| {
        Behaviour {
            busy,
            head,
            head_is: Head::Status(200, None),
            frames,
            error_first: false,
            ending,
            last,
        }
    })
}

/// One that fails more often than not.
fn failing() -> impl Strategy<Value = Behaviour> {
    let wait = || prop::option::of(0..5u64);
    let head = prop_oneof![
        4 => Just(Head::Status(200, None)),
        1 => Just(Head::Broken),
        1 => Just(Head::Status(400, None)),
        2 => wait().prop_map(|wait| Head::Status(429, wait)),
        2 => Just(Head::Status(500, None)),
        2 => wait().prop_map(|wait| Head::Status(503, wait))
    ];
    (serving(), head, any::<bool>()).prop_map(|(serving, head_is, error_first)| Behaviour {
        head_is,
        error_first: error_first && head_is.is_ok(),
        ..serving
    })
}

fn budgets() -> impl Strategy<Value = Budget> {
    let deposit = prop_oneof![
 1 => Just(0), 1 => Just(500), 2 => Just(1000), 1 => Just(1500), 2 => Just(3000)];
    let limit = || prop::option::weighted(0.4, 0..4u32);
    (
        deposit,
        0..3u32,
        any::<bool>(),
        limit(),
        limit(),
        any::<bool>(),
    )
        .prop_map(
            |(deposit, floor, every, per_error_key, per_run, hasty)| Budget {
                deposit,
                floor,
                every,
                per_error_key,
                per_run,
                hasty,
            },
        )
}

fn readers() -> impl Strategy<Value = Reader> {
    let leave = (prop::option::of(0..6usize), prop::option::of(0..6u64)).prop_map(
        |(after_frames, patience)| Leave {
            after_frames,
            patience,
        },
    );
    (
        prop::collection::vec(prop_oneof![3 => Just(0), 1 => 0..9u64], 12),
        prop::option::weighted(0.3, leave),
    )
        .prop_map(|(away, leaves)| Reader { away, leaves })
}

/// What the agent did before, until when the upstream is down, what the caller
/// announces, and how many requests follow.
fn harness() -> impl Strategy<Value = (u32, u64, Option<Announced>, usize)> {
    let announces = prop_oneof![
        2 => (1..14u64).prop_map(Announced::Whole),
        1 => (1..14u64).prop_map(Announced::Head),
        1 => (1..9u64).prop_map(Announced::Silence)
    ];
    (
        prop_oneof![3 => Just(0), 1 => 1..4u32],
        prop_oneof![1 => Just(0), 1 => 1..12u64],
        prop::option::weighted(0.4, announces),
        0..5usize,
    )
}

pub(crate) fn plans() -> impl Strategy<Value = Plan> {
    let action = (
        0..12u64,
        prop_oneof![
            Just(Action::Shutdown),
            Just(Action::Abort),
            Just(Action::Attempt)
        ],
    );
    (
        kinds(),
        any::<bool>(),
        any::<bool>(),
        prop::bool::weighted(0.75),
        (0..4usize, budgets(), prop::bool::weighted(0.2)),
        (prop::collection::vec(failing(), 0..5), serving()),
        readers(),
        (
            prop::option::weighted(0.2, action),
            prop_oneof![1 => Just(0), 2 => 1..13u64],
        ),
        prop::option::weighted(0.15, (0..8u64, 1..9u64)),
        harness(),
    )
        .prop_map(
            |(
                layers,
                terminal,
                named,
                sse,
                (model, budget, once),
                upstream,
                reader,
                (action, gap),
                pause,
                (actions, heals, announces, again),
            )| {
                let (mut upstream, last) = upstream;
                upstream.push(last);
                // A stream of a terminator alone is a fault, which the field's cases have.
                let says = |piece: &Piece| matches!(piece.what, What::Token | What::Prelude);
                let is_whole = |ending| matches!(ending, Ending::Done | Ending::DoneAndSilence);
                for behaviour in &mut upstream {
                    if is_whole(behaviour.ending) && !behaviour.frames.iter().any(says) {
                        let what = What::Prelude;
                        behaviour.frames.insert(0, Piece { after: 0, what });
                    }
                }
                let mut plan = Plan {
                    layers,
                    terminal,
                    keep_alive: None,
                    fuses: false,
                    between: vec![],
                    named,
                    sse,
                    model,
                    budget,
                    upstream,
                    reader,
                    action,
                    gap,
                    pause,
                    tool: None,
                    check: None,
                    visits: None,
                    actions,
                    heals,
                    announces,
                    again,
                    cuts: vec![],
                    joins: vec![],
                    knows_its_end: false,
                    json: false,
                    states: States::Nothing,
                };
                if once {
                    plan.try_once();
                }
                plan.make_sense();
                plan
            },
        )
}

/// The same plans, each with so many layers of a program between those of the crate.
pub(crate) fn plans_with_between(layers: Range<usize>) -> impl Strategy<Value = Plan> {
    (plans(), prop::collection::vec(between(), layers)).prop_map(|(plan, between)| {
        let places = plan.layers.len() + 1;
        let between = between.into_iter().map(|(at, layer)| (at % places, layer));
        Plan {
            between: between.collect(),
            ..plan
        }
    })
}

/// The same plans, with caps on tokens and owners, and a layer for stop phrases, at any place.
pub(crate) fn plans_with_caps() -> impl Strategy<Value = Plan> {
    let cap = |weight, most| prop::option::weighted(weight, 1..most);
    let owner = (cap(0.3, 3u32), cap(0.4, 4u32), cap(0.6, 5u32));
    let owner = owner.prop_map(|(runs, turns, tokens)| Kind::OwnerCap {
        runs,
        turns,
        tokens,
    });
    let kind = prop_oneof![
        2 => (1..4u32).prop_map(Kind::TokenCap),
        2 => owner,
        1 => Just(Kind::StopPhrase),
    ];
    let places = prop::collection::vec((any::<Index>(), kind), 1..3);
    (plans(), places).prop_map(|(mut plan, places)| {
        for (place, kind) in places {
            plan.layers.insert(place.index(plan.layers.len() + 1), kind);
        }
        plan
    })
}

/// The same plans with longer limits, and with a floor on speed at one place or two. Most of the
/// answers begin with tokens, one after another, and most answers are held for long.
pub(crate) fn plans_with_floor() -> impl Strategy<Value = Plan> {
    let over = prop_oneof![3 => Just(8), 1 => Just(16)];
    let observes = prop::bool::weighted(0.15);
    let floor = (1..9u64, over, scope(), observes).prop_map(|(bytes, over, scope, observes)| {
        Kind::Floor(Floor {
            bytes,
            over,
            scope,
            observes,
        })
    });
    let floors = prop::collection::vec((any::<Index>(), floor), 1..3);
    let after = prop_oneof![1 => Just(0), 6 => Just(1), 1 => 2..4u64];
    let what = prop_oneof![15 => Just(What::Token), 1 => Just(What::Ping)];
    let piece = (after, what).prop_map(|(after, what)| Piece { after, what });
    let tokens = prop::collection::vec(prop::collection::vec(piece, 0..40), 6);
    let holds = prop::collection::vec(prop::option::weighted(0.7, 10..40u64), 4);
    (plans(), floors, tokens, holds).prop_map(|(mut plan, floors, tokens, holds)| {
        plan.layers = plan.layers.into_iter().map(|it| it.longer(6)).collect();
        let trying = plan.layers.iter_mut().filter_map(|kind| match kind {
            Kind::Retry { hold, .. } | Kind::Fallback { hold, .. } => Some(hold),
            _ => None,
        });
        for (hold, longer) in trying.zip(holds) {
            *hold = longer;
        }
        let saying = plan.upstream.iter_mut().filter(|it| it.is_serving());
        for (behaviour, mut tokens) in saying.zip(tokens) {
            tokens.append(&mut behaviour.frames);
            behaviour.frames = tokens;
        }
        for (place, kind) in floors {
            plan.layers.insert(place.index(plan.layers.len() + 1), kind);
        }
        plan
    })
}

/// The same plans, whose upstream sends some of its events in two frames, and several in one. Half of
/// the answers that are no streams are JSON, and half of all say at their last frame that it is one.
/// Half of the answers state their tokens.
pub(crate) fn plans_with_frames() -> impl Strategy<Value = Plan> {
    let wait = prop_oneof![2 => Just(0), 1 => 1..4u64];
    let cut = (any::<Index>(), any::<Index>(), wait);
    let cut = cut.prop_map(|(piece, byte, wait)| Cut { piece, byte, wait });
    let cuts = prop::collection::vec(cut, 0..4);
    let joins = prop::collection::vec(any::<Index>(), 0..4);
    let plans = prop_oneof![plans(), plans_with_caps()];
    let states = prop_oneof![
        2 => Just(States::Nothing),
        1 => Just(States::Total),
        1 => Just(States::All),
    ];
    let plans = (plans, cuts, joins, any::<[bool; 2]>(), states);
    plans.prop_map(|(plan, cuts, joins, [ends, json], states)| Plan {
        cuts,
        joins,
        knows_its_end: ends,
        json: json && !plan.sse,
        states,
        ..plan
    })
}

impl Kind {
    fn longer(mut self, times: u64) -> Self {
        match &mut self {
            Self::Step { window, first, .. } => {
                (*window, *first) = (*window * times, *first * times)
            }
            Self::Ceiling { limit, timeout, .. } => {
                for ticks in limit.iter_mut().chain(timeout) {
                    *ticks *= times;
                }
            }
            _ => {}
        }
        self
    }
}

impl Plan {
    fn try_once(&mut self) {
        for kind in &mut self.layers {
            match kind {
                Kind::Retry { attempts, .. } => *attempts = 1,
                Kind::Fallback { candidates, .. } => *candidates = 1,
                _ => {}
            }
        }
    }

    /// Without a layer that tries again there is one call, which serves, and no
    /// attempt to end; half an event is never followed by another.
    ///
    /// What is done for a caller that waits is no layer of its own: the terminal response does it.
    fn make_sense(&mut self) {
        self.layers.retain(|kind| {
            if let Kind::KeepAlive(keep_alive) = kind {
                self.keep_alive.get_or_insert(*keep_alive);
                self.terminal = true;
            }
            !matches!(kind, Kind::KeepAlive(_))
        });
        let sse = self.sse;
        if self.tries_once() {
            self.upstream.drain(..self.upstream.len() - 1);
            self.action = self.action.map(|(at, action)| match action {
                Action::Attempt => (at, Action::Abort),
                other => (at, other),
            });
        }
        // It is down where somebody waits for it.
        let waits = |kind: &Kind| matches!(kind, Kind::Gate { .. });
        let opener = self.run_layer().unwrap_or(0);
        let outside = self.layers[..opener].iter().any(waits);
        // Further out a gate would have it open one call after the other.
        if outside || !self.layers.iter().any(waits) {
            self.heals = 0;
        }
        for behaviour in &mut self.upstream {
            let ending = behaviour.ending;
            let open = matches!(ending, Ending::Fail | Ending::Never | Ending::Cut);
            let half = open && sse && !behaviour.error_first;
            behaviour
                .frames
                .retain(|piece| piece.what != What::Half || half);
            if behaviour.error_first {
                behaviour.frames.retain(|piece| piece.what != What::Token);
            }
        }
    }
}
