//! Leaves a candidate alone that has just failed, for a while.

mod backoff;
mod handle;
mod identity;
mod keys;
mod watch;
mod windows;

pub use self::handle::Cooldowns;

#[cfg(test)]
pub(crate) use self::{
    backoff::CooldownBackoff,
    keys::CooldownKey,
    windows::{CooldownProbe, CooldownWindows},
};
pub(crate) use self::{identity::Cooled, keys::Keys, watch::CooldownWatch, windows::CooldownState};
