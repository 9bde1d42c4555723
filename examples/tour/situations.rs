//! What goes wrong, eight times, and the limits that both stacks have then.

use std::time::Duration;

use crate::{
    caller::CallerPlan,
    upstream::{Does, FIRST, SECOND},
};

/// The limits of both stacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackLimits {
    /// For a turn of several calls: of silence, or, in the plain stack, in all.
    pub(crate) turn: Duration,
    /// For a call, all its attempts included.
    pub(crate) total: Duration,
    /// For an attempt: of silence, or, in the plain stack, until its head.
    pub(crate) attempt: Duration,
    /// The first wait before a retry.
    pub(crate) backoff: Duration,
    pub(crate) attempts: u32,
    pub(crate) models: &'static [&'static str],
}

const LIMITS: StackLimits = StackLimits {
    turn: ms(1000),
    total: ms(5000),
    attempt: ms(500),
    backoff: ms(300),
    attempts: 2,
    models: &[FIRST, SECOND],
};

/// What goes wrong, and who asks.
pub(crate) struct Situation {
    pub(crate) name: &'static str,
    pub(crate) does: Does,
    pub(crate) caller: CallerPlan,
    pub(crate) limits: StackLimits,
    /// What our stack may call.
    pub(crate) calls: usize,
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn situation(name: &'static str, does: Does, caller: CallerPlan, calls: usize) -> Situation {
    Situation {
        name,
        does,
        caller,
        limits: LIMITS,
        calls,
    }
}

pub(crate) const SITUATIONS: [Situation; 8] = [
    situation(
        "six slow steps, each alive, and a limit of 1 s",
        Does::Answers(ms(300)),
        CallerPlan::Steps(6),
        6,
    ),
    situation(
        "a stream that hangs after its head",
        Does::HangsAfterTheHead,
        CallerPlan::Reads,
        1,
    ),
    situation(
        "the caller leaves while the model hangs",
        Does::Hangs,
        CallerPlan::Leaves(ms(200)),
        1,
    ),
    Situation {
        limits: StackLimits {
            // Another model would serve at once.
            models: &[FIRST],
            ..LIMITS
        },
        ..situation(
            "the caller leaves in the wait before a retry",
            // Asked for, so that the wait is no matter of luck.
            Does::Refuses(429, Some(1)),
            CallerPlan::Leaves(ms(100)),
            1,
        )
    },
    Situation {
        limits: StackLimits {
            total: ms(500),
            models: &[FIRST],
            ..LIMITS
        },
        ..situation(
            "the call's limit is the attempt's limit",
            Does::Hangs,
            CallerPlan::Reads,
            1,
        )
    },
    situation(
        "an error as first event of a 200",
        Does::FailsInTheStream,
        CallerPlan::Reads,
        3,
    ),
    situation(
        "a 400: the request is at fault",
        Does::Refuses(400, None),
        CallerPlan::Reads,
        1,
    ),
    situation(
        "a 429 that asks to wait for an hour",
        Does::Refuses(429, Some(3600)),
        CallerPlan::Reads,
        2,
    ),
];
