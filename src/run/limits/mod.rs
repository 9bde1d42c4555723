//! What bounds a run beside its clocks: turns, errors, repetition, and what is told on the way.

mod actions;
mod errors;
mod notices;
mod partial;
mod repetition;
mod shadow;
mod sub_agent;
mod turns;

pub use self::{
    actions::{LoopPattern, LoopVerdict},
    errors::{ErrorAllowance, ErrorCounts, ErrorKey},
    notices::ProgressNotices,
    shadow::ShadowReport,
};

pub(crate) use self::{
    actions::{Actions, LoopLimits},
    notices::{NoticeSettings, Working},
    partial::Partials,
    repetition::Standstill,
    shadow::Shadows,
    sub_agent::{Above, Asked},
    turns::{TurnLimit, Turns},
};
