//! The error type of the layers, and errors that several layers share.

pub use tower_agent_llm::error::{BoxError, InvalidRequest, RequestCut};

pub(crate) use tower_agent_llm::internal::chain;
