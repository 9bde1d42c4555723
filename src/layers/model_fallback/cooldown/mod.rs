//! Leaves a candidate alone that has just failed, for a while.

mod handle;
mod identity;
mod windows;

pub use self::handle::Cooldowns;

#[cfg(test)]
pub(crate) use self::windows::{CooldownBackoff, CooldownKey, CooldownProbe, CooldownWindows};
pub(crate) use self::{
    handle::CooldownWatch,
    identity::Cooled,
    windows::{CooldownState, Keys},
};
