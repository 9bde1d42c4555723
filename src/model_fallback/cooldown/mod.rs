//! Leaves a candidate alone that has just failed, for a while.

mod book;
mod handle;
mod identity;
mod keys;
mod ladder;
mod watch;

pub use self::handle::Cooldowns;
pub(crate) use self::{
    book::State,
    identity::Cooled,
    keys::{Key, Keys},
    watch::Watch,
};
#[cfg(test)]
pub(super) use self::{
    book::{Book, Probing},
    ladder::Ladder,
};
