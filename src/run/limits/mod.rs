//! The limits of a run other than its clocks, and the run's notices to observers.

mod actions;
mod errors;
mod notices;
mod partial;
mod repetition;
mod shadow;
mod turns;

pub use self::{
    actions::{LoopPattern, LoopVerdict},
    errors::{ErrorAllowance, ErrorCounts, ErrorKey},
    notices::ProgressNotices,
    shadow::ShadowReport,
};

pub(crate) use self::{
    actions::{Action, Actions, Effect, LoopLimits},
    notices::WorkingNotices,
    partial::PartialTexts,
    repetition::{RepeatDetector, Repetition},
    shadow::{ShadowHit, Shadows},
    turns::{LastCall, TurnCount, TurnLimit},
};
