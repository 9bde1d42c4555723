use crate::run::{
    reason::TerminalReason,
    step::ResetOn,
    tree::{NodeKind, clocks::Clock},
};

/// What may happen to a tree. Nodes, waiters and windows are chosen modulo how
/// many there are, times are multiples of ten milliseconds: so that every
/// event is possible at any time, and deadlines often coincide.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Open {
        under: u8,
        kind: NodeKind,
    },
    End {
        node: u8,
        reason: TerminalReason,
    },
    Settle {
        node: u8,
        reason: TerminalReason,
    },
    /// By the end of another node, if that has one.
    SettleAs {
        node: u8,
        other: u8,
    },
    Follow {
        node: u8,
        other: u8,
    },
    /// Before now, if negative.
    Tighten {
        node: u8,
        clock: Clock,
        ahead: i8,
    },
    /// The limit to the commit is one no more.
    Lapse {
        node: u8,
    },
    Record {
        node: u8,
        sign: ResetOn,
        ago: u8,
    },
    /// Running from the start.
    AddWindow {
        node: u8,
        /// None if it is a caller's.
        resets_on: Option<ResetOn>,
        length: u8,
        task: u8,
    },
    RunWindow {
        window: u8,
        ago: u8,
        length: u8,
        task: u8,
    },
    MoveWindow {
        window: u8,
        task: u8,
    },
    StopWindow {
        window: u8,
    },
    RemoveWindow {
        window: u8,
    },
    /// After time has passed.
    Check {
        node: u8,
        task: Option<u8>,
        after: u8,
    },
    Advance {
        by: u8,
    },
    Pause {
        node: u8,
    },
    Resume {
        node: u8,
    },
    Enter {
        node: u8,
    },
    Leave {
        node: u8,
    },
    Close {
        node: u8,
        reason: TerminalReason,
        ahead: u8,
    },
    /// At a cap, which spares the calls that are open.
    CloseAtCap {
        node: u8,
        /// Zero for no limit.
        ahead: u8,
    },
    Wait {
        node: u8,
        waker: u8,
        below: bool,
    },
    /// The same registration with another waker.
    Rewait {
        wait: u8,
        waker: u8,
        below: bool,
    },
    Unwait {
        wait: u8,
    },
    Drop {
        node: u8,
    },
}

pub(super) const TASKS: u8 = 2;
pub(super) const WAKERS: u8 = 8;

impl Event {
    /// Every four bytes are an event: cheap to draw, and shrinks to the first.
    pub(super) fn decode([what, a, b, c]: [u8; 4]) -> Self {
        let kinds = [
            NodeKind::Call,
            NodeKind::Attempt,
            NodeKind::Run,
            NodeKind::Tool,
        ];
        let signs = [ResetOn::Content, ResetOn::Step, ResetOn::AnyByte];
        let reasons = [
            TerminalReason::Aborted,
            TerminalReason::Completed,
            TerminalReason::ClientDisconnect,
            TerminalReason::Shutdown,
            TerminalReason::Superseded,
            TerminalReason::TurnCap,
            TerminalReason::RetryBudget,
            TerminalReason::RunErrors,
            TerminalReason::Stuck,
            TerminalReason::LoopDetected,
            TerminalReason::HardCeiling,
        ];
        let kind = kinds[usize::from(b) % kinds.len()];
        let sign = signs[usize::from(b) % signs.len()];
        let reason = reasons[usize::from(b) % reasons.len()].clone();
        let ahead = i8::try_from(b % 12).unwrap_or(0) - 1;
        match what % 64 {
            0..=8 => Self::Open { under: a, kind },
            9 => Self::Enter { node: a },
            10 if c % 3 == 0 => Self::CloseAtCap {
                node: a,
                ahead: b % 6,
            },
            10 => Self::Close {
                node: a,
                reason,
                ahead: 1 + b % 6,
            },
            11..=13 => Self::End { node: a, reason },
            14 => Self::Settle { node: a, reason },
            15..=16 => Self::Follow { node: a, other: b },
            17..=20 => Self::Tighten {
                node: a,
                clock: Clock::Ceiling,
                ahead,
            },
            21 => Self::Tighten {
                node: a,
                clock: Clock::Timeout,
                ahead,
            },
            22 => Self::Tighten {
                node: a,
                clock: Clock::Announced,
                ahead,
            },
            23 => Self::Tighten {
                node: a,
                clock: Clock::Share,
                ahead,
            },
            24..=26 => Self::Record {
                node: a,
                sign,
                ago: c % 4,
            },
            27..=31 => Self::AddWindow {
                node: a,
                resets_on: (what % 64 != 31).then_some(sign),
                length: 1 + c % 5,
                task: c / 5,
            },
            32..=35 => Self::RunWindow {
                window: a,
                ago: b % 3,
                length: 1 + b / 3 % 6,
                task: c,
            },
            36 => Self::MoveWindow { window: a, task: b },
            37 => Self::StopWindow { window: a },
            38 => Self::RemoveWindow { window: a },
            39..=44 => Self::Check {
                node: a,
                task: (b % 8 != 0).then_some(b),
                after: c % 5,
            },
            45..=48 => Self::Advance { by: 1 + a % 4 },
            49..=50 => Self::Pause { node: a },
            51 => Self::Resume { node: a },
            52 => Self::SettleAs { node: a, other: b },
            53 => Self::Enter { node: a },
            54 => Self::Leave { node: a },
            55..=59 => Self::Wait {
                node: a,
                waker: b,
                below: c % 2 == 0,
            },
            60 => Self::Rewait {
                wait: a,
                waker: b,
                below: c % 2 == 0,
            },
            61 => Self::Unwait { wait: a },
            62 => Self::Lapse { node: a },
            _ => Self::Drop { node: a },
        }
    }
}
