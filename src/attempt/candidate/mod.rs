//! One model at one upstream: its URL, its account, and the requests that it gets.

mod base_url;
#[allow(clippy::module_inception, reason = "the folder is about this type")]
mod candidate;
mod credential;
mod headers;
mod operation;
#[cfg(test)]
mod tests;

pub use self::{base_url::InvalidBaseUrl, candidate::Candidate, operation::CandidateDialect};

pub(crate) use self::{
    credential::{ApiKey, WITHIN_ACCOUNT, without_credentials},
    headers::{strip_hop, undress},
    operation::{Operation, generates},
};
