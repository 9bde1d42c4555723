//! The tools that the requests of a run declare.

use crate::llm::{History, digest};

/// The maximum of declared tools in one request up to which names are compared.
const TOOLS: usize = 1024;

/// The tools that the last two requests declare. The call that a request shows was made with the
/// tools of the request before.
#[derive(Debug, Default)]
pub(super) struct Tools([ToolNames; 2]);

/// The tools that one request declares.
#[derive(Debug, Default)]
struct ToolNames {
    names: Vec<u64>,
    /// Whether the request declares more tools than `names` holds.
    more: bool,
}

impl Tools {
    pub(super) fn declare(&mut self, history: &History<'_>) {
        let more = history.more_tools || history.tools.len() > TOOLS;
        let names = match more {
            true => Vec::new(),
            false => history.tools.clone(),
        };
        self.0.swap(0, 1);
        self.0[0] = ToolNames { names, more };
    }

    /// Whether one of the last two requests may declare a tool of this name. The answer is true if
    /// one of them is missing, declared no tools, or declared too many to compare.
    pub(super) fn may_hold(&self, name: &[u8]) -> bool {
        let name = digest(name);
        let any_name = self.0.iter().any(|it| it.names.is_empty() || it.more);
        any_name || self.0.iter().any(|it| it.names.contains(&name))
    }
}
