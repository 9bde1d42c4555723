//! Keeps requests away from a candidate for a while after it has failed.

mod handle;
mod identity;
mod windows;

pub use self::handle::Cooldowns;

#[cfg(test)]
pub(crate) use self::windows::{CooldownBackoff, CooldownKey, CooldownProbe, CooldownWindows};
pub(crate) use self::{
    handle::CooldownWatch,
    identity::CandidateCooldowns,
    windows::{CooldownState, Keys},
};
