//! The wire formats of LLM APIs: events, dialects, failures, conversations.
//!
//! It is the crate [`tower-agent-llm`](tower_agent_llm), which depends on no service, no runtime and
//! no run: it only reads and writes bytes.

pub use tower_agent_llm::{dialect, failure, sse, stream};

pub(crate) use tower_agent_llm::internal::*;
