//! The limits of a run other than its deadlines, and the notices about its slow steps.

mod actions;
mod adjustments;
mod error_counts;
mod extension;
mod pause_at_cap;
mod progress_notices;
mod repetition;
mod shadow_mode;
mod shared_run;
mod step_windows;
mod tokens;
mod turn_count;

pub use self::{
    actions::{LoopPattern, LoopVerdict},
    adjustments::RunAdjustments,
    error_counts::{ErrorAllowance, ErrorCounts, ErrorKey},
    extension::RunExtension,
    pause_at_cap::PauseAtCap,
    progress_notices::ProgressNotices,
    shadow_mode::ShadowReport,
    tokens::{Price, TokenCaps, TokensSpent},
};

pub(crate) use self::{
    actions::{Action, Actions, EXCERPT, Effect, LoopLimits, ToolArguments},
    progress_notices::WorkingNotices,
    repetition::{RepeatDetector, Repetition},
    shadow_mode::{ShadowHit, Shadows},
    shared_run::{
        EndElsewhere, PartLink, SharedRun, TurnNeeded, TurnQuestion, TurnUnderWay, TurnsAnswered,
        TurnsFuture, TurnsGranted,
    },
    step_windows::RunWindows,
    tokens::{CountedRun, Raised, RunTokenCaps, Spending, TokenAccount, TokenLedger, TokenMeter},
    turn_count::{LastCall, TurnCount, TurnLimit},
};
