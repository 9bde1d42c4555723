//! The failures of a run, counted by what failed and how.

mod counts;
mod error_key;
#[cfg(test)]
mod tests;

pub use self::{
    counts::{ErrorAllowance, ErrorCounts},
    error_key::ErrorKey,
};
