//! One model at one upstream: where it is, on whose account it is asked, and what
//! it is sent.

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
    credential::{ACCOUNT, ApiKey, WITHIN_ACCOUNT, without_credentials},
    headers::{strip_hop, undress},
    operation::{Operation, generates},
};
