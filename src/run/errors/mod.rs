//! The failures of a run, counted by what failed and how.

mod counts;
mod key;
#[cfg(test)]
mod tests;

pub use self::{
    counts::{ErrorCounts, Verdict},
    key::ErrorKey,
};
