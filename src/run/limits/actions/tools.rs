//! Which tools there are.

use crate::llm::{History, digest};

/// How many tools a request may declare for their names to be compared.
const TOOLS: usize = 1024;

/// The tools of the last request, and of the one before: a call was made with those
/// of that one.
#[derive(Debug, Default)]
pub(super) struct Tools([Declared; 2]);

/// The tools that a request declares.
#[derive(Debug, Default)]
struct Declared {
    names: Vec<u64>,
    /// There are others.
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
        self.0[0] = Declared { names, more };
    }

    /// Whether there may be one of this name. Of a request that nobody has seen, or
    /// that declared none, nobody knows.
    pub(super) fn may_hold(&self, name: &[u8]) -> bool {
        let name = digest(name);
        let any_name = self.0.iter().any(|it| it.names.is_empty() || it.more);
        any_name || self.0.iter().any(|it| it.names.contains(&name))
    }
}
