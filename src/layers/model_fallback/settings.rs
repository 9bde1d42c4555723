//! The settings of a fallback layer, which its policy reads.

use std::sync::Arc;

use http::HeaderValue;

use super::{cooldown::CandidateCooldowns, sticky_sessions::StickySessions};
use crate::{
    attempt::{AttemptSettings, Candidate, Operation},
    llm::failure::FailureClass,
};

/// The settings of a fallback layer, and the state that its calls share.
#[derive(Clone, Debug)]
pub(super) struct FallbackSettings {
    pub(super) attempts: AttemptSettings,
    pub(super) candidates: Vec<Arc<Candidate>>,
    /// The values of the headers of [`SERVED`] per candidate; `None` if a header cannot hold the
    /// name.
    pub(super) served: Vec<[Option<HeaderValue>; 2]>,
    /// The classes that the program added with `also_after`.
    pub(super) allowed: Vec<FailureClass>,
    /// The operation of requests without one in their path.
    pub(super) operation: Option<Operation>,
    pub(super) json_only: bool,
    /// Whether a JSON body without a model gets that of the candidate.
    pub(super) default_model: bool,
    /// Whether the candidates share the time that is left.
    pub(super) shares: bool,
    pub(super) cooldowns: Option<CandidateCooldowns>,
    pub(super) sessions: Option<Arc<StickySessions>>,
}
