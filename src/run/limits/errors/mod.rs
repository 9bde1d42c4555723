//! Counts the failures of a run by subject and message.

mod counts;
mod error_key;
#[cfg(test)]
mod tests;

pub use self::{
    counts::{ErrorAllowance, ErrorCounts},
    error_key::ErrorKey,
};
