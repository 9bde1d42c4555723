//! What bounds a run beside its clocks: turns, errors, repetition, and what is told on the way.

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
    notices::{NoticeSettings, WorkingNotices},
    partial::Partials,
    repetition::{RepeatDetector, Repetition},
    shadow::{Noted, Shadows},
    turns::{LastCall, TurnLimit, Turns},
};
